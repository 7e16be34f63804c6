"""The harness itself: its faults happen as it says, and its rules see what they are for."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert, make_url, select, update

from penstock.clock import ManualClock, SystemClock
from penstock.db.database import CommitUnknown, Database
from penstock.operations.tables import chunks, operations, workers
from penstock.testing import engine

from .call_notes import Call, calls_of, idle_s_of, standstills
from .clocks import jumps
from .edit_rules import accepted_edits_are_kept
from .journal import How, Said
from .kinds import OPERATIONS, Inspection
from .proxy import COMMITS, HOST, Proxy
from .signal_rules import delivered_signals_are_consumed
from .stillness import STILL_BEATS, Stillness
from .vessels import MemoryJournal

# --- the proxy


@asynccontextmanager
async def behind_proxy(url: str, how: How) -> AsyncIterator[Database]:
    """A database whose every COMMIT is meddled with in this way."""
    address = make_url(url)
    journal = MemoryJournal("p1", [], ManualClock())
    commit = COMMITS[address.get_backend_name()]
    assert address.port is not None
    proxy = Proxy(journal, commit, address.port, random.Random(1), share=1.0, hows=(how,))
    async with await proxy.listen(0) as server:
        port = server.sockets[0].getsockname()[1]
        database = Database.connect(
            address.set(host=HOST, port=port).render_as_string(hide_password=False), clock=SystemClock(), pool_size=1
        )
        try:
            yield database
        finally:
            await database.close()
            server.close()


async def announce(tx: Any) -> None:
    await tx.execute(insert(workers).values(id="w", lease_until=1, started_at=1, host="h", process=1))


async def is_announced(database: Database) -> bool:
    async with database.read() as tx:
        return (await tx.execute(select(workers.c.id))).scalar() == "w"


@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize("how", ["unanswered", "late"])
async def test_a_commit_whose_answer_is_dropped_happens_at_once_or_late(
    database_url: str, database: Database, how: How
):
    async with behind_proxy(database_url, how) as cut:
        with pytest.raises(CommitUnknown):
            await cut.transaction(announce)
        while not await is_announced(database):
            pass


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_commit_that_is_dropped_does_not_happen(database_url: str, database: Database):
    async with behind_proxy(database_url, "unsent") as cut:
        with pytest.raises(CommitUnknown):
            await cut.transaction(announce)
        await database.transaction(announce)  # it would meet its own key


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_commit_that_is_answered_slowly_is_answered(database_url: str, database: Database):
    async with behind_proxy(database_url, "slow") as slow:
        await slow.transaction(announce)
        assert await is_announced(database)


# --- clocks

CLOCKS = """
import time
from tests.torture import clocks
from penstock.clock import SystemClock
now, ticks = time.time(), time.monotonic()
clocks.follow([(0.0, 3600.0)])
clock = SystemClock()
ahead = (time.time() - now, time.time_ns() / 1e9 - now, clock.now_us() / 1e6 - now, clock.now_ns() / 1e9 - now)
assert all(3599 < each < 3700 for each in ahead), ahead
assert time.monotonic() - ticks < 100
assert abs(clocks.TRUE_NS() / 1e9 - now) < 100
"""


def test_a_clock_that_is_off_is_off_wherever_it_is_asked_and_journals_know_better():
    subprocess.run([sys.executable, "-c", CLOCKS], cwd=Path(__file__).parents[2], check=True)


def test_a_clock_that_jumps_is_right_in_the_end():
    plan = jumps(random.Random(7), 10.0, 60.0)
    assert [moment for moment, _ in plan] == sorted(moment for moment, _ in plan)
    assert {abs(ahead) for _, ahead in plan} >= {0.0, 3600.0}
    assert plan[-1] == (60.0, 0.0)


# --- edits


def edits(*answers: tuple[str, float, float, bool]) -> list[Said]:
    """Edits of the note of row 1: the value, when it was asked for and answered, and whether it was accepted."""
    lines = []
    for call, (value, asked, told, is_accepted) in enumerate(answers):
        common: dict[str, Any] = {"at": 0, "who": "c1", "call": call, "verb": "edit", "operation": "o"}
        detail = {"rows": [1], "field": "note", "value": value}
        answer = {"answer": 1} if is_accepted else {"refusal": "Conflict: no"}
        lines += [Said(t=asked, detail=detail, **common), Said(t=told, detail=detail, **common, **answer)]
    return sorted(lines, key=lambda line: line.t)


def found_wrong(stands: str, said: list[Said], **outcomes: str) -> list[str]:
    asked = [SimpleNamespace(row=1, values=(value,), outcome=outcome) for value, outcome in outcomes.items()]
    rows = {1: SimpleNamespace(data={"note": stands})}
    evidence: Any = SimpleNamespace(rows=rows, said=said, requests=asked)
    return list(accepted_edits_are_kept(evidence))


APPLIED = "applied to 1 rows"


def test_an_edit_that_was_accepted_and_is_gone_is_seen():
    assert found_wrong("-", edits(("a", 1, 2, True)), a=APPLIED)


def test_an_edit_that_an_earlier_one_undid_is_seen():
    assert found_wrong("a", edits(("a", 1, 2, True), ("b", 3, 4, True)), a=APPLIED, b=APPLIED)


def test_an_edit_that_was_accepted_and_then_refused_is_seen():
    assert found_wrong("-", edits(("a", 1, 2, True)), a="refused: it is still on its way")


def test_a_later_edit_or_one_at_the_same_time_may_win():
    assert not found_wrong("b", edits(("a", 1, 2, True), ("b", 3, 4, True)), a=APPLIED, b=APPLIED)
    assert not found_wrong("a", edits(("a", 1, 4, True), ("b", 2, 3, True)), a=APPLIED, b=APPLIED)


def test_an_edit_that_was_refused_or_stopped_need_not_stand():
    assert not found_wrong("-", edits(("a", 1, 2, False)))
    assert not found_wrong("-", edits(("a", 1, 2, True)), a="refused: the operation was stopped")


# --- signals


def test_a_signal_that_was_answered_as_delivered_and_lies_about_is_seen():
    said = SimpleNamespace(answer={"outcome": "delivered", "id": "t1"}, detail={"key": "gate-1"})
    for is_consumed in (False, True):
        stored = SimpleNamespace(token="t1", is_consumed=is_consumed)
        evidence: Any = SimpleNamespace(signals=[stored], acknowledged=lambda *_: [said])
        assert bool(list(delivered_signals_are_consumed(evidence))) is not is_consumed


# --- what stands still


async def still_after(tmp_path: Path, beats: int, **changes: Any) -> int:
    """How many findings there are after so many heartbeats of a worker that leaves an operation alone."""
    async with engine(list(OPERATIONS), tmp_path=tmp_path) as e:
        rows = [{"id": number, "qty": 1, "gate": "open"} for number in range(1, 4)]
        await e.create(Inspection, rows)
        await e.work_until_idle()
        db = e.penstock.db
        later = {"due_at": e.clock.now_us() + changes.pop("due_in_us", 0), "is_open": 1}
        await db.transaction(lambda tx: tx.execute(update(operations).values(**{"state": "Running", **changes})))
        await db.transaction(lambda tx: tx.execute(update(chunks).values(later)))
        stillness = Stillness(e.penstock, lambda lease, name: True, tmp_path)
        for _ in range(beats):
            await db.transaction(lambda tx: tx.execute(update(workers).values(lease_until=workers.c.lease_until + 1)))
            await stillness.look()
        return len(stillness.findings)


@pytest.mark.parametrize("beats, findings", [(STILL_BEATS, 0), (STILL_BEATS + 2, 1)])
async def test_an_operation_that_nobody_moves_is_seen_after_enough_heartbeats(
    tmp_path: Path, beats: int, findings: int
):
    assert await still_after(tmp_path, beats) == findings


@pytest.mark.parametrize("reason", [{"state": "Paused"}, {"due_in_us": 5_000_000}])
async def test_an_operation_that_is_paused_or_waits_does_not_stand_still(tmp_path: Path, reason: dict[str, Any]):
    assert await still_after(tmp_path, 2 * STILL_BEATS, **reason) == 0


async def test_what_is_due_in_an_hour_stands_still(tmp_path: Path):
    assert await still_after(tmp_path, 2 * STILL_BEATS, due_in_us=3_600_000_000) == 1


# --- limits: what the notes say of an operation that stands still


def idle_s(folder: Path, *notes: str, **created: float) -> dict[str, float]:
    """How long each operation stood still, in a run that ends at 100 and whose one process died then."""
    path = folder / "w1.calls"
    path.write_text("".join(f"{line}\n" for line in notes))
    found: dict[str, list[Call]] = {}
    for made, call in calls_of(path, died_at=100.0):
        found.setdefault(made, []).append(call)
    return idle_s_of(found, created, end=100.0)


def test_the_time_before_the_first_call_of_an_operation_is_idle(tmp_path: Path):
    assert idle_s(tmp_path, "began a 1 30", a=10.0) == {"a": 20}


def test_the_time_between_two_calls_is_idle(tmp_path: Path):
    calls = ("began a 1 10", "began a 2 11", "ended a 1 12", "ended a 2 20", "began a 3 35")
    assert idle_s(tmp_path, *calls, a=10.0) == {"a": 15}


def test_the_time_from_the_last_call_until_the_next_operation_is_made_is_idle(tmp_path: Path):
    assert idle_s(tmp_path, "began a 1 10", "ended a 1 20", "began b 1 60", a=10.0, b=60.0) == {"a": 40, "b": 0}


def test_the_time_from_the_last_call_to_the_end_of_the_run_is_idle(tmp_path: Path):
    assert idle_s(tmp_path, "began a 1 10", "ended a 1 40", a=10.0) == {"a": 60}


def test_an_operation_that_is_never_called_is_idle_until_the_run_ends_whatever_comes_later(tmp_path: Path):
    assert idle_s(tmp_path, a=10.0) == {"a": 90}
    assert idle_s(tmp_path, "began a 1 105", "ended a 1 106", a=10.0) == {"a": 90}


def test_an_operation_that_stands_still_at_the_end_is_a_finding(tmp_path: Path):
    idle = idle_s(tmp_path, "began a 1 10", "ended a 1 20", "began b 1 25", "ended b 1 90", a=10.0, b=20.0)
    assert standstills(idle, 9.0) == ["operation b stood still for 10.0 s while it had work"]
    assert not standstills(idle, 10.0)
