"""The operation that the tests of the dashboard run: accounts are checked, payments approved, then sent."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, Field, SecretStr

from penstock import Context, Pipeline, RowInvalid, StepFailed, operation, step

# Whatever of a file, a form or a request reaches a page has to stay text.
HOSTILE = "<img src=x onerror=window.pwned=1>\"'><script>window.pwned=1</script>"


class Payment(BaseModel):
    invoice: str
    amount: Decimal = Field(gt=0)
    note: str = ""


class PaymentRun(BaseModel):
    account: str
    priority: Literal["normal", "urgent"] = "normal"
    limit: int = 1000
    advice: bool = False
    pin: SecretStr | None = None
    extra: dict[str, str] = {}


@operation("payments", row_key="invoice")
class Payments(Pipeline[Payment, PaymentRun]):
    """Pay invoices."""

    def validate_row(self, payment: Payment, run: PaymentRun) -> None:
        if payment.amount > run.limit:
            raise RowInvalid(f"{payment.amount} is over the limit", field="amount")

    @step
    async def check_account(self, payment: Payment, ctx: Context[PaymentRun]) -> dict[str, str]:
        if payment.note.startswith("blocked"):
            raise StepFailed(f"the account is {payment.note}")
        return {"owner": payment.note}

    @step.signal(key="pay-{row.invoice}", timeout=86_400)
    async def approval(self, payment: Payment, ctx: Context[PaymentRun]) -> None: ...

    @step
    async def pay(self, payment: Payment, ctx: Context[PaymentRun]) -> str:
        return f"paid {payment.amount}"


CSV = b"invoice,amount,note\nA1,10,\nA2,-5,\nA3,30,blocked\nA4,40,\n"
