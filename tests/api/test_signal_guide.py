"""The shipment of the signals guide, with its carrier's webhook, over HTTP and in the user's own application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from penstock import Context, Penstock, Pipeline, RowInvalid, operation, step
from penstock.api import Trusted, create_app
from penstock.errors import DeclarationError, SettingsInvalid
from penstock.settings import Settings, load_settings
from penstock.testing import Engine, engine

pytestmark = pytest.mark.databases("sqlite")

ROOT = Path(__file__).parents[2]


class Shipment(BaseModel):
    tracking_number: str = Field(alias="TrackingNumber", default="")
    weight: float = 1


class Batch(BaseModel):
    warehouse: str = "north"


@operation("shipment-tracking", row_key="tracking_number")
class ShipmentTracking(Pipeline[Shipment, Batch]):
    """Hand shipments to a carrier and wait until they are picked up."""

    def validate_metadata(self, batch: Batch, /) -> None:
        """Any warehouse will do."""

    def validate_row(self, shipment: Shipment, _: Batch) -> None:
        if not shipment.tracking_number:
            raise RowInvalid("is required", field="TrackingNumber")

    @step.signal(key="pickup-{row.tracking_number}", timeout=1800, retries=1, backoff=1)
    async def submit(self, shipment: Shipment, ctx: Context[Batch]) -> None:
        if shipment.weight > 100 and ctx.attempt == 1:
            raise ConnectionError("the carrier is busy")


CSV = b"TrackingNumber,weight\nT1,1\n,1\nT3,200\n"


@pytest.fixture
async def shipping(database_url: str, tmp_path: Path) -> AsyncIterator[tuple[Engine, str]]:
    """Shipments of which two wait for their pickup; the second was handed over at the second attempt."""
    async with engine([ShipmentTracking], url=database_url, tmp_path=tmp_path) as works:
        made = await works.create(ShipmentTracking, CSV, file_name="shipments.csv")
        await works.work_until_idle()
        await works.skip_wait(await works.operations.get(made.id))
        await works.work_until_idle()
        yield works, made.id


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host.test")


@pytest.mark.covers("SG-031", "SG-047", "SG-050", "SG-051")
async def test_the_carriers_webhook_ends_the_wait_of_its_shipment(shipping: tuple[Engine, str]):
    works, made = shipping
    rows = (await works.operations.rows(made)).items
    assert [row.state for row in rows] == ["WaitingForCompletion", "Invalid", "WaitingForCompletion"]
    assert rows[2].steps[-1].attempt == 2
    assert [wait.key for wait in await works.penstock.signals.waiting(made)] == ["pickup-T1", "pickup-T3"]
    async with client_of(create_app(works.penstock, access=Trusted(), dashboard=False)) as carrier:
        assert (await carrier.post(f"/api/bulks/{made}/signal/pickup-T1")).status_code == 200
        late = {"errorMessage": "nobody was there"}
        assert (await carrier.post(f"/api/bulks/{made}/signal/pickup-T3/fail", json=late)).status_code == 200
    await works.work_until_idle()
    rows = (await works.operations.rows(made)).items
    assert [row.state for row in rows] == ["Completed", "Invalid", "Failed"]
    assert rows[2].steps[-1].message == "nobody was there"  # the retry is for the start alone


def webhooks(penstock: Penstock) -> FastAPI:
    """The user's own endpoint, which forwards what the carrier says."""
    app = FastAPI()

    @app.post("/carrier/{operation}")
    async def hear(operation: str, request: Request) -> dict[str, Any]:
        word = await request.json()
        key = f"pickup-{word['tracking']}"
        if word["picked_up"]:
            receipt = await penstock.signals.complete(operation, key, id=word["id"])
        else:
            receipt = await penstock.signals.fail(operation, key, word["reason"], id=word["id"])
        return {"outcome": receipt.outcome}

    return app


@pytest.mark.covers("SG-005", "SG-027")
async def test_an_endpoint_of_the_users_forwards_to_the_one_shared_service(shipping: tuple[Engine, str]):
    works, made = shipping
    words = [
        {"id": "1", "tracking": "T1", "picked_up": True},
        {"id": "2", "tracking": "T3", "picked_up": False, "reason": "wrong address"},
    ]
    async with client_of(webhooks(works.penstock)) as carrier:
        answers = await asyncio.gather(*(carrier.post(f"/carrier/{made}", json=word) for word in words))
        assert [answer.json()["outcome"] for answer in answers] == ["delivered", "delivered"]
        await works.work_until_idle()
        assert (await carrier.post(f"/carrier/{made}", json=words[0])).json() == {"outcome": "duplicate"}
    assert (await works.operations.get(made)).failed_rows == 2


@pytest.mark.covers("SG-032")
def test_a_signalled_step_declares_no_poll_interval_and_no_check():
    with pytest.raises(DeclarationError, match="every"):

        @operation("odd")
        class Odd(Pipeline[Shipment]):
            @step.signal(key="k-{row_number}", timeout=1, every=1)
            async def ask(self, row: Shipment, ctx: Context[None]) -> None: ...


@pytest.mark.covers("SG-024", "SG-053")
def test_there_is_no_switch_for_recovery_and_the_wake_up_poll_has_a_setting():
    assert Settings().wake_poll_s == 0.5
    with pytest.raises(SettingsInvalid, match="is not a setting"):
        load_settings({"PENSTOCK_ENABLE_ORPHANED_STEP_RECOVERY": "1"}, Path("none.toml"))


@pytest.mark.covers("SG-010")
def test_the_guide_recommends_the_rows_identity_as_part_of_the_key():
    guide = (ROOT / "docs" / "how-to" / "wait-for-the-outside.md").read_text()
    assert "Put the identity of the row into the key." in guide
