"""Signals that come at once are taken in together, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, Wall, a_moment, approvals, clean, papers, signals_of, states

from penstock import failpoints
from penstock.db.database import CommitUnknown
from penstock.errors import Conflict, InvalidInput, NoSuchWait, Unavailable
from penstock.operations.inbox import signal_batching
from penstock.operations.inbox.signal_batching import Receipt, SignalBatcher
from penstock.operations.model import Operation
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=2)
WAIT, DONE = "WaitingForCompletion", "Completed"


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


class Queue:
    """Calls that lie in the slot together, because one before them is being served."""

    def __init__(self, e: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._e, self._patch, self._wall = e, monkeypatch, Wall()

    async def of(self, *calls: Coroutine[Any, Any, Receipt]) -> list[asyncio.Task[Receipt]]:
        """These calls, queued in this order behind one that cannot be answered yet."""
        db, glance = self._e.penstock.db, self._e.penstock.db.glance

        async def held_up(work: Any) -> Any:
            await self._wall.stop()
            return await glance(work)

        self._patch.setattr(db, "glance", held_up)
        first = asyncio.create_task(self._e.penstock.signals.complete("nobody's", "key"))
        first.add_done_callback(lambda done: done.exception())
        await self._wall.reached.wait()
        tasks = [asyncio.create_task(call) for call in calls]
        await a_moment()
        return tasks

    async def answers(self, tasks: Iterable[asyncio.Task[Receipt]]) -> list[Any]:
        """Let them in, and hear what each is told."""
        self._wall.gone.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def queue(e: Engine, monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(e, monkeypatch)


async def parked(e: Engine, rows: int) -> Operation:
    made = await e.create("approvals", papers(rows))
    await e.work_until_idle()
    return made


async def test_signals_for_many_chunks_wake_them_all(e):
    made = await parked(e, 9)
    post = e.penstock.signals.complete
    receipts = await asyncio.gather(*(post(made.id, f"paper-p{n}") for n in range(1, 10)))
    assert [(receipt.outcome, receipt.row) for receipt in receipts] == [("delivered", n) for n in range(1, 10)]
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 9


async def test_each_signal_gets_its_own_answer(e):
    made, over = await parked(e, 3), await parked(e, 1)
    await e.operations.cancel(over.id)
    post = e.penstock.signals.complete
    answers = await asyncio.gather(
        post(made.id, "paper-p1"),
        post(made.id, "nonsense"),
        post(made.id, "paper-p9"),
        post("no such operation", "paper-p1"),
        post(made.id, "paper-p2", id="twice"),
        post(over.id, "paper-p1"),
        post(made.id, "paper-p2", id="twice"),
        return_exceptions=True,
    )
    kinds = [answer.outcome if isinstance(answer, Receipt) else type(answer) for answer in answers]
    assert kinds == ["delivered", NoSuchWait, "stored", NoSuchWait, "delivered", NoSuchWait, "duplicate"]
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE, WAIT]


async def test_a_signal_that_is_taken_before_anybody_is_woken_is_called_delivered(e, monkeypatch):
    made = await parked(e, 2)
    await e.penstock.signals.complete(made.id, "paper-p1")
    wake = SignalBatcher._wake

    async def wake_late(batcher: SignalBatcher, *given: Any) -> bool:
        await e.work_until_idle()  # the owner of the chunk was woken by the first signal, and takes both
        return await wake(batcher, *given)

    monkeypatch.setattr(SignalBatcher, "_wake", wake_late)
    receipt = await e.penstock.signals.complete(made.id, "paper-p2")
    assert (receipt.outcome, receipt.row, receipt.step) == ("delivered", 2, "approval")


async def test_signals_whose_commit_was_not_answered_are_stored_once(e):
    made = await parked(e, 4)
    lost: list[str] = []

    def lose_the_answer(point: str) -> None:
        if point == "signal:after" and not lost:
            lost.append(point)
            raise CommitUnknown("the connection died at COMMIT")

    post = e.penstock.signals.complete
    with failpoints.armed(lose_the_answer):
        await asyncio.gather(*(post(made.id, f"paper-p{n}") for n in range(1, 5)))
    assert lost
    assert len(await signals_of(e, made)) == 4
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 4


async def test_a_caller_that_is_cancelled_leaves_nobody_waiting(e):
    made = await parked(e, 6)
    calls = [asyncio.create_task(e.penstock.signals.complete(made.id, f"paper-p{n}")) for n in range(1, 7)]
    await asyncio.sleep(0)
    calls[0].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert [answer.outcome for answer in answers[1:] if isinstance(answer, Receipt)] == ["delivered"] * 5
    await e.work_until_idle()
    assert (await states(e, made))[1:] == [DONE] * 5


def lost_once(error: Exception, at: str) -> Any:
    """Raises at the first hit of a point."""
    hits: list[str] = []

    def lose(point: str) -> None:
        if point == at and not hits:
            hits.append(point)
            raise error

    return failpoints.armed(lose)


async def test_signals_with_ids_whose_commit_was_not_answered_are_delivered_and_no_repeats(e, queue):
    made = await parked(e, 4)
    post = e.penstock.signals.complete
    calls = await queue.of(*(post(made.id, f"paper-p{n}", id=f"hook-{n}") for n in range(1, 5)))
    with lost_once(CommitUnknown("the connection died at COMMIT"), "signal:after"):
        receipts = await queue.answers(calls)
    assert [(receipt.outcome, receipt.row) for receipt in receipts] == [("delivered", n) for n in range(1, 5)]
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 4


# --- callers that go away


async def test_a_call_that_is_cancelled_while_it_queues_takes_its_signal_back(e, queue):
    made = await parked(e, 4)
    post = e.penstock.signals.complete
    calls = await queue.of(*(post(made.id, f"paper-p{n}") for n in range(1, 5)))
    for call in calls[1:3]:
        call.cancel()
    answers = await queue.answers(calls)
    assert [type(answer) for answer in answers] == [
        Receipt, asyncio.CancelledError, asyncio.CancelledError, Receipt,
    ]  # fmt: skip
    assert [signal.key for signal in await signals_of(e, made)] == ["paper-p1", "paper-p4"]


async def test_however_many_calls_are_cancelled_the_next_one_is_served(e, queue):
    made = await parked(e, 1)
    post = e.penstock.signals.complete
    gone = await queue.of(*(post(made.id, "paper-p1", payload=n) for n in range(signal_batching.BATCH_MAX + 50)))
    for call in gone:
        call.cancel()
    await a_moment()
    (receipt,) = await queue.answers([asyncio.create_task(post(made.id, "paper-p1", payload="kept"))])
    assert (receipt.outcome, receipt.row) == ("delivered", 1)
    assert [signal.payload for signal in await signals_of(e, made)] == ["kept"]


async def test_a_call_is_served_by_itself_however_many_lie_before_it(e, queue, monkeypatch):
    monkeypatch.setattr(signal_batching, "BATCH_MAX", 2)
    made = await parked(e, 6)
    post = e.penstock.signals.complete
    calls = await queue.of(*(post(made.id, f"paper-p{n}") for n in range(1, 7)))
    calls[0].cancel()
    with lost_once(Unavailable("away"), "signal:before"):
        _, failed, *others = await queue.answers(calls)
    assert isinstance(failed, Unavailable)
    assert [(receipt.outcome, receipt.row) for receipt in others] == [("delivered", n) for n in range(3, 7)]


async def test_a_signal_that_another_could_not_store_is_not_stored_once_its_caller_has_gone(e, queue):
    made = await parked(e, 3)
    post = e.penstock.signals.complete
    calls = await queue.of(*(post(made.id, f"paper-p{n}") for n in range(1, 4)))

    def fail(point: str) -> None:
        if point == "signal:before":
            calls[1].get_loop().call_soon_threadsafe(calls[1].cancel)
            raise Unavailable("away")

    with failpoints.armed(fail):
        answers = await queue.answers(calls[:2])
    assert [type(answer) for answer in answers] == [Unavailable, asyncio.CancelledError]
    await asyncio.gather(*calls, return_exceptions=True)
    assert "paper-p2" not in [signal.key for signal in await signals_of(e, made)]


# --- what cannot be stored, and what contradicts itself

UNSTORABLE: list[tuple[Mapping[str, Any], str]] = [
    ({"id": "x" * 201}, "the id of a signal has 1 to 200 characters; found 201"),
    ({"id": ""}, "the id of a signal has 1 to 200 characters; found 0"),
    ({"id": "x\0"}, "the id of a signal cannot be stored: text contains NUL"),
    ({"id": "x\ud800"}, "the id of a signal cannot be stored: text contains a lone surrogate"),
    ({"id": 7}, "the id of a signal is text; found 7"),
    ({"actor": "x" * 201}, "the actor of a signal has 1 to 200 characters; found 201"),
    ({"actor": "x\0"}, "the actor of a signal cannot be stored"),
    ({"key": "paper-\0"}, "a signal key cannot be stored: text contains NUL"),
    ({"key": "paper-\ud800"}, "a signal key cannot be stored: text contains a lone surrogate"),
    ({"key": "paper-" + "x" * 500}, "a signal key has 1 to 500 characters; found 506"),
    ({"row": 0}, "the row of a signal is a number from 1 to 9223372036854775807; found 0"),
    ({"row": 2**63}, "the row of a signal is a number from 1"),
    ({"row": "1"}, "the row of a signal is a number from 1 to 9223372036854775807; found '1'"),
    ({"payload": "x\ud800"}, "the payload cannot be written as JSON"),
    ({"payload": object()}, "the payload cannot be written as JSON"),
]


@pytest.mark.parametrize("wrong, why", UNSTORABLE)
async def test_a_signal_that_cannot_be_stored_is_refused_and_hurts_no_other(e, queue, wrong, why):
    made = await parked(e, 2)
    post = e.penstock.signals.complete
    calls = await queue.of(
        post(made.id, "paper-p1"),
        post(made.id, **{"key": "paper-p1", **wrong}),
        post(made.id, "paper-p2", id="hook-2"),
    )
    first, refused, last = await queue.answers(calls)
    assert isinstance(refused, InvalidInput)
    assert why in str(refused)
    assert (first.outcome, last.outcome) == ("delivered", "delivered")
    assert [signal.key for signal in await signals_of(e, made)] == ["paper-p1", "paper-p2"]


@pytest.mark.parametrize("operation", ["x" * 37, "x\0", "\ud800", "", "{id}\0"])
async def test_an_operation_that_cannot_exist_is_unknown_like_any_other(e, queue, operation):
    made = await parked(e, 1)
    post = e.penstock.signals.complete
    calls = await queue.of(post(operation.format(id=made.id), "paper-p1"), post(made.id, "paper-p1"))
    refused, receipt = await queue.answers(calls)
    assert isinstance(refused, NoSuchWait)
    assert receipt.outcome == "delivered"


@pytest.mark.parametrize("number", ["0", "9" * 19, "9" * 5000])
async def test_a_scoped_key_without_a_row_number_is_taken_as_it_is(e, number):
    made = await parked(e, 1)
    with pytest.raises((NoSuchWait, InvalidInput)):
        await e.penstock.signals.complete(made.id, f"{made.id}:paper-p1:{number}")
    assert await e.penstock.signals.waiting(made.id, key=f"{made.id}:paper-p1:0") == []


async def test_what_the_database_refuses_is_the_matter_of_its_caller_alone(e, queue, monkeypatch):
    monkeypatch.setattr(signal_batching, "refuse_unstorable", lambda posting: None)
    made = await parked(e, 3)
    post = e.penstock.signals.complete
    calls = await queue.of(
        post(made.id, "paper-p1"), post(made.id, "paper-p2", actor="x" * 201), post(made.id, "paper-p3")
    )
    first, refused, last = await queue.answers(calls)
    assert isinstance(refused, InvalidInput)
    assert (first.outcome, last.outcome) == ("delivered", "delivered")
    await e.work_until_idle()
    assert await states(e, made) == [DONE, WAIT, DONE]


@pytest.mark.parametrize("moment", ["glance", "transaction"])
async def test_a_signal_whose_caller_has_gone_is_not_stored_beside_one_that_the_database_refuses(
    e, queue, monkeypatch, moment
):
    """Its caller goes while the batch is on its way; the database refuses the batch, and each is tried by itself."""
    monkeypatch.setattr(signal_batching, "refuse_unstorable", lambda posting: None)
    made = await parked(e, 4)
    post, store, tried = e.penstock.signals.complete, SignalBatcher._store, list[list[str]]()
    calls = await queue.of(
        post(made.id, "paper-p1"),
        post(made.id, "paper-p2"),
        post(made.id, "paper-p3", actor="x" * 201),
        post(made.id, "paper-p4"),
    )
    ask = getattr(e.penstock.db, moment)

    async def store_aloud(batcher: SignalBatcher, subject: Any, batch: Any) -> bool:
        tried.append([pending.key for pending in batch])
        return await store(batcher, subject, batch)

    async def leave_first(*given: Any) -> Any:
        calls[1].cancel()
        await a_moment()
        return await ask(*given)

    monkeypatch.setattr(SignalBatcher, "_store", store_aloud)
    monkeypatch.setattr(e.penstock.db, moment, leave_first)
    first, gone, refused, last = await queue.answers(calls)
    assert len(tried[0]) > 1
    assert tried[1] == ["paper-p1"]
    assert isinstance(gone, asyncio.CancelledError)
    assert isinstance(refused, InvalidInput)
    assert (first.outcome, last.outcome) == ("delivered", "delivered")
    assert [signal.key for signal in await signals_of(e, made)] == ["paper-p1", "paper-p4"]


OTHERWISE: list[tuple[Mapping[str, Any], str]] = [
    ({"key": "paper-p2"}, "cannot be used for key 'paper-p2', completed"),
    ({"row": 1}, "cannot be used for key 'paper-p1', row 1, completed"),
    ({"message": "no"}, "cannot be used for key 'paper-p1', failed"),
]


def posted(e: Engine, made: Operation, key: str = "paper-p1", **given: Any) -> Coroutine[Any, Any, Receipt]:
    signals = e.penstock.signals
    return (signals.fail if "message" in given else signals.complete)(made.id, key, id="hook", **given)


@pytest.mark.parametrize("other, why", OTHERWISE)
async def test_an_id_that_was_used_for_something_else_is_a_conflict_that_says_for_what(e, other, why):
    made = await parked(e, 2)
    await posted(e, made)
    for _ in ("while it waits", "when it is over"):
        with pytest.raises(Conflict, match="signal id 'hook' was used for key 'paper-p1', completed") as refused:
            await posted(e, made, **other)
        assert why in str(refused.value)
        await e.work_until_idle()
    assert len(await signals_of(e, made)) == 1
    assert (await posted(e, made)).outcome == "duplicate"


@pytest.mark.parametrize("other, why", OTHERWISE)
async def test_an_id_that_comes_twice_at_once_for_different_things_is_a_conflict_for_the_second(e, queue, other, why):
    made = await parked(e, 2)
    first, refused, repeat = await queue.answers(
        await queue.of(posted(e, made), posted(e, made, **other), posted(e, made))
    )
    assert isinstance(refused, Conflict)
    assert why in str(refused)
    assert (first.outcome, repeat.outcome, repeat.id) == ("delivered", "duplicate", first.id)
    assert len(await signals_of(e, made)) == 1


async def test_a_signal_that_was_stored_before_the_operation_stopped_is_not_called_too_late(e, monkeypatch):
    made = await parked(e, 2)
    transaction, lost = e.penstock.db.transaction, list[str]()

    async def lose_the_answer(work: Any, point: str) -> Any:
        answer = await transaction(work, point)
        if point == "signal" and not lost:
            lost.append(point)
            await e.operations.cancel(made.id)
            raise CommitUnknown("the connection died at COMMIT")
        return answer

    monkeypatch.setattr(e.penstock.db, "transaction", lose_the_answer)
    receipt = await e.penstock.signals.complete(made.id, "paper-p1")
    assert [(s.token, s.consumed_row) for s in await signals_of(e, made)] == [(receipt.id, 1)]


async def test_a_signal_that_is_stored_is_acknowledged_though_another_of_its_batch_cannot_be(e, queue, monkeypatch):
    one, two = await parked(e, 1), await parked(e, 1)
    store = SignalBatcher._store

    async def locked(self: Any, subject: Any, batch: Any) -> bool:
        if subject.id == two.id and refusals:
            raise refusals.pop()
        return await store(self, subject, batch)

    refusals = [Unavailable("the operation's row is locked")]
    monkeypatch.setattr(SignalBatcher, "_store", locked)
    post = e.penstock.signals.complete
    answers = await queue.answers(await queue.of(post(one.id, "paper-p1"), post(two.id, "paper-p1")))
    assert [answer.outcome for answer in answers] == ["delivered", "delivered"]
    assert len(await signals_of(e, one)) == len(await signals_of(e, two)) == 1
