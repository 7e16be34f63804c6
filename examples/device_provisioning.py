"""Provision devices: activate SIMs, register them, push profiles, wait for the carrier, tell the customer.

    python examples/device_provisioning.py

runs a hundred devices, of which eight fail; then the network is back, the late approvals come, and a retry brings
the rest home, each from the step at which it had failed. Nothing outside is needed: the carrier is played here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

from pydantic import BaseModel, Field

from penstock import Context, Penstock, Pipeline, RowInvalid, StepFailed, operation, step

DEVICES = 100
OUT_OF_REACH = (7, 19, 42, 66, 93)  # their network is down at first: they fail at register_network
UNDECIDED = (28, 55, 81)  # the carrier says nothing at first: they time out at carrier_approval

# The waits of the document, shortened so that the show takes seconds.
QUICK = {"push_profile.every": 0.1, "push_profile.timeout": 5, "carrier_approval.timeout": 5}


class Device(BaseModel):
    """One line of the file."""

    imei: str = Field(pattern=r"^\d{15}$")
    model: str = "basic"


class Order(BaseModel):
    """What holds for the whole file."""

    carrier: str


class Sim(BaseModel):
    """An activated SIM."""

    number: str


class CarrierBusy(Exception):
    """Come again."""


class Carrier:
    """The other side, played. What it says depends on what it is asked only, so any process may play it."""

    async def activate(self, imei: str, *, attempt: int, key: str) -> str:
        """Busy for some devices at their first attempt; `key` is the same in each, so nothing is activated twice."""
        if imei.endswith("3") and attempt == 1:
            raise CarrierBusy(f"try {key} again")
        return f"sim-{imei[-6:]}"

    def has_network(self, device: int, *, generation: int) -> bool:
        return generation > 0 or device not in OUT_OF_REACH

    async def is_pushed(self, sim: str) -> bool:
        return sim.startswith("sim-")


@operation("device-provisioning", row_key="imei")
class DeviceProvisioning(Pipeline[Device, Order]):
    """Activate SIMs, push profiles, wait for the carrier."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncGenerator[Self]:
        """Clients are made once per worker process."""
        yield cls(Carrier())

    def validate_metadata(self, order: Order) -> None:
        if not order.carrier:
            raise ValueError("name a carrier")

    async def validate_row(self, device: Device, order: Order) -> None:
        if device.imei == "0" * 15:
            raise RowInvalid("is a placeholder", field="imei")

    @step(retries=2, retry_on=(CarrierBusy,), backoff=0.05)
    async def activate_sim(self, device: Device, ctx: Context[Order]) -> Sim:
        number = await self.carrier.activate(device.imei, attempt=ctx.attempt, key=ctx.effect_key)
        return Sim(number=number)

    @step
    async def register_network(self, device: Device, ctx: Context[Order]) -> None:
        if not self.carrier.has_network(ctx.row_number, generation=ctx.generation):
            raise StepFailed(f"no network for {device.imei}")

    @step.poll(every=2, timeout=20)
    async def push_profile(self, device: Device, ctx: Context[Order]) -> None:
        """The body starts the push, once."""

    @push_profile.check
    async def is_pushed(self, device: Device, ctx: Context[Order]) -> bool:
        return await self.carrier.is_pushed(ctx.output_of(DeviceProvisioning.activate_sim).number)

    @step.signal(key="carrier-{row.imei}", timeout=45)
    async def carrier_approval(self, device: Device, ctx: Context[Order]) -> None:
        """The body asks for the approval; the row then waits for it, holding nothing."""

    @step(retries=1)
    def notify_customer(self, device: Device, ctx: Context[Order]) -> str:
        approval: dict[str, Any] = ctx.outputs.get("carrier_approval") or {}
        return f"{ctx.meta.carrier}: {device.imei} is ready, approved by {approval.get('by', 'nobody')}"


def imei(device: int) -> str:
    """The number of the n-th device."""
    return f"{350_000_000_000_000 + device:015d}"


def devices_csv(count: int = DEVICES) -> bytes:
    """The file."""
    lines = "".join(f"{imei(n)},{'pro' if n % 5 == 0 else 'basic'}\n" for n in range(1, count + 1))
    return f"imei,model\n{lines}".encode()


async def approve(penstock: Penstock, operation_id: str, devices: Iterable[int]) -> None:
    """Play the carrier's webhook: each post is stored before it is answered, whether the row waits already or not."""
    for device in devices:
        payload: dict[str, Any] = {"by": "carrier desk"}
        await penstock.signals.complete(operation_id, f"carrier-{imei(device)}", payload=payload, id=f"hook-{device}")


async def main() -> None:
    async with Penstock.open(operations=[DeviceProvisioning]) as penstock:
        made = await penstock.operations.create(
            DeviceProvisioning,
            file=devices_csv(),
            file_name="devices.csv",
            metadata=Order(carrier="acme"),
            options=QUICK,
        )
        decided = [n for n in range(1, DEVICES + 1) if n not in UNDECIDED]
        await approve(penstock, made.id, decided)
        first = await penstock.run_until_done(made.id)
        print(f"{first.status}: {first.successful_rows} successful, {first.failed_rows} failed")
        for error in (await penstock.operations.errors(made.id)).items:
            print(f"  row {error.row} at {error.step_name}: {error.error_type}, {error.message}")

        retry = await penstock.operations.retry(made.id)
        print(f"{retry.submitted} rows run again from the step that failed")
        for device in (*UNDECIDED, *OUT_OF_REACH):
            await penstock.signals.complete(made.id, f"carrier-{imei(device)}", payload={"by": "night desk"})
        done = await penstock.run_until_done(made.id)
        print(f"{done.status}: {done.successful_rows} successful, {done.failed_rows} failed")


if __name__ == "__main__":
    asyncio.run(main())
