"""Batch steps, waits that carry an output, and reusable step objects, under a strict type checker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import reveal_type

import msgspec

from penstock.pipeline import Backoff, BatchContext, Context, Done, Pipeline, StepObject, operation, step


class Invoice(msgspec.Struct):
    number: str
    cents: int


@dataclass
class Booking:
    id: int


class Receipt(msgspec.Struct):
    text: str


class SubmitToBank(StepObject[Receipt]):
    def __init__(self, url: str) -> None:
        self.url = url

    @step.signal(key="bank-{row.number}", timeout=timedelta(hours=48))
    async def run(self, invoice: Invoice, ctx: Context[None]) -> Done[Receipt] | None:
        return Done(Receipt(self.url)) if invoice.cents == 0 else None


class Archive(StepObject[str]):
    def run(self, invoice: Invoice, ctx: Context[None]) -> str:
        return invoice.number


@operation("invoices", row_key="number", tags=["money"])
class Invoices(Pipeline[Invoice]):
    @step.batch(size=50, retries=2, backoff=Backoff.constant(5))
    async def book(self, invoices: list[Invoice], ctx: BatchContext[None]) -> list[Booking | Exception]:
        return [Booking(row.row_number) if row.row_key else ValueError("no number") for row in ctx.rows]

    @step.poll(every=1, timeout=60)
    def post(self, invoice: Invoice, ctx: Context[None]) -> Done[int] | None:
        return Done(ctx.output_of(Invoices.book).id)

    @post.check
    def is_posted(self, invoice: Invoice, ctx: Context[None]) -> bool | Done[int]:
        return Done(1)

    submit = SubmitToBank("https://bank.example")
    archive = Archive().with_options(name="Put away", retries=3)

    @step.batch()
    def tell(self, invoices: list[Invoice], ctx: BatchContext[None]) -> None:
        reveal_type(ctx.rows[0].output_of(Invoices.book))  # expect: Booking
        reveal_type(ctx.rows[0].output_of(Invoices.post))  # expect: int
        reveal_type(ctx.rows[0].output_of(Invoices.submit))  # expect: Receipt
        reveal_type(ctx.rows[0].output_of(Invoices.archive))  # expect: str
        reveal_type(ctx.rows[0].output_of(Invoices.tell))  # expect: None
        reveal_type(ctx.meta)  # expect: None
