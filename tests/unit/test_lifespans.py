"""Lifespans are entered once per process, by a task of their own, and left at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Self

import pytest
from patience import HANG_S
from pydantic import BaseModel
from timers import turn

from penstock import Context, Pipeline, operation, step
from penstock.errors import OperationUnready
from penstock.operations import rows
from penstock.operations.rows.lifespans import Lifespans
from penstock.pipeline import Definition, definition_of


class Item(BaseModel):
    id: int


class Stage:
    """What a lifespan did; it waits before it is through, and fails, when told to."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.left: list[Any] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: BaseException | None = None
        stage = self

        @operation("staged")
        class Staged(Pipeline[Item]):
            @classmethod
            @asynccontextmanager
            async def lifespan(cls) -> AsyncGenerator[Self]:
                stage.entered.append(asyncio.current_task())
                await stage.open.wait()
                if stage.error is not None:
                    raise stage.error
                try:
                    yield cls()
                finally:
                    stage.left.append(asyncio.current_task())

            @step
            async def go(self, row: Item, ctx: Context) -> None: ...

        self.definition: Definition = definition_of(Staged)


async def test_all_who_ask_at_once_get_the_same_pipeline():
    stage, lifespans = Stage(), Lifespans()
    stage.open.clear()
    asking = [asyncio.create_task(lifespans.pipeline(stage.definition)) for _ in range(3)]
    await asyncio.sleep(0)
    stage.open.set()
    found = await asyncio.gather(*asking, lifespans.pipeline(stage.definition.with_overrides({"max_errors": 5})))
    assert len({id(pipeline) for pipeline in found}) == 1
    assert len(stage.entered) == 1
    await lifespans.close()


async def test_a_lifespan_is_left_by_the_task_that_entered_it():
    stage, lifespans = Stage(), Lifespans()
    await asyncio.create_task(_ask(lifespans, stage))
    assert stage.left == []
    await asyncio.create_task(lifespans.close())
    assert stage.left == stage.entered
    assert asyncio.current_task() not in stage.entered


async def _ask(lifespans: Lifespans, stage: Stage) -> object:
    return await lifespans.pipeline(stage.definition)


@pytest.mark.parametrize("error", [ConnectionError("refused"), SystemExit("no"), TimeoutError()])
async def test_a_lifespan_that_raises_is_named_and_tried_again_when_asked(error: BaseException):
    stage, lifespans = Stage(), Lifespans()
    stage.error = error
    with pytest.raises(OperationUnready, match=f"'staged'.*{type(error).__name__}: {error}") as raised:
        await lifespans.pipeline(stage.definition)
    assert raised.value.__cause__ is error
    stage.error = None
    assert await lifespans.pipeline(stage.definition)
    assert len(stage.entered) == 2
    await lifespans.close()
    assert len(stage.left) == 1


async def test_whoever_is_cancelled_leaves_the_lifespan_to_the_others():
    stage, lifespans = Stage(), Lifespans()
    stage.open.clear()
    hasty, patient = (asyncio.create_task(lifespans.pipeline(stage.definition)) for _ in range(2))
    await asyncio.sleep(0)
    hasty.cancel()
    await asyncio.sleep(0)
    stage.open.set()
    assert await patient
    assert len(stage.entered) == 1
    await lifespans.close()


async def test_a_lifespan_that_is_being_entered_is_cut_off_at_the_end():
    stage, lifespans = Stage(), Lifespans()
    stage.open.clear()
    asking = asyncio.create_task(lifespans.pipeline(stage.definition))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await lifespans.close()
    with pytest.raises(OperationUnready):
        await asking


async def test_every_lifespan_is_left_even_if_one_raises():
    lifespans, left = Lifespans(), []

    def kind(name: str) -> Definition:
        @operation(name)
        class Kind(Pipeline[Item]):
            @classmethod
            @asynccontextmanager
            async def lifespan(cls) -> AsyncGenerator[Self]:
                yield cls()
                left.append(name)
                raise OSError(f"{name} does not close")

            @step
            async def go(self, row: Item, ctx: Context) -> None: ...

        return definition_of(Kind)

    for name in ("one", "two"):
        await lifespans.pipeline(kind(name))
    with pytest.raises(OSError, match="one does not close"):
        await lifespans.close()
    assert left == ["one", "two"]


@pytest.mark.parametrize("is_quiet", [False, True], ids=["with an error", "quietly"])
async def test_a_lifespan_that_ends_by_itself_is_entered_again_when_somebody_asks(
    caplog: pytest.LogCaptureFixture, is_quiet: bool
):
    broken, entered = asyncio.Event(), []

    async def break_down() -> None:
        await broken.wait()
        raise OSError("the connection is gone")

    @operation("grouped")
    class Grouped(Pipeline[Item]):
        @classmethod
        @asynccontextmanager
        async def lifespan(cls) -> AsyncGenerator[Self]:
            with suppress(ExceptionGroup) if is_quiet else nullcontext():
                async with asyncio.TaskGroup() as group:
                    group.create_task(break_down())
                    made = cls()
                    entered.append(made)
                    yield made

        @step
        async def go(self, row: Item, ctx: Context) -> None: ...

    lifespans, definition = Lifespans(), definition_of(Grouped)
    first = await lifespans.pipeline(definition)
    assert lifespans.has(definition, first)
    broken.set()
    await asyncio.wait([lifespans._lifespans["grouped"].task])
    assert not lifespans.has(definition, first)
    broken.clear()
    second = await lifespans.pipeline(definition)
    assert entered == [first, second]
    assert lifespans.has(definition, second)
    assert "the lifespan of operation 'grouped' ended by itself" in caplog.text
    broken.set()
    with nullcontext() if is_quiet else pytest.raises(ExceptionGroup, match="unhandled errors"):
        await lifespans.close()


class Slow:
    """A lifespan that fails when told to, and takes until `gone` to be left."""

    def __init__(self) -> None:
        self.broken, self.leaving, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.alive = self.alive_most = 0
        slow = self

        @operation("slow")
        class Kind(Pipeline[Item]):
            @classmethod
            @asynccontextmanager
            async def lifespan(cls) -> AsyncGenerator[Self]:
                slow.alive += 1
                slow.alive_most = max(slow.alive, slow.alive_most)
                try:
                    with suppress(ExceptionGroup):
                        async with asyncio.TaskGroup() as group:
                            failing = group.create_task(slow.fail())
                            yield cls()
                            failing.cancel()
                finally:
                    slow.leaving.set()
                    await slow.gone.wait()
                    slow.alive -= 1

            @step
            async def go(self, row: Item, ctx: Context) -> None: ...

        self.definition: Definition = definition_of(Kind)

    async def fail(self) -> None:
        await self.broken.wait()
        raise OSError("the connection is gone")


async def test_a_pipeline_whose_lifespan_has_failed_is_not_used_while_it_is_left_and_the_next_one_waits():
    slow, lifespans = Slow(), Lifespans()
    first = await lifespans.pipeline(slow.definition)
    slow.broken.set()
    await slow.leaving.wait()
    assert not lifespans.has(slow.definition, first)
    slow.broken.clear()
    asking = asyncio.create_task(lifespans.pipeline(slow.definition))
    await turn()
    assert not asking.done()
    slow.gone.set()
    second = await asking
    assert second is not first
    assert lifespans.has(slow.definition, second)
    await lifespans.close()
    assert slow.alive_most == 1


async def test_a_lifespan_that_is_never_left_is_cut_off_at_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rows.lifespans, "LEAVE_S", 0.01, raising=False)
    slow, stage, lifespans = Slow(), Stage(), Lifespans()
    await lifespans.pipeline(slow.definition)
    await lifespans.pipeline(stage.definition)
    async with asyncio.timeout(HANG_S):
        await lifespans.close()
    assert stage.left == stage.entered
    assert "the lifespan of operation 'slow' is not left after 0.01 s" in caplog.text
