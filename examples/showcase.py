"""Sample operations in every state, for `make demo` and for screenshots of the dashboard.

Payments wait for somebody's approval, a stock count takes its time, and a purchase order is a lifecycle.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Literal

from device_provisioning import OUT_OF_REACH, QUICK, DeviceProvisioning, devices_csv, imei
from pydantic import BaseModel, Field, field_validator

from penstock import Context, Penstock, Pipeline, RowInvalid, StepFailed, operation, step
from penstock.operations.model import Operation

SUPPLIERS = ("Aster Glass", "Birch & Sons", "Cobalt Tools", "Delta Freight", "Elm Paper")
BLOCKED = "Delta Freight"


class Payment(BaseModel):
    """One invoice that is to be paid."""

    invoice: str = Field(pattern=r"^INV-\d{4}$")
    supplier: str = Field(min_length=1)
    iban: str
    amount: Decimal = Field(gt=0, decimal_places=2)
    note: str = ""

    @field_validator("iban")
    @classmethod
    def is_an_iban(cls, iban: str) -> str:
        if len(iban) != 22 or not iban[:2].isalpha():
            raise ValueError(f"an IBAN of this bank has 22 characters; found {len(iban)}")
        return iban


class PaymentRun(BaseModel):
    """What holds for the whole run."""

    account: str = Field(description="The account that pays")
    due: date = Field(description="When the money should arrive")
    priority: Literal["normal", "urgent"] = "normal"
    limit: Decimal = Field(default=Decimal(10_000), gt=0, description="No single payment is larger")
    send_advice: bool = Field(default=True, description="Tell each supplier")


class Checked(BaseModel):
    """What the bank says about an account."""

    bank: str
    owner: str


@operation("supplier-payments", row_key="invoice")
class SupplierPayments(Pipeline[Payment, PaymentRun]):
    """Pay invoices: each account is checked, each payment approved by a person, then sent."""

    def validate_row(self, payment: Payment, run: PaymentRun) -> None:
        if payment.amount > run.limit:
            raise RowInvalid(f"{payment.amount} is more than the limit of {run.limit}", field="amount")

    @step(retries=2, retry_on=(ConnectionError,), backoff=0.05)
    async def check_account(self, payment: Payment, ctx: Context[PaymentRun]) -> Checked:
        if payment.invoice.endswith("7") and ctx.attempt == 1:
            raise ConnectionError("the bank closed the connection")
        if payment.supplier == BLOCKED and not payment.note.startswith("cleared"):
            raise StepFailed(f"the account of {payment.supplier} is blocked")
        return Checked(bank=f"Bank {payment.iban[4:8]}", owner=payment.supplier)

    @step.signal(key="payment-{row.invoice}", timeout=3 * 86_400)
    async def approval(self, payment: Payment, ctx: Context[PaymentRun]) -> None:
        """Somebody says yes or no; the row waits and holds nothing."""

    @step
    async def pay(self, payment: Payment, ctx: Context[PaymentRun]) -> str:
        return f"paid {payment.amount} from {ctx.meta.account}"


class Shelf(BaseModel):
    """One shelf of a warehouse."""

    shelf: str
    expected: int = Field(ge=0)


@operation("stock-count", row_key="shelf", max_row_concurrency=8)
class StockCount(Pipeline[Shelf]):
    """Count what is on every shelf; each takes its time."""

    @step
    async def count(self, shelf: Shelf, ctx: Context) -> int:
        await asyncio.sleep(0.04)
        return shelf.expected - (ctx.row_number % 11 == 0)

    @step
    async def compare(self, shelf: Shelf, ctx: Context) -> None:
        counted = ctx.output_of(StockCount.count)
        if ctx.row_number % 53 == 0:
            raise StepFailed(f"shelf {shelf.shelf}: {counted} counted, {shelf.expected} expected")

    @step
    async def book(self, shelf: Shelf, ctx: Context) -> None:
        await asyncio.sleep(0.01)


@operation("year-end-closing")
async def year_end_closing(row: Shelf, ctx: Context) -> None:
    """Nobody in the demo knows this operation: it stays Pending until a worker comes that does."""


OPERATIONS: Sequence[object] = (DeviceProvisioning, SupplierPayments, StockCount)

PURCHASE_ORDER = {
    "definition": {"name": "purchase-order", "description": "From a wish to a paid invoice"},
    "states": [
        {"name": "Requested", "is_initial": True},
        {"name": "Approved"},
        {"name": "Ordered"},
        {"name": "Received"},
        {"name": "Disputed", "flags": ["Error"]},
        {"name": "Paid", "is_final": True},
        {"name": "Rejected", "is_final": True},
    ],
    "events": ["approve", "reject", "order", "receive", "dispute", "settle", "pay"],
    "transitions": [
        {"from": "Requested", "event": "approve", "to": "Approved"},
        {"from": "Requested", "event": "reject", "to": "Rejected"},
        {"from": "Approved", "event": "order", "to": "Ordered"},
        {"from": "Ordered", "event": "receive", "to": "Received"},
        {"from": "Received", "event": "dispute", "to": "Disputed"},
        {"from": "Disputed", "event": "settle", "to": "Received"},
        {"from": "Received", "event": "pay", "to": "Paid"},
    ],
}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Rows as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def payments_csv(count: int, *, bad_every: int = 12) -> bytes:
    """Invoices; now and then one that is wrong."""
    chance = random.Random(7)
    rows: list[list[object]] = []
    for number in range(1, count + 1):
        supplier = SUPPLIERS[number % len(SUPPLIERS)]
        iban = f"DE{chance.randint(10**19, 10**20 - 1)}"
        amount: object = f"{chance.randint(500, 900_000) / 100:.2f}"
        if number % bad_every == 0:
            iban, amount = iban[:-4], "-" if number % (2 * bad_every) else f"{chance.randint(11_000, 90_000)}.00"
        rows.append([f"INV-{number:04}", supplier, iban, amount, ""])
    return table(("invoice", "supplier", "iban", "amount", "note"), rows)


def shelves_csv(count: int) -> bytes:
    """Shelves of a warehouse."""
    return table(("shelf", "expected"), ((f"{number % 40:02}-{number:05}", number % 90) for number in range(count)))


async def until(penstock: Penstock, id: str, is_there: Callable[[Operation], bool]) -> Operation:
    """Wait for an operation to come so far."""
    while not is_there(found := await penstock.operations.get(id)):  # noqa: ASYNC110  # a worker brings it there
        await asyncio.sleep(0.05)
    return found


async def show(penstock: Penstock) -> None:
    """Make operations in every state; a worker of this `Penstock` must run."""
    service, signals = penstock.operations, penstock.signals
    run = {"account": "DE-4711", "due": "2031-03-31"}

    async def create(what: object, file: bytes, name: str, **more: Any) -> str:
        return (await service.create(what, file=file, file_name=name, created_by="ana", **more)).id

    small = await create(StockCount, shelves_csv(40), "office.csv")
    counting = await create(StockCount, shelves_csv(600), "hall-1.csv")
    devices = await create(
        DeviceProvisioning, devices_csv(40), "devices.csv", metadata={"carrier": "acme"}, options=QUICK
    )
    for device in range(1, 41):
        await signals.complete(devices, f"carrier-{imei(device)}", payload={"by": "carrier desk"})
    await create(
        SupplierPayments, payments_csv(60, bad_every=2), "march-draft.csv", metadata=run, options={"max_errors": 10}
    )
    payments = await create(SupplierPayments, payments_csv(48), "march.csv", metadata=run | {"priority": "urgent"})
    await until(penstock, payments, lambda op: op.waiting_rows > 30)
    for number in (1, 2, 3, 5, 6):
        await signals.complete(payments, f"payment-INV-{number:04}", payload={"by": "ben"}, actor="ben")
    await signals.fail(payments, "payment-INV-0008", "the goods never came", actor="ben")
    await until(penstock, counting, lambda op: op.processed_rows > 60)
    await service.cancel(counting, cause="the wrong hall", actor="ana")
    paused = await create(StockCount, shelves_csv(800), "hall-3.csv")
    await until(penstock, paused, lambda op: op.processed_rows > 100)
    await service.pause(paused, cause="until the night shift is in", actor="ana")
    await until(penstock, devices, lambda op: op.is_settled)
    await service.retry(devices, rows=OUT_OF_REACH[:2], actor="ana")
    await until(penstock, small, lambda op: op.is_settled)
    await create(StockCount, shelves_csv(8000), "hall-2.csv")
    await orders(penstock)


async def orders(penstock: Penstock) -> None:
    """Instances of a lifecycle in several states, and a consumer that is told of them."""
    lifecycles = penstock.lifecycles
    await lifecycles.import_text(json.dumps(PURCHASE_ORDER))
    await penstock.deliveries.register("warehouse", attempts_max=1)
    await penstock.deliveries.register("ledger")
    way = ("approve", "order", "receive", "pay")
    for number in range(18):
        made = await lifecycles.start("purchase-order", f"PO-{number:04}", data={"total": 100 + number * 7})
        for event in way[: number % 5]:
            await lifecycles.trigger(made.guid, event, actor="ana")
    for delivery in await penstock.deliveries.claim("warehouse", limit=6):
        await penstock.deliveries.fail(delivery.message_id, "HTTP 503 from the warehouse", claim=delivery.claim)
    for delivery in await penstock.deliveries.claim("ledger", limit=10):
        await penstock.deliveries.acknowledge(delivery.message_id, claim=delivery.claim)


async def leave_one_pending(url: str) -> None:
    """An operation that no worker here can run."""
    async with Penstock.open(url, operations=[year_end_closing]) as elsewhere:
        await elsewhere.operations.create(
            year_end_closing, file=shelves_csv(50), file_name="closing.csv", created_by="night job"
        )
