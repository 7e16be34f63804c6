"""The five-step example: it must import, and be clean under a strict type checker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Self, reveal_type

from pydantic import BaseModel

from penstock.pipeline import Context, Pipeline, operation, step


class CarrierError(Exception): ...


class Carrier:
    async def activate(self, imei: str, key: str) -> str:
        return f"{imei}/{key}"

    async def is_pushed(self, sim: str) -> bool:
        return bool(sim)


class Device(BaseModel):
    imei: str
    model: str = "basic"


class Order(BaseModel):
    carrier: str


class Sim(BaseModel):
    number: str


@operation("device-provisioning", row_key="imei")
class DeviceProvisioning(Pipeline[Device, Order]):
    """Activate SIMs, push profiles, wait for the carrier."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncGenerator[Self]:
        yield cls(Carrier())

    def validate_metadata(self, order: Order) -> None:
        if not order.carrier:
            raise ValueError("no carrier")

    async def validate_row(self, device: Device, order: Order) -> None:
        assert device.imei.isdigit(), "imei must be digits"

    @step(retries=2, retry_on=(CarrierError,))
    async def activate_sim(self, device: Device, ctx: Context[Order]) -> Sim:
        return Sim(number=await self.carrier.activate(device.imei, ctx.effect_key))

    @step
    async def register_network(self, device: Device, ctx: Context[Order]) -> None:
        ctx.logger.info("registering with %s", ctx.meta.carrier)

    @step.poll(every=2, timeout=20)
    async def push_profile(self, device: Device, ctx: Context[Order]) -> None:
        sim = ctx.output_of(DeviceProvisioning.activate_sim)
        reveal_type(sim)  # expect: Sim

    @push_profile.check
    async def is_pushed(self, device: Device, ctx: Context[Order]) -> bool:
        return await self.carrier.is_pushed(ctx.output_of(DeviceProvisioning.activate_sim).number)

    @step.signal(key="carrier-{row.imei}", timeout=45)
    async def carrier_approval(self, device: Device, ctx: Context[Order]) -> None: ...

    @carrier_approval.when
    def needs_approval(self, device: Device, ctx: Context[Order]) -> bool:
        return device.model != "basic"

    @step(retries=1)
    def notify_customer(self, device: Device, ctx: Context[Order]) -> None:
        reveal_type(ctx.output_of(DeviceProvisioning.carrier_approval))  # expect: Any
        reveal_type(ctx.meta)  # expect: Order


async def called_directly(pipeline: DeviceProvisioning, device: Device, ctx: Context[Order]) -> Sim:
    reveal_type(pipeline.notify_customer(device, ctx))  # expect: None
    return await pipeline.activate_sim(device, ctx)
