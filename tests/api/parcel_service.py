"""The operation that tests of the API run: parcels are weighed, dear ones are approved, and all are booked."""

from __future__ import annotations

import httpx
from pydantic import BaseModel, Field

from penstock import Context, Done, Pipeline, StepFailed, operation, step

__all__ = ["CSV", "DEAR", "Parcel", "Parcels", "Tariff", "upload"]


class Parcel(BaseModel):
    code: str
    weight: float = Field(le=1000)
    value: int = 0


class Tariff(BaseModel):
    currency: str = "EUR"
    dear_from: int = 1000


@operation("parcels", row_key="code")
class Parcels(Pipeline[Parcel, Tariff]):
    """Weigh parcels, have dear ones approved, and book them."""

    @step
    def weigh(self, parcel: Parcel, ctx: Context[Tariff]) -> dict[str, float]:
        if parcel.weight < 0:
            raise StepFailed(f"weight {parcel.weight:g} is negative")
        return {"grams": parcel.weight * 1000}

    @step.signal(key="approval-{row.code}", timeout=3600)
    async def approve(self, parcel: Parcel, ctx: Context[Tariff]) -> Done | None:
        """Somebody is asked about dear ones."""
        return None if parcel.value >= ctx.meta.dear_from else Done()

    @step
    async def book(self, parcel: Parcel, ctx: Context[Tariff]) -> None:
        """The parcel is booked."""


CSV = b"code,weight,value\nP1,1,10\nP2,heavy,10\nP3,-3,10\nP4,4,20\n"
"""Row 2 is invalid, row 3 fails at its first step, the others complete."""

DEAR = b"code,weight,value\nD1,1,5000\nD2,2,10\nD3,3,7000\n"
"""Rows 1 and 3 wait for approval."""


async def upload(api: httpx.AsyncClient, file: bytes = CSV, **fields: str) -> str:
    """Create an operation over HTTP; its id."""
    answer = await api.post(
        "/api/bulks",
        files={"file": ("parcels.csv", file, "text/csv")},
        data={"operationName": "parcels", **fields},
    )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["operationId"])
