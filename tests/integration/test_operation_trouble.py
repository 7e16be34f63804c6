"""One operation's trouble is its own: it is set aside and says why, and its worker goes on with the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import new_class
from typing import Any, Self

import pytest
from approvals import Wall, a_moment, at_wall, clean
from left_chunks import read_for_others
from patience import HANG_S
from pydantic import BaseModel, field_validator
from several import CALM, Item, Witness, engines, items, limited, until
from sqlalchemy import select
from stored import stored_files

from penstock import Context, Penstock, Pipeline, operation, step
from penstock.clock import ManualClock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import OperationUnready, SettingsInvalid, Unavailable
from penstock.operations.model import Operation
from penstock.operations.proof.doctor import diagnose
from penstock.operations.tables import operations
from penstock.operations.validating.sources import Pieces
from penstock.settings import Settings
from penstock.testing import Engine, engine, json_lines


class Plant:
    """An operation whose lifespan needs something that may be down, and one that needs nothing."""

    def __init__(self) -> None:
        self.is_down = False
        self.entered = self.left = 0
        self.ran: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        plant = self

        @operation("weak", row_key="id")
        class Weak(Pipeline[Item]):
            @classmethod
            @asynccontextmanager
            async def lifespan(cls) -> AsyncGenerator[Self]:
                await plant.hold.wait()
                if plant.is_down:
                    raise ConnectionError("the other side is down")
                plant.entered += 1
                yield cls()
                plant.left += 1

            def validate_row(self, row: Item, meta: None) -> None:
                if row.id < 0:
                    raise ValueError("is negative")

            @step
            async def work(self, row: Item, ctx: Context) -> None:
                plant.ran.append("weak")

        @operation("strong")
        class Strong(Pipeline[Item]):
            @step
            async def work(self, row: Item, ctx: Context) -> None:
                plant.ran.append("strong")

        self.weak, self.strong = Weak, Strong
        self.kinds = [Weak, Strong]


async def status(e: Engine, made: Operation) -> tuple[str, str | None]:
    now = await e.operations.get(made.id)
    return now.status, now.trouble


UNREADY = "operation 'weak' is not ready: its lifespan raised ConnectionError: the other side is down"


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_lifespan_that_raises_holds_up_its_own_operation_alone(database_url, tmp_path, is_read):
    plant = Plant()
    async with engines(plant.kinds, plant.kinds, url=database_url, folder=tmp_path) as (client, e):
        made = await client.create(plant.weak, items(5))
        if is_read:
            await read_for_others(client)
        other = await e.create(plant.strong, items(5))
        plant.is_down = True
        await e.work_until_idle()
        assert await status(e, other) == ("Completed", None)
        assert await status(e, made) == ("Validating" if is_read else "Pending", UNREADY)
        for _ in range(3):
            await e.advance(20)
            await e.work_until_idle()
        assert await status(e, made) == ("Validating" if is_read else "Pending", UNREADY)
        plant.is_down = False
        await e.advance(60)
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows, done.trouble) == ("Completed", 5, None)
        assert await clean(e) == []


async def test_rows_run_on_in_a_new_lifespan_when_theirs_has_ended_by_itself(database_url, tmp_path):
    broken, entered, ran_in = asyncio.Event(), [], []

    async def break_down() -> None:
        await broken.wait()
        raise OSError("the connection is gone")

    @operation("grouped")
    class Grouped(Pipeline[Item]):
        @classmethod
        @asynccontextmanager
        async def lifespan(cls):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(break_down())
                made = cls()
                entered.append(made)
                yield made
                task.cancel()

        @step.poll(every=5, timeout=60)
        async def work(self, row: Item, ctx: Context) -> None:
            ran_in.append(self)

        @work.check
        async def is_done(self, row: Item, ctx: Context) -> bool:
            ran_in.append(self)
            return len(entered) == 2

    async with engine([Grouped], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Grouped, items(1))
        await e.work_until_idle()
        broken.set()
        await a_moment()
        broken.clear()
        await e.advance(6)
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows) == ("Completed", 1)
        assert len(entered) == 2
        assert [ran_in[0], ran_in[-1]] == entered
        assert await clean(e) == []


Call = Callable[[Any, Context], threading.Event]


def on_threads(call: Call, **options: Any) -> dict[str, Any]:
    def work(self: Any, row: Item, ctx: Context) -> None:
        assert call(self, ctx).wait(HANG_S)

    return {"work": step(**options)(work)}


def one_by_one(call: Call) -> dict[str, Any]:
    async def first(self: Any, row: Item, ctx: Context) -> None:
        assert await asyncio.to_thread(call(self, ctx).wait, HANG_S)

    async def second(self: Any, row: Item, ctx: Context) -> None:
        call(self, ctx)

    return {"first": step(first), "second": step(second)}


@pytest.mark.parametrize(
    "steps",
    [partial(on_threads, timeout=HANG_S), partial(on_threads, rate=1000), one_by_one],
    ids=["waits for a thread", "waits with a rate", "has a further step"],
)
async def test_no_step_begins_on_a_pipeline_whose_lifespan_has_ended(tmp_path, steps):
    broken, begun, gone = asyncio.Event(), threading.Event(), threading.Event()
    entered, over, began_on_over = list[Any](), list[Any](), list[int]()

    def call(pipeline: Any, ctx: Context) -> threading.Event:
        """Note a call that begins; it goes on until that happens."""
        if pipeline in over:
            began_on_over.append(ctx.row_number)
        begun.set()
        return gone

    async def break_down() -> None:
        await broken.wait()
        raise OSError("the connection is gone")

    @asynccontextmanager
    async def lifespan(cls: type[Any]) -> AsyncGenerator[Any]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(break_down())
            entered.append(cls())
            try:
                yield entered[-1]
            finally:
                over.append(entered[-1])
                task.cancel()

    body = {"lifespan": classmethod(lifespan), **steps(call)}
    kind = new_class("Grouped", (Pipeline[Item],), exec_body=lambda names: names.update(body))
    grouped = operation("grouped", max_row_concurrency=4)(kind)
    async with engine([grouped], tmp_path=tmp_path, settings=Settings(sync_threads=1)) as e:
        made = await e.create(grouped, items(6))
        working = asyncio.create_task(e.work_until_idle())
        await asyncio.to_thread(begun.wait)
        await a_moment()
        broken.set()
        await a_moment()
        broken.clear()
        await e.worker.look_round()
        gone.set()
        await working
        while (done := await e.operations.get(made.id)).status != "Completed":
            await e.advance(60)
            await e.work_until_idle()
        assert (done.successful_rows, len(entered), began_on_over) == (6, 2, [])
        assert await clean(e) == []


@pytest.mark.parametrize("place", ["step", "validator"])
async def test_rows_in_hand_go_on_in_a_new_lifespan_and_never_beside_those_of_the_old(database_url, tmp_path, place):
    broken, begun, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()
    entered, ran_in, together = [], {}, [0]

    @operation("grouped")
    class Grouped(Pipeline[Item]):
        @classmethod
        @asynccontextmanager
        async def lifespan(cls):
            with suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(break_down())
                    entered.append(cls())
                    yield entered[-1]
                    task.cancel()

        async def validate_row(self, row: Item, meta: None, /) -> None:
            if place == "validator":
                await self.call(row)

        @step(concurrency=1)
        async def work(self, row: Item, ctx: Context) -> None:
            if place == "step":
                await self.call(row)

        async def call(self, row: Item) -> None:
            together[0] += 1
            assert together[0] == 1
            begun.set()
            await gate.wait()
            ran_in[row.id] = self
            together[0] -= 1

    async def break_down() -> None:
        await broken.wait()
        raise OSError("the connection is gone")

    async with engine([Grouped], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=1)) as e:
        made = await e.create(Grouped, items(3))
        working = asyncio.create_task(e.work_until_idle())
        await asyncio.wait_for(begun.wait(), HANG_S)
        broken.set()
        await a_moment()
        broken.clear()
        await e.worker.look_round()
        for _ in range(3):  # others are given back, and must not begin beside it
            await e.worker.tick()
            await a_moment()
        gate.set()
        await working
        await e.advance(120)
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows, done.trouble) == ("Completed", 3, None)
        assert [ran_in[row] for row in (2, 3)] == [entered[1]] * 2
        assert await clean(e) == []


async def test_the_first_worker_that_gets_an_operation_going_takes_its_trouble_away(database_url, tmp_path):
    plant, wall = Plant(), Wall()

    @operation("weak")
    class Held(Pipeline[Item]):
        @step
        async def work(self, row: Item, ctx: Context) -> None:
            await wall.stop()

    kinds = [plant.weak], [plant.weak], [Held]
    async with engines(*kinds, url=database_url, folder=tmp_path) as (client, weak, other):
        made = await client.create(plant.weak, items(2))
        plant.is_down = True
        await weak.work_until_idle()
        assert await status(other, made) == ("Pending", UNREADY)
        await at_wall(wall, other.work_until_idle())
        assert await status(other, made) == ("Running", None)
        wall.gone.set()
        await other.work_until_idle()
        assert await status(other, made) == ("Completed", None)


async def test_trouble_is_tried_again_less_and_less_often_and_written_once(database_url, tmp_path):
    plant = Plant()
    async with engines(plant.kinds, plant.kinds, url=database_url, folder=tmp_path) as (client, e):
        made = await client.create(plant.weak, items(1))
        plant.is_down = True
        await e.work_until_idle()
        revision = await revision_of(e, made)
        tries = []
        asked = e.worker.runtimes.get

        async def counted(number: int, *plan: Any) -> Any:
            tries.append(e.clock.monotonic())
            return await asked(number, *plan)

        e.worker.runtimes.get = counted  # type: ignore[method-assign]
        for _ in range(70):
            await e.advance(1)
            await e.work_until_idle()
        assert 5 <= len(tries) <= 7, "after 1, 2, 4, 8, 16 and 32 seconds"
        assert await revision_of(e, made) == revision


async def revision_of(e: Engine, made: Operation) -> int:
    async with e.penstock.db.read() as tx:
        return int((await tx.execute(select(operations.c.revision).where(operations.c.id == made.id))).scalar_one())


Call = Callable[[Penstock, Plant, Operation], Awaitable[object]]
CALLS: dict[str, Call] = {
    "create": lambda p, plant, made: p.operations.create(plant.weak, file=json_lines(items(1)), file_name="a.jsonl"),
    "validate": lambda p, plant, made: p.operations.validate(
        plant.weak, file=json_lines(items(1)), file_name="a.jsonl"
    ),
    "edit_row": lambda p, plant, made: p.operations.edit_row(made.id, 1, {"id": 2}),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_caller_is_told_which_operation_is_not_ready_and_why(database_url, tmp_path, call):
    plant = Plant()
    async with engines([plant.weak], [plant.weak], url=database_url, folder=tmp_path) as (one, other):
        made = await one.run(plant.weak, [{"id": -1}])
        plant.is_down = True
        with pytest.raises(OperationUnready) as raised:
            await CALLS[call](other.penstock, plant, made)
        assert str(raised.value) == UNREADY
        assert isinstance(raised.value, Unavailable)
        assert isinstance(raised.value.__cause__, ConnectionError)
        plant.is_down = False
        await CALLS[call](other.penstock, plant, made)


async def test_service_and_workers_share_one_lifespan(database_url, tmp_path):
    plant = Plant()
    async with engine([plant.weak], url=database_url, tmp_path=tmp_path) as e:
        plant.hold.clear()
        both = [asyncio.create_task(e.create(plant.weak, items(3))) for _ in range(2)]
        await asyncio.sleep(0)
        plant.hold.set()
        made = await asyncio.gather(*both)
        await e.work_until_idle()
        await e.restart()
        for each in made:
            assert await status(e, each) == ("Completed", None)
        assert (plant.entered, plant.left) == (1, 0)
    assert (plant.entered, plant.left) == (1, 1)


async def test_a_lifespan_that_takes_long_keeps_no_other_operation_waiting(database_url, tmp_path):
    """On a real clock: others begin while it is still being entered."""
    plant = Plant()
    settings = Settings(database_url=database_url, storage_url=str(tmp_path / "files"), lease_s=3600)
    async with Penstock.open(operations=plant.kinds, settings=settings) as client:
        slow = await client.operations.create(plant.weak, file=json_lines(items(2)), file_name="a.jsonl")
        other = await client.operations.create(plant.strong, file=json_lines(items(2)), file_name="a.jsonl")
    plant.hold.clear()
    stop = asyncio.Event()
    async with Penstock.open(operations=plant.kinds, settings=settings) as penstock, penstock.worker() as worker:
        running = asyncio.create_task(worker.run(stop))
        async with asyncio.timeout(HANG_S):
            assert (await penstock.operations.wait(other.id, every_s=0.01)).status == "Completed"
            assert (await penstock.operations.get(slow.id)).status == "Pending"
            plant.hold.set()
            assert (await penstock.operations.wait(slow.id, every_s=0.01)).status == "Completed"
        stop.set()
        await running


# --- files


class HiddenFile:
    """A stored file in whose place nothing can be read; `back` brings it back."""

    def __init__(self, folder: Path) -> None:
        (self.file,) = (file for file in stored_files(folder) if file.is_file())
        self._content = self.file.read_bytes()
        self.file.unlink()
        self.file.mkdir()

    def back(self) -> None:
        self.file.rmdir()
        self.file.write_bytes(self._content)


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("is_read", [False, True])
async def test_a_worker_with_another_storage_folder_breaks_nothing(database_url, tmp_path, is_empty, is_read):
    plant, clock = Plant(), ManualClock()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "files").mkdir(parents=True)
    async with (
        engine(plant.kinds, url=database_url, tmp_path=tmp_path, settings=CALM, clock=clock) as client,
        engine(plant.kinds, url=database_url, tmp_path=elsewhere, settings=CALM, clock=clock) as e,
    ):
        if not is_empty:
            assert (await e.run(plant.strong, items(5))).status == "Completed"
        made = await client.create(plant.weak, items(8))
        if is_read:
            await read_for_others(client)  # and it leaves chunks to others, who have to read the file again
        await e.work_until_idle()
        state, trouble = await status(e, made)
        assert state == "Validating"
        assert f"{elsewhere / 'files'} is not the storage folder" in str(trouble)
        assert "PENSTOCK_STORAGE_URL" in str(trouble)
        found = await diagnose(e.penstock.settings, clock)
        assert "files_are_there" in [symptom.check for symptom in found.symptoms]
        await client.advance(1)
        await client.work_until_idle()
        assert await status(client, made) == ("Completed", None)


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_server_database_without_a_shared_folder_takes_no_file_and_starts_no_worker(database_url, clock):
    plant = Plant()
    settings = Settings(database_url=database_url, storage_url="file:./files")
    async with Penstock.open(operations=plant.kinds, settings=settings, clock=clock) as penstock:
        assert (await penstock.operations.list()).items == [], "looking needs no folder"
        with pytest.raises(SettingsInvalid, match="must be an absolute folder that all processes share"):
            await penstock.operations.create(plant.strong, file=b'{"id": 1}', file_name="a.jsonl")
        with pytest.raises(SettingsInvalid, match="must be an absolute folder that all processes share"):
            async with penstock.worker():
                raise AssertionError("it must not start")
        with pytest.raises(SettingsInvalid, match="must be an absolute folder"):
            await penstock.operations.prune(datetime.now(UTC))
    found = await diagnose(settings, clock)
    assert "storage_is_named" in [symptom.check for symptom in found.symptoms]
    assert not found.is_healthy


@pytest.mark.parametrize("when", ["before reading", "after reading"])
async def test_a_file_that_cannot_be_read_holds_up_its_own_operation_alone(database_url, tmp_path, when):
    plant = Plant()
    async with engines(plant.kinds, plant.kinds, url=database_url, folder=tmp_path) as (client, e):
        made = await client.create(plant.weak, items(8))
        if when == "after reading":
            await read_for_others(client)  # and it leaves chunks to others, who have to read the file again
        hidden = HiddenFile(tmp_path)
        other = await e.create(plant.strong, items(5))
        await e.work_until_idle()
        assert await status(e, other) == ("Completed", None)
        state, trouble = await status(e, made)
        assert state == "Validating"
        assert trouble is not None
        assert "cannot be read: Is a directory" in trouble
        hidden.back()
        await e.advance(1)
        await e.work_until_idle()
        assert await status(e, made) == ("Completed", None)
        assert await clean(e) == []


async def test_a_folder_that_is_not_there_breaks_nothing(database_url, tmp_path):
    plant = Plant()
    async with engine([plant.strong], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(plant.strong, items(5))
        (tmp_path / "files").rename(tmp_path / "elsewhere")
        await e.work_until_idle()
        assert (await status(e, made))[0] == "Validating"
        (tmp_path / "elsewhere").rename(tmp_path / "files")
        await e.advance(1)
        await e.work_until_idle()
        assert await status(e, made) == ("Completed", None)


async def test_a_file_that_breaks_off_with_an_error_is_read_again_later(database_url, tmp_path, monkeypatch):
    """The disk, or the network to it, fails in the middle of a file."""
    plant, take, is_bad = Plant(), Pieces.take, True

    def take_or_fail(self: Pieces, size: int) -> Any:
        if is_bad:
            raise OSError(5, "Input/output error")
        return take(self, size)

    async with engine([plant.strong], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(plant.strong, items(5))
        monkeypatch.setattr(Pieces, "take", take_or_fail)
        await e.work_until_idle()
        assert await status(e, made) == (
            "Validating",
            "its stored file cannot be read: [Errno 5] Input/output error",
        )
        is_bad = False
        await e.advance(1)
        await e.work_until_idle()
        assert await status(e, made) == ("Completed", None)


# --- code that does not fit


@pytest.mark.parametrize("when", ["before reading", "after reading"])
async def test_a_worker_whose_code_does_not_fit_leaves_an_operation_to_others(database_url, tmp_path, when):
    ran: list[str] = []

    @operation("moving")
    class Old(Pipeline[Item]):
        @step
        async def one(self, row: Item, ctx: Context) -> None:
            ran.append("one")

    @operation("moving")
    class New(Pipeline[Item]):
        @step
        async def two(self, row: Item, ctx: Context) -> None:
            ran.append("two")

    async with engines([Old], [New], url=database_url, folder=tmp_path) as (old, new):
        made = await old.create(Old, items(6))
        if when == "after reading":
            await read_for_others(old)
        await new.work_until_idle()
        assert await status(new, made) == ("Validating" if when == "after reading" else "Pending", None)
        (misfit,) = (await new.operations.get(made.id)).misfits
        assert (misfit.worker, misfit.differences) == (new.worker.lease.id, ("step 'one' is gone", "step 'two' is new"))
        fitting = await new.run(New, items(2))
        assert (fitting.status, ran) == ("Completed", ["two", "two"]), "it goes on with what fits"
        await old.work_until_idle()
        assert await status(old, made) == ("Completed", None)
        assert ran == ["two", "two"] + ["one"] * 6


async def test_metadata_that_makes_the_code_raise_is_trouble_too(database_url, tmp_path):
    class Meta(BaseModel):
        region: str

        @field_validator("region")
        @classmethod
        def known(cls, region: str) -> str:
            if is_bad:
                raise KeyError(region)
            return region

    is_bad = False

    @operation("regional")
    class Regional(Pipeline[Item, Meta]):
        @step
        async def work(self, row: Item, ctx: Context[Meta]) -> None: ...

    async with engine([Regional], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Regional, items(2), metadata={"region": "north"})
        is_bad = True
        await e.work_until_idle()
        assert await status(e, made) == ("Pending", "KeyError: 'north'")
        is_bad = False
        await e.advance(1)
        await e.work_until_idle()
        assert await status(e, made) == ("Completed", None)


# --- the database is away for a moment


@pytest.mark.parametrize("point", ["broke", "give_back_reading", "trouble", "abandon"])
async def test_a_database_that_is_away_for_a_moment_ends_no_worker(database_url, tmp_path, monkeypatch, point):
    """While an operation is broken, given back or set aside."""
    plant = Plant()
    away = {point}
    transaction = Database.transaction

    async def sometimes(self: Database, work: Callable[[Connection], Awaitable[Any]], name: str = "") -> Any:
        if name in away:
            away.discard(name)
            raise Unavailable("away for a moment")
        return await transaction(self, work, name)

    async with engine(plant.kinds, url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(plant.weak, items(5))
        if point in ("broke", "give_back_reading"):
            for file in stored_files(tmp_path):
                file.unlink()
        else:
            hidden = HiddenFile(tmp_path)
        monkeypatch.setattr(Database, "transaction", sometimes)
        await e.work_until_idle()
        await e.worker.look_round()
        await e.work_until_idle()
        if point in ("broke", "give_back_reading"):
            assert (await status(e, made))[0] == "Failed"
        else:
            hidden.back()
            await e.advance(2)
            await e.work_until_idle()
            assert (await status(e, made))[0] == "Completed"
        assert (await e.run(plant.strong, items(2))).status == "Completed"
    assert not away or point == "abandon"


async def test_a_database_that_is_away_when_an_operation_has_too_many_errors_ends_no_worker(
    database_url, tmp_path, monkeypatch
):
    transaction, tries = Database.transaction, []

    async def sometimes(self: Database, work: Callable[[Connection], Awaitable[Any]], name: str = "") -> Any:
        if name == "broke":
            tries.append(name)
            if len(tries) == 1:
                raise Unavailable("away for a moment")
        return await transaction(self, work, name)

    @operation("fragile", max_errors=1)
    class Fragile(Pipeline[Item]):
        @step
        async def work(self, row: Item, ctx: Context) -> None:
            raise OSError("down")

    async with engine([Fragile], url=database_url, tmp_path=tmp_path, settings=CALM) as e:
        made = await e.create(Fragile, items(8))
        monkeypatch.setattr(Database, "transaction", sometimes)
        await e.work_until_idle()
        assert (await status(e, made))[0] == "Failed"
    assert len(tries) > 1


async def test_chunks_of_an_operation_that_is_set_aside_do_not_stand_in_the_way_of_others(database_url, tmp_path):
    """They are due for longest, and there are more of them than a worker looks at."""
    witness, plant = Witness(), Plant()
    kind = limited(witness, concurrency=1)
    async with engines([kind], [kind, plant.strong], url=database_url, folder=tmp_path) as (one, other):
        await one.create(kind, items(40))
        holding = asyncio.create_task(one.work_until_idle())
        await until(lambda: bool(witness.inside))
        done = await other.run(plant.strong, items(4))
        assert (done.status, len(witness.inside)) == ("Completed", 1)
        holding.cancel()
