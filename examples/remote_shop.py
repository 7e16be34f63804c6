"""A make-believe shop: what `price_update` talks to. Answers take a moment, some calls fail, some articles are odd.

Everything follows from the article's number, so each run of the demo tells the same story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from pydantic import BaseModel

__all__ = ["Answer", "Article", "Catalogue", "Mailer", "Storefront", "usual_price"]

LATENCY_S = 0.002


class Article(BaseModel):
    """What the shop knows about an article."""

    id: int
    cost: Decimal
    price: Decimal


@dataclass(frozen=True)
class Answer:
    """What became of one price: its revision, or why it was refused."""

    revision: str = ""
    refusal: str = ""


def usual_price(number: int) -> Decimal:
    """What an article costs today."""
    return Decimal(500 + number * 37 % 20_000) / 100


class Catalogue:
    """Knows articles; a line to it breaks now and then, and works when tried again."""

    def __init__(self) -> None:
        self._broken: set[str] = set()

    async def find(self, sku: str) -> Article | None:
        await asyncio.sleep(LATENCY_S)
        number = int(sku[4:])
        if number % 97 == 0 and sku not in self._broken:
            self._broken.add(sku)
            raise ConnectionError(f"catalogue-2 closed the connection while asked for {sku}")
        if number % 331 == 0:
            return None
        price = usual_price(number)
        return Article(id=100_000 + number, cost=round(price * Decimal("0.6"), 2), price=price)


class Storefront:
    """Takes prices in bulk; a frozen article keeps its own."""

    async def put_prices(self, prices: Mapping[str, tuple[str, Decimal, int]]) -> list[Answer]:
        await asyncio.sleep(LATENCY_S * 10)
        return [
            Answer(refusal=f"article {sku} is frozen by an open campaign")
            if int(sku[4:]) % 457 == 0
            else Answer(revision=f"r{int(sku[4:]) * 7 % 1_000_003}")
            for sku, _price, _stock in prices.values()
        ]


class Mailer:
    """Sends mail, once per key."""

    async def announce(self, sku: str, price: Decimal, *, key: str) -> None:
        await asyncio.sleep(LATENCY_S)
