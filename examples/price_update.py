"""A shop takes in its suppliers' price lists: every line is checked, looked up, weighed and published.

penstock run price-update prices.csv --app examples/price_update.py --meta supplier=acme --meta currency=EUR
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import date
from decimal import Decimal
from typing import Self

from pydantic import BaseModel, Field, field_validator
from remote_shop import Article, Catalogue, Mailer, Storefront

from penstock import Backoff, BatchContext, Context, Pipeline, RowInvalid, StepFailed, operation, step


class PriceLine(BaseModel):
    """One line of a price list."""

    sku: str = Field(pattern=r"^[A-Z]{3}-\d{5}$")
    ean: str
    name: str = Field(min_length=1)
    price: Decimal = Field(gt=0, decimal_places=2)
    currency: str
    stock: int = Field(ge=0)
    available_from: date | None = None

    @field_validator("ean")
    @classmethod
    def has_a_right_check_digit(cls, ean: str) -> str:
        digits = [int(character) for character in ean if character.isdigit()]
        if len(digits) != 13 or len(ean) != 13:
            raise ValueError(f"an EAN has 13 digits; found {ean!r}")
        if (sum(digits[0::2]) + 3 * sum(digits[1::2])) % 10:
            raise ValueError(f"the check digit of {ean} is wrong")
        return ean


class PriceList(BaseModel):
    """What holds for the whole list: the operation's metadata."""

    supplier: str
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    margin_percent_min: int = 5


class Margin(BaseModel):
    """What the shop would earn."""

    percent: Decimal
    is_bargain: bool


@operation("price-update", row_key="sku", max_row_concurrency=50)
class PriceUpdate(Pipeline[PriceLine, PriceList]):
    """Take over a supplier's prices and stocks."""

    def __init__(self, catalogue: Catalogue, storefront: Storefront, mailer: Mailer) -> None:
        self.catalogue, self.storefront, self.mailer = catalogue, storefront, mailer

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncGenerator[Self]:
        """Clients are made once per worker process; a test hands fakes to `__init__` instead."""
        yield cls(Catalogue(), Storefront(), Mailer())

    def validate_row(self, line: PriceLine, prices: PriceList) -> None:
        """What a line's own model cannot know."""
        if line.currency != prices.currency:
            raise RowInvalid(f"the list is in {prices.currency}, this line in {line.currency}", field="currency")

    @step(retries=3, retry_on=(ConnectionError,), backoff=Backoff(initial=0.2))
    async def look_up(self, line: PriceLine, ctx: Context[PriceList]) -> Article:
        """What is returned is stored, and comes back to later steps as this type, also after a restart."""
        article = await self.catalogue.find(line.sku)
        if article is None:
            raise StepFailed(f"the catalogue has no article {line.sku}")
        return article

    @step
    def weigh(self, line: PriceLine, ctx: Context[PriceList]) -> Margin:
        """A plain function: it runs on a thread."""
        article = ctx.output_of(PriceUpdate.look_up)
        percent = round((line.price - article.cost) / line.price * 100, 1)
        if percent < ctx.meta.margin_percent_min:
            raise StepFailed(f"a margin of {percent} % is below {ctx.meta.margin_percent_min} %")
        return Margin(percent=percent, is_bargain=line.price < article.price * Decimal("0.8"))

    @step.batch(size=250, retries=2)
    async def publish(self, lines: list[PriceLine], ctx: BatchContext[PriceList]) -> list[str | Exception]:
        """Many lines in one request; the answer says of each line what became of it."""
        prices = {row.effect_key: (line.sku, line.price, line.stock) for row, line in zip(ctx.rows, lines, strict=True)}
        answers = await self.storefront.put_prices(prices)
        return [StepFailed(answer.refusal) if answer.refusal else answer.revision for answer in answers]

    @step(retries=1)
    async def tell_customers(self, line: PriceLine, ctx: Context[PriceList]) -> None:
        await self.mailer.announce(line.sku, line.price, key=ctx.effect_key)

    @tell_customers.when
    def is_bargain(self, line: PriceLine, ctx: Context[PriceList]) -> bool:
        """Only for bargains; for other lines the step is Skipped."""
        return line.stock > 0 and ctx.output_of(PriceUpdate.weigh).is_bargain
