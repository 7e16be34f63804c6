"""Code of users that raises, returns or changes what it should not: it harms its own row, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import new_class
from typing import Any, NoReturn

import msgspec
import pytest
from approvals import clean
from patience import HANG_S
from pydantic import BaseModel, field_validator
from stored import records_of

from penstock import BatchContext, Context, Pipeline, RetryLater, RowInvalid, operation, step
from penstock.errors import DeclarationError, Fault
from penstock.operations.chunk.records import StepRecord
from penstock.operations.running import chunk_progress
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.testing import engine


class Item(BaseModel):
    id: int
    name: str = "n"


class Named(BaseModel):
    id: int
    name: str


def rows(count: int = 3) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"name-{n}"} for n in range(1, count + 1)]


async def the_second_fails(kind: Any, url: str, folder: Path) -> StepRecord:
    """Run three rows of which the second goes wrong; the record of that one."""
    async with engine([kind], url=url, tmp_path=folder) as e:
        async with asyncio.timeout(HANG_S):
            done = await e.run(kind, rows())
        found = [
            record for record in await records_of(e.penstock.db, done.id) if record.state in ("Failed", "TimedOut")
        ]
        assert (done.status, done.successful_rows) == ("CompletedWithErrors", 2)
        assert {record.row for record in found} == {2}
        assert await clean(e) == []
    return found[0]


# Models and validators


def by_pydantic(error: BaseException) -> Any:
    class Careless(Item):
        @field_validator("id")
        @classmethod
        def look(cls, given: int) -> int:
            if given == 2:
                raise error
            return given

    return Careless


def by_msgspec(error: BaseException) -> Any:
    class Careless(msgspec.Struct):
        id: int
        name: str = "n"

        def __post_init__(self) -> None:
            if self.id == 2:
                raise error

    return Careless


@pytest.mark.parametrize("error", [KeyError("x"), OSError("no file"), RecursionError("deep"), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("model", [by_pydantic, by_msgspec])
@pytest.mark.covers("SM-052")
async def test_whatever_a_model_raises_is_its_rows_alone(
    database_url: str, tmp_path: Path, model: Callable[[BaseException], Any], error: BaseException
):
    @operation("modelled")
    class Modelled(Pipeline[model(error)]):  # type: ignore[misc]
        @step
        async def only(self, row: Any, ctx: Context) -> None: ...

    record = await the_second_fails(Modelled, database_url, tmp_path)
    assert (record.step, record.error_type) == (-1, "Processing")
    assert type(error).__name__ in (record.message or "")


@pytest.mark.parametrize("manner", ["await", "thread", "batch"])
async def test_a_model_that_raises_only_when_the_row_runs_fails_that_row(
    database_url: str, tmp_path: Path, manner: str
):
    seen = list[int]()

    class Fickle(Item):
        @field_validator("id")
        @classmethod
        def look(cls, given: int) -> int:
            seen.append(given)
            if seen.count(2) > 1 and given == 2:
                raise KeyError("the second time")
            return given

    async def awaited(self: Any, row: Fickle, ctx: Context) -> None: ...
    def threaded(self: Any, row: Fickle, ctx: Context) -> None: ...
    async def batched(self: Any, rows: list[Fickle], ctx: BatchContext) -> None: ...

    @operation("fickle")
    class Kind(Pipeline[Fickle]):
        only = {"await": step(awaited), "thread": step(threaded), "batch": step.batch(size=2)(batched)}[manner]

    record = await the_second_fails(Kind, database_url, tmp_path)
    assert (record.step, record.error_type) == (0, "Processing")


class Bare(RowInvalid):
    def __init__(self) -> None: ...


class Unprintable(RowInvalid):
    def __str__(self) -> str:
        raise SystemExit


OBJECTIONS: list[Callable[[], BaseException]] = [
    lambda: RowInvalid(ValueError("wrong"), field="id"),  # type: ignore[arg-type]
    lambda: RowInvalid(faults={"id": 5}),  # type: ignore[dict-item]
    lambda: RowInvalid(faults=["too bad"]),  # type: ignore[list-item]
    lambda: RowInvalid(faults=[Fault("a\x00b", "f\ud800")]),
    Bare,
    Unprintable,
]


@pytest.mark.parametrize("objection", OBJECTIONS, ids=["error", "number", "text", "unstorable", "bare", "unprintable"])
@pytest.mark.parametrize("place", ["validator", "model"])
async def test_an_objection_that_holds_what_is_no_text_makes_its_row_invalid(
    database_url: str, tmp_path: Path, objection: Callable[[], BaseException], place: str
):
    model = by_pydantic(objection()) if place == "model" else Item

    @operation("objecting")
    class Objecting(Pipeline[model]):  # type: ignore[valid-type]
        def validate_row(self, row: Any, meta: None, /) -> None:
            if row.id == 2:
                raise objection()

        @step
        async def only(self, row: Any, ctx: Context) -> None: ...

    record = await the_second_fails(Objecting, database_url, tmp_path)
    assert (record.step, record.state) == (-1, "Failed")
    assert record.message


# Steps


def unprintable(kind: type[BaseException]) -> BaseException:
    class Mute(Exception):
        def __str__(self) -> str:
            raise kind

    return Mute()


class Later(RetryLater):
    def __init__(self) -> None: ...

    @property
    def after(self) -> float:  # type: ignore[override]
        raise KeyError("seconds")


def later(after: Any) -> BaseException:
    error = RetryLater(after=1)
    error.after = after
    return error


@pytest.mark.parametrize(
    "error",
    [unprintable(SystemExit), unprintable(KeyboardInterrupt), Later(), later(10**400)],
    ids=["says nothing", "interrupts", "asks nothing", "asks too much"],
)
async def test_an_error_that_cannot_be_read_fails_its_row(database_url: str, tmp_path: Path, error: BaseException):
    @operation("unreadable")
    class Unreadable(Pipeline[Item]):
        @step
        async def only(self, row: Item, ctx: Context) -> None:
            if row.id == 2:
                raise error

    assert (await the_second_fails(Unreadable, database_url, tmp_path)).error_type == "StepFailure"


@pytest.mark.parametrize(
    "error", [StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, asyncio.CancelledError]
)
@pytest.mark.parametrize("manner", ["batch", "limited", "timed", "poll", "check"])
async def test_whatever_a_plain_function_raises_on_a_thread_is_its_rows_alone(
    database_url: str, tmp_path: Path, error: type[BaseException], manner: str
):
    def one(self: Any, row: Item, ctx: Context) -> bool:
        if row.id == 2:
            raise error
        return True

    def many(self: Any, rows: list[Item], ctx: BatchContext) -> None:
        one(self, rows[0], ctx)  # type: ignore[arg-type]

    def nothing(self: Any, row: Item, ctx: Context) -> None: ...

    def body(self: Any, row: Item, ctx: Context) -> None:
        one(self, row, ctx)

    polled = step.poll(every=1, timeout=5)(nothing if manner == "check" else body)
    polled.check(one)

    @operation("threaded")
    class Threaded(Pipeline[Item]):
        only = {
            "batch": step.batch(size=1)(many),
            "limited": step(concurrency=1)(body),
            "timed": step(timeout=HANG_S)(body),
        }.get(manner, polled)

    record = await the_second_fails(Threaded, database_url, tmp_path)
    assert record.error_type == ("Timeout" if manner == "check" else "StepFailure")


class Strange:
    def __repr__(self) -> NoReturn:
        raise LookupError("detached")


class Lazy(Sequence[Any]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: Any) -> NoReturn:
        raise LookupError("not loaded")


async def test_answers_that_cannot_be_read_fail_their_row(database_url: str, tmp_path: Path):
    @operation("lazy")
    class LazyAnswers(Pipeline[Item]):
        @step.batch(size=1)
        async def only(self, rows: list[Item], ctx: BatchContext) -> Any:
            return Lazy() if rows[0].id == 2 else None

    assert "not loaded" in ((await the_second_fails(LazyAnswers, database_url, tmp_path)).message or "")

    @operation("strange")
    class StrangeAnswers(Pipeline[Item]):
        @step.poll(every=1, timeout=3)
        async def only(self, row: Item, ctx: Context) -> None: ...

        @only.check
        async def is_done(self, row: Item, ctx: Context) -> Any:
            return Strange() if row.id == 2 else True

    assert (await the_second_fails(StrangeAnswers, database_url, tmp_path)).state == "TimedOut"


@pytest.mark.parametrize("key", ["k" * 501, "a\x00b", 7, "", None], ids=["long", "NUL", "number", "empty", "none"])
async def test_a_row_whose_signal_key_nothing_could_be_sent_to_fails_before_its_step_begins(
    database_url: str, tmp_path: Path, key: Any
):
    begun = list[int]()

    @operation("keyed")
    class Keyed(Pipeline[Item]):
        @step
        async def before(self, row: Item, ctx: Context) -> None:
            if row.id != 2:
                raise LookupError("this one does not get so far")

        @step.signal(timeout=5)
        async def only(self, row: Item, ctx: Context) -> None:
            begun.append(row.id)

        @only.key
        def named(self, row: Item, ctx: Context) -> Any:
            return key

    async with engine([Keyed], url=database_url, tmp_path=tmp_path) as e:
        async with asyncio.timeout(HANG_S):
            done = await e.run(Keyed, rows())
        [record] = [record for record in await records_of(e.penstock.db, done.id) if record.row == 2]
    assert (done.status, begun) == ("CompletedWithErrors", [])
    assert "signal key" in (record.message or "")


async def test_a_step_that_changes_its_signal_key_waits_for_the_one_it_was_given(database_url: str, tmp_path: Path):
    @operation("mutated")
    class Mutated(Pipeline[Item]):
        @step.signal(key="paper-{row.id}", timeout=60)
        async def only(self, row: Item, ctx: Context) -> None:
            ctx.signal_key = object()  # type: ignore[assignment]

    async with engine([Mutated], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Mutated, rows(2))
        await e.work_until_idle()
        assert [wait.key for wait in await e.penstock.signals.waiting(made.id)] == ["paper-1", "paper-2"]


@pytest.mark.parametrize("end", ["fails", "waits"])
async def test_a_step_may_change_its_row_and_the_key_is_the_one_that_was_read(
    database_url: str, tmp_path: Path, end: str
):
    def change(self: Any, row: Named, ctx: Context) -> None:
        del row.name
        if end == "fails" and row.id == 2:
            raise LookupError("no such name")

    async def is_done(self: Any, row: Named, ctx: Context) -> bool:
        return row.id != 2

    polled = step.poll(every=1, timeout=3)(change)
    polled.check(is_done)

    @operation("changing", row_key="name")
    class Changing(Pipeline[Named]):
        only = step(change) if end == "fails" else polled

    assert (await the_second_fails(Changing, database_url, tmp_path)).row_key == "name-2"


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_check_that_never_answers_ends_with_its_wait(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
):
    monkeypatch.setattr(chunk_progress, "LAST_CHECK_S", 0.01)
    left_s, asked, let_go = ChunkProgress.left_to_wait_s, list[int](), threading.Event()

    def left_for(progress: ChunkProgress, i: int, place: int) -> float:
        return left_s(progress, i, place) if i == 1 else HANG_S  # the others answer, on a machine as slow as it likes

    monkeypatch.setattr(ChunkProgress, "left_to_wait_s", left_for)

    async def body(self: Any, row: Item, ctx: Context) -> None: ...

    async def awaited(self: Any, row: Item, ctx: Context) -> bool:
        asked.append(row.id)
        if row.id == 2:
            await asyncio.Event().wait()
        return True

    def threaded(self: Any, row: Item, ctx: Context) -> bool:
        asked.append(row.id)
        return row.id != 2 or let_go.wait(HANG_S)

    polled = step.poll(every=1, timeout=0.02)(body)
    polled.check(awaited if is_async else threaded)

    @operation("hanging")
    class Hanging(Pipeline[Item]):
        only = polled

    try:
        record = await the_second_fails(Hanging, database_url, tmp_path)
    finally:
        let_go.set()
    assert (record.state, record.error_type) == ("TimedOut", "Timeout")
    assert sorted(set(asked)) == [1, 2, 3]


async def test_a_validator_that_finds_thousands_of_faults_in_a_row_stores_the_first(database_url: str, tmp_path: Path):
    @operation("thorough")
    class Thorough(Pipeline[Item]):
        def validate_row(self, row: Item, meta: None) -> None:
            if row.id == 2:
                raise RowInvalid(faults={f"f{n}": "wrong" for n in range(5000)})

        @step
        async def only(self, row: Item, ctx: Context) -> None: ...

    faults = (await the_second_fails(Thorough, database_url, tmp_path)).faults
    assert faults is not None
    assert (len(faults), faults[0], faults[-1]) == (50, ["f0", "wrong"], [None, "and 4,951 more faults"])


def test_more_steps_than_a_ledger_has_room_for_are_refused_at_the_declaration():
    async def nothing(self: Any, row: Item, ctx: Context) -> None: ...

    steps = {f"s{n}": step(nothing) for n in range(251)}
    declared = new_class("Long", (Pipeline[Item],), {}, lambda names: names.update(steps))
    with pytest.raises(DeclarationError, match="at most 250 steps; found 251"):
        operation("long")(declared)
