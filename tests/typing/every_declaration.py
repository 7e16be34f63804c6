"""Every decorator there is, once each at least, under strict type checkers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, reveal_type

from pydantic import BaseModel

from penstock import Backoff, BatchContext, Context, Done, Penstock, Pipeline, RowInvalid, operation, step
from penstock.pipeline import StepObject
from penstock.testing import engine


class Order(BaseModel):
    number: str
    cents: int = 0


class Shop(BaseModel):
    name: str


@dataclass
class Payment:
    id: int


class Parcel(BaseModel):
    code: str


async def has_number(order: Order, shop: Shop) -> None:
    if not order.number:
        raise RowInvalid("is missing", field="number")


class Pack(StepObject[Parcel]):
    """A step object with a body of its own."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @step(retries=1)
    async def run(self, order: Order, ctx: Context[Shop]) -> Parcel:
        return Parcel(code=f"{self.prefix}{order.number}")


@operation("orders", row_key="number", validators=[has_number], max_error_rate=0.5, tags=["shop"])
class Orders(Pipeline[Order, Shop]):
    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncGenerator[Self]:
        yield cls("https://shop.example")

    def validate_metadata(self, shop: Shop) -> None:
        if not shop.name:
            raise ValueError("no name")

    async def validate_row(self, order: Order, shop: Shop) -> None:
        if order.cents < 0:
            raise RowInvalid(f"{shop.name} pays nothing", field="cents")

    @step
    def reserve(self, order: Order, ctx: Context[Shop]) -> int:
        return order.cents

    @reserve.when
    async def costs_something(self, order: Order, ctx: Context[Shop]) -> bool:
        return order.cents > 0

    @step(retries=3, backoff=Backoff.constant(1), timeout=timedelta(seconds=30), rate="10/s")
    async def pay(self, order: Order, ctx: Context[Shop]) -> Payment:
        reveal_type(ctx.output_of(Orders.reserve))  # expect: int
        reveal_type(ctx.output_of(Orders.reserve, None))  # expect: int | None
        reveal_type(ctx.output_of(Orders.reserve, default="free"))  # expect: int | str
        return Payment(ctx.row_number)

    @step.batch(size=20)
    async def book(self, orders: list[Order], ctx: BatchContext[Shop]) -> list[str | Exception]:
        return [str(row.output_of(Orders.pay).id) for row in ctx.rows]

    pack = Pack("P-")
    label = Pack("L-").with_options(name="Print label", concurrency=2)

    @step.poll(every=2, timeout=timedelta(hours=1))
    async def ship(self, order: Order, ctx: Context[Shop]) -> Done[Parcel] | None:
        return Done(ctx.output_of(Orders.pack)) if order.cents == 0 else None

    @ship.check
    async def has_left(self, order: Order, ctx: Context[Shop]) -> bool | Done[Parcel]:
        return Done(ctx.output_of(Orders.label))

    @step.signal(key="customs-{row.number}", timeout=timedelta(days=2))
    async def clear(self, order: Order, ctx: Context[Shop]) -> None:
        reveal_type(ctx.output_of(Orders.ship))  # expect: Parcel

    @step.signal(timeout=60)
    def thank(self, order: Order, ctx: Context[Shop]) -> Done[str] | None:
        reveal_type(ctx.output_of(Orders.clear))  # expect: Any
        return Done(f"{ctx.meta.name} thanks {order.number}")

    @thank.key
    def thank_key(self, order: Order, ctx: Context[Shop]) -> str:
        return f"{ctx.meta.name}-{order.number}"

    @step(delivery="at_most_once", barrier=True)
    async def file(self, order: Order, ctx: Context[Shop]) -> Any:
        reveal_type(ctx.output_of(Orders.pay))  # expect: Payment
        reveal_type(ctx.output_of(Orders.book))  # expect: str
        reveal_type(ctx.output_of(Orders.thank))  # expect: str
        reveal_type(ctx.meta)  # expect: Shop
        return ctx.outputs.get("clear")


class CarefulOrders(Orders):
    pay = Orders.pay.with_options(retries=0)


@operation("greet")
async def greet(order: Order, ctx: Context) -> str:
    return order.number


async def use(penstock: Penstock) -> int:
    made = await penstock.operations.create(Orders, file="orders.csv", metadata=Shop(name="Corner"))
    done = await penstock.run_until_done(made.id)
    await penstock.signals.complete(done.id, "customs-1", payload={"by": "ana"})
    page = await penstock.operations.rows(done.id, data=True)
    return sum(row.number for row in page.items)


async def rehearse() -> str:
    async with engine([Orders, greet]) as rehearsal:
        done = await rehearsal.run(greet, [{"number": "1"}])
        return done.status
