"""Handlers of an application's own: told of what happens to operations, at least once, and never in its way."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from parcel_post import Parcel, SendParcels, post_office, sent

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.errors import DeclarationError
from penstock.operations.telling import RowFailure
from penstock.outbox.model import OperationEvent
from penstock.outbox.threads import HUNG_MAX

pytestmark = pytest.mark.databases("sqlite")


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    async def on_created(self, event: OperationEvent) -> None:
        self.heard.append(("created", event.operation_name))

    def on_status_changed(self, event: OperationEvent) -> None:
        self.heard.append((event.event, (event.previous_status, event.status)))

    async def on_completed(self, event: OperationEvent) -> None:
        self.heard.append(("completed", event.data["successfulRows"]))

    async def on_failed(self, event: OperationEvent) -> None:
        self.heard.append(("failed", event.cause))

    async def on_row_failed(self, failure: RowFailure) -> None:
        self.heard.append(("row", (failure.row.row, failure.row.message)))


async def test_each_handler_hears_of_its_moves(database_url: str, tmp_path: Path):
    listener = Listener()
    async with post_office(database_url, tmp_path, handlers={"audit": listener}) as e:
        await sent(e, {"name": "a"}, {"name": "b", "weight": 0})
        await e.deliver()
        assert listener.heard == [
            ("created", "send-parcels"),
            ("picked_up", ("Pending", "Validating")),
            ("validated", ("Validating", "Running")),
            ("finished_with_errors", ("Running", "CompletedWithErrors")),
            ("row", (2, "it weighs nothing")),
            ("completed", 1),
        ]
        listener.heard.clear()
        await e.run(SendParcels, [{"name": "a", "weight": 0}], options={"max_errors": 0})
        await e.deliver()
        assert [name for name, _ in listener.heard[-3:]] == ["failed", "row", "failed"]


async def test_many_failed_rows_are_told_of_a_hundred_at_a_time(database_url: str, tmp_path: Path):
    class Rows:
        def __init__(self) -> None:
            self.rows: list[int] = []

        async def on_row_failed(self, failure: RowFailure) -> None:
            self.rows.append(failure.row.row)

    rows = Rows()
    async with post_office(database_url, tmp_path, handlers={"rows": rows}) as e:
        await sent(e, *({"name": "a", "weight": 0} for _ in range(250)))
        assert await e.deliver() == 3
    assert rows.rows == list(range(1, 251))


async def test_a_handler_that_is_disabled_in_the_middle_of_many_rows_is_called_for_no_others(
    database_url: str, tmp_path: Path
):
    class Rows:
        rows = 0

        async def on_row_failed(self, failure: RowFailure) -> None:
            self.rows += 1
            if self.rows == 1:
                await e.penstock.webhooks.disable("handler:rows")

    rows = Rows()
    async with post_office(database_url, tmp_path, handlers={"rows": rows}) as e:
        await sent(e, *({"name": "a", "weight": 0} for _ in range(150)))
        assert await e.deliver() == 1
        assert rows.rows == 100
        assert (await e.penstock.webhooks.counts())["Pending"] == 0
        assert await e.penstock.events.verify() == []


async def test_a_pipeline_hears_of_its_own_operations_with_what_its_lifespan_opened(database_url: str, tmp_path: Path):
    heard: list[str] = []

    @operation("weigh")
    class Weigh(Pipeline[Parcel]):
        @step
        async def weigh(self, parcel: Parcel, ctx: Context) -> None:
            if not parcel.weight:
                raise StepFailed("nothing")

        def on_completed(self, event: OperationEvent) -> None:
            heard.append(event.operation_name)

    async with post_office(database_url, tmp_path, SendParcels, Weigh) as e:
        await sent(e)
        await sent(e, of=Weigh)
        await e.deliver()
    assert heard == ["weigh"]


async def test_a_handler_that_raises_is_called_again_and_the_operation_is_not_harmed(database_url: str, tmp_path: Path):
    class Clumsy:
        calls: list[str] = []  # noqa: RUF012

        async def on_completed(self, event: OperationEvent) -> None:
            self.calls.append(event.id)
            if len(self.calls) == 1:
                raise ZeroDivisionError("oops")

    async with post_office(database_url, tmp_path, handlers={"clumsy": Clumsy()}) as e:
        made = await sent(e)
        await e.deliver()
        (shown,) = (await e.penstock.webhooks.deliveries(subscription="handler:clumsy")).items
        assert (shown.state, shown.error) == ("Pending", "ZeroDivisionError: oops")
        assert (await e.operations.get(made)).status == "Completed"
        e.clock.advance(6)
        await e.deliver()
        assert (await e.penstock.webhooks.delivery(shown.id)).state == "Processed"
    assert len(Clumsy.calls) == 2
    assert len(set(Clumsy.calls)) == 1


async def test_a_handler_that_hangs_is_given_up_and_one_on_a_thread_is_not_called_without_end(
    database_url: str, tmp_path: Path
):
    release, calls = threading.Event(), list[str]()

    class Hanging:
        def on_created(self, event: OperationEvent) -> None:
            calls.append(event.id)
            release.wait()

        async def on_completed(self, event: OperationEvent) -> None:
            await asyncio.Event().wait()

    async with post_office(database_url, tmp_path, handlers={"hanging": Hanging()}, handler_timeout_s=0.05) as e:
        for _ in range(HUNG_MAX + 2):
            await sent(e)
        await e.deliver()
        shown = (await e.penstock.webhooks.deliveries(type="penstock.operation.created")).items
        assert [each.error for each in shown] == ["it took too long, and was given up"] * (HUNG_MAX + 2)
        assert len(calls) == HUNG_MAX
        release.set()


async def test_what_happened_while_no_process_had_the_handler_is_told_when_one_has_it(
    database_url: str, tmp_path: Path
):
    listener = Listener()
    async with post_office(database_url, tmp_path, handlers={"audit": listener}):
        pass
    async with post_office(database_url, tmp_path) as e:
        await sent(e)
        assert await e.deliver() == 0
    async with post_office(database_url, tmp_path, handlers={"audit": listener}) as e:
        await e.deliver()
    assert [name for name, _ in listener.heard] == ["created", "picked_up", "validated", "finished", "completed"]


async def test_a_handler_that_is_declared_wrongly_is_refused(database_url: str, tmp_path: Path):
    class Nothing:
        pass

    class Wrong:
        def on_failed(self) -> None: ...

    for owner, why in ((Nothing(), "has no handler"), (Wrong(), "must take one argument")):
        with pytest.raises(DeclarationError, match=why):
            async with post_office(database_url, tmp_path, handlers={"x": owner}):
                pass
    with pytest.raises(DeclarationError, match=r"on_failed.*takes \(self, event\)"):

        @operation("wrong")
        class WrongPipeline(Pipeline[Parcel]):
            @step
            async def send(self, parcel: Parcel, ctx: Context) -> None: ...

            async def on_failed(self) -> None: ...
