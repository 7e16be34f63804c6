"""Triggers: what each refusal says, what guards see, and what happens when somebody else is faster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from orders import opened, text

from penstock import Penstock
from penstock.clock import ManualClock
from penstock.db.database import CommitUnknown, Database
from penstock.errors import Conflict, DeclarationError, InvalidInput, NotFound
from penstock.failpoints import armed
from penstock.lifecycles import Deny, GuardContext, InstanceFlag, Lifecycles, LogFlag, Trigger


@pytest.fixture
async def penstock(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Penstock]:
    async with opened(database_url, tmp_path, clock) as made:
        await made.lifecycles.import_text(text())
        yield made


@pytest.fixture
def lifecycles(penstock: Penstock) -> Lifecycles:
    return penstock.lifecycles


async def paid(lifecycles: Lifecycles, **data: Any) -> str:
    guid = (await lifecycles.start("order", data=data)).guid
    assert (await lifecycles.trigger(guid, "pay")).applied
    return guid


@pytest.mark.covers("LC-007", "LC-014")
async def test_each_refusal_is_a_value_that_says_why(lifecycles: Lifecycles):
    guid = await paid(lifecycles, stock=0)
    refused = {event: await lifecycles.trigger(guid, event) for event in ("fly", "release", "SHIP")}
    assert (refused["fly"].kind, refused["fly"].reason) == (
        "unknown_event",
        "Order 1.0.0 has no such event; it has: pay, ship, hold, release, remind, lose",
    )
    assert (refused["release"].kind, refused["release"].allowed) == ("not_allowed", ("ship", "hold"))
    assert (refused["SHIP"].kind, refused["SHIP"].event, refused["SHIP"].reason) == (
        "guard_denied", "ship", "nothing in stock",
    )  # fmt: skip
    await lifecycles.suspend(guid)
    assert (await lifecycles.trigger(guid, "hold")).kind == "suspended"
    await lifecycles.fail(guid)
    ended = await lifecycles.trigger(guid, "hold")
    assert (ended.kind, ended.reason) == ("terminal", "Failed; `reopen` comes first")
    with pytest.raises(Conflict, match="terminal: Failed"):
        ended.or_raise()
    with pytest.raises(NotFound, match="no instance has the guid"):
        await lifecycles.trigger("00000000-0000-7000-8000-000000000000", "pay")
    assert [entry.kind for entry in (await lifecycles.log(guid)).items] == ["started", "moved", "suspended", "failed"]


@pytest.mark.covers("LC-099")
async def test_an_end_completes_an_instance_and_reopening_lets_it_go_on(lifecycles: Lifecycles):
    guid = await paid(lifecycles)
    assert (await lifecycles.trigger(guid, "ship")).target == "Shipped"
    assert (await lifecycles.get(guid)).flags == InstanceFlag.COMPLETED
    assert (await lifecycles.trigger(guid, "hold")).kind == "terminal"
    assert (await lifecycles.reopen(guid)).flags == InstanceFlag.ACTIVE
    assert (await lifecycles.trigger(guid, "hold")).kind == "not_allowed"
    forced = await lifecycles.force(guid, "paid", cause="the parcel came back", actor="ana")
    assert (forced.state, forced.flags) == ("Paid", InstanceFlag.ACTIVE)
    last = await lifecycles.latest(guid)
    assert last is not None
    assert (last.kind, last.source, last.target, last.event, last.flags, last.cause) == (
        "forced", "Shipped", "Paid", None, LogFlag.MANUAL, "the parcel came back",
    )  # fmt: skip
    assert (await lifecycles.force(guid, "LOST", cause="fire")).flags == InstanceFlag.COMPLETED
    with pytest.raises(NotFound, match="has no state 'Nowhere'"):
        await lifecycles.force(guid, "Nowhere", cause="none")
    with pytest.raises(InvalidInput, match="say why"):
        await lifecycles.force(guid, "Paid", cause=" ")
    assert (await lifecycles.verify())[1] == []


async def test_what_can_be_done_is_asked_without_moving(lifecycles: Lifecycles):
    guid = await paid(lifecycles, stock=0)
    assert (await lifecycles.can(guid, "hold")).kind == "allowed"
    assert str(await lifecycles.can(guid, "ship")).endswith("guard denied: nothing in stock")
    assert (await lifecycles.can(guid, "pay")).allowed == ("ship", "hold")
    offered = [
        (each.event, each.target, each.is_allowed, each.reason) for each in await lifecycles.available_events(guid)
    ]
    assert offered == [("ship", "Shipped", False, "nothing in stock"), ("hold", "Held", True, None)]
    await lifecycles.suspend(guid)
    assert not any(each.is_allowed for each in await lifecycles.available_events(guid))
    assert (await lifecycles.get(guid)).revision == 3


@pytest.mark.covers("LC-097", "LC-131", "LC-042")
async def test_guards_are_found_by_name_see_the_request_and_deny_when_they_raise(
    database_url: str, tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    seen: list[GuardContext] = []
    answers: dict[str, Any] = {}

    async def in_stock(context: GuardContext) -> Any:
        seen.append(context)
        await asyncio.sleep(0)
        answer = answers["now"]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with opened(database_url, tmp_path, clock, {"in_stock": in_stock}) as penstock:
        lifecycles = penstock.lifecycles
        await lifecycles.import_text(text())
        guid = await paid(lifecycles, shelf="B7")
        reasons = {}
        for answer in (Deny("counted twice"), False, None, OSError("no line")):
            answers["now"] = answer
            outcome = await lifecycles.trigger(guid, "ship", actor="ana", metadata={"box": 3}, correlation="req-9")
            assert outcome.kind == "guard_denied"
            reasons[str(answer)] = outcome.reason
        assert reasons == {
            "Deny(reason='counted twice')": "counted twice",
            "False": "guard 'in_stock' denied it",
            "None": "guard 'in_stock' answered None; it answers True, False or Deny(reason)",
            "no line": "guard 'in_stock' raised OSError: no line",
        }
        assert "guard in_stock raised" in caplog.text
        answers["now"] = True
        assert (await lifecycles.trigger(guid, "ship")).applied
    first = seen[0]
    assert (first.event, first.source, first.target, first.actor) == ("ship", "Paid", "Shipped", "ana")
    assert (first.data, first.metadata, first.correlation) == ({"shelf": "B7"}, {"box": 3}, "req-9")
    async with opened(database_url, tmp_path, clock, {"other": in_stock}) as penstock:
        guid = await paid(penstock.lifecycles)
        denied = await penstock.lifecycles.trigger(guid, "ship")
    assert denied.reason == "no guard 'in_stock' is registered; registered are: other"


async def test_a_condition_over_the_data_decides_like_a_guard(lifecycles: Lifecycles):
    lines = [{"from": "A", "event": "go", "to": "B", "when": {"field": "total", "op": "<=", "value": 100}}]
    states = [{"name": "A", "is_initial": True}, {"name": "B", "is_final": True}]
    await lifecycles.import_text(text(definition={"name": "Quote"}, states=states, transitions=lines))
    guid = (await lifecycles.start("quote", data={"total": 101})).guid
    assert (await lifecycles.trigger(guid, "go")).reason == "total is 101, wanted <= 100"
    await lifecycles.change_data(guid, {"total": None})
    assert (await lifecycles.trigger(guid, "go")).reason == "total is missing, wanted <= 100"
    await lifecycles.change_data(guid, {"total": 100})
    assert (await lifecycles.trigger(guid, "go")).applied


async def test_a_guard_that_saw_other_data_than_is_committed_decides_nothing(
    database_url: str, tmp_path: Path, clock: ManualClock
):
    asked = 0

    async def in_stock(context: GuardContext) -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:  # somebody sells the last one while we look at it
            await penstock.lifecycles.change_data(context.instance.guid, {"stock": 0})
        return bool(context.data["stock"])

    async with opened(database_url, tmp_path, clock, {"in_stock": in_stock}) as penstock:
        lifecycles = penstock.lifecycles
        await lifecycles.import_text(text())
        guid = await paid(lifecycles, stock=1)
        outcome = await lifecycles.trigger(guid, "ship")
        assert (outcome.kind, outcome.reason) == ("conflict", "it was changed by somebody else since revision 2")
        asked = 0
        await lifecycles.change_data(guid, {"stock": 1})
        assert (await lifecycles.trigger(guid, "ship", retries=1)).kind == "guard_denied"
        assert (await lifecycles.get(guid)).state == "Paid"


async def test_triggers_at_once_that_are_tried_again_are_all_applied_one_by_one(lifecycles: Lifecycles):
    guid = await paid(lifecycles)
    await lifecycles.trigger(guid, "hold")
    asked = [lifecycles.trigger(guid, "remind", retries=50, actor=f"actor {n}") for n in range(12)]
    assert {outcome.kind for outcome in await asyncio.gather(*asked)} == {"applied"}
    log = (await lifecycles.log(guid)).items
    assert [entry.sequence for entry in log] == list(range(1, 16))
    assert len({entry.actor for entry in log if entry.event == "remind"}) == 12
    with pytest.raises(InvalidInput, match="retries is -1"):
        await lifecycles.trigger(guid, "remind", retries=-1)


async def test_a_request_key_stands_for_one_event(lifecycles: Lifecycles):
    guid = (await lifecycles.start("order")).guid
    assert (await lifecycles.trigger(guid, "pay", request_key="req-1")).kind == "applied"
    assert (await lifecycles.trigger(guid, "PAY", request_key="req-1")).kind == "duplicate"
    why = "its request key 'req-1' was used for 'pay'; another request needs another key"
    misused = await lifecycles.trigger(guid, "hold", request_key="req-1", retries=2)
    assert (misused.kind, misused.reason, misused.applied) == ("conflict", why, False)
    (in_bulk,) = await lifecycles.trigger_many([Trigger(guid, "hold", request_key="req-1")])
    assert (in_bulk.kind, in_bulk.reason) == ("conflict", why)
    assert (await lifecycles.get(guid)).state == "Paid"


async def test_flags_changed_at_once_are_all_kept(lifecycles: Lifecycles):
    guid = (await lifecycles.start("order")).guid
    await asyncio.gather(*(getattr(lifecycles, name)(guid) for name in ("suspend", "complete", "fail", "archive")))
    assert int((await lifecycles.get(guid)).flags) == 31
    assert (await lifecycles.verify())[1] == []


async def test_data_is_merged_logged_and_kept_from_those_who_looked_at_an_older_revision(lifecycles: Lifecycles):
    started = await lifecycles.start("order", data={"a": 1, "b": {"c": 2}})
    changed = await lifecycles.change_data(started.guid, {"a": None, "d": [3]}, actor="ana", cause="typo")
    assert changed.data == {"b": {"c": 2}, "d": [3]}
    last = await lifecycles.latest(started.guid)
    assert last is not None
    assert (last.kind, last.metadata, last.actor, last.cause) == (
        "data_changed", {"changes": {"a": None, "d": [3]}}, "ana", "typo",
    )  # fmt: skip
    assert (await lifecycles.change_data(started.guid, {"d": [3]})).revision == changed.revision
    with pytest.raises(Conflict, match="is at revision 2, not at 1 any more"):
        await lifecycles.change_data(started.guid, {"d": 4}, revision=1)
    with pytest.raises(InvalidInput, match="data is JSON"):
        await lifecycles.change_data(started.guid, {"d": object()})
    with pytest.raises(InvalidInput, match="metadata is JSON"):
        await lifecycles.trigger(started.guid, "pay", metadata={"d": object()})


async def test_a_change_of_data_leaves_values_that_are_null_alone(lifecycles: Lifecycles):
    guid = (await lifecycles.start("order", data={"gift": None})).guid
    assert (await lifecycles.change_data(guid, {"total": 3})).data == {"gift": None, "total": 3}
    assert (await lifecycles.change_data(guid, {"gift": None})).data == {"total": 3}


async def test_a_guard_that_is_no_function_is_refused_when_the_engine_opens(database_url: str, tmp_path: Path):
    wrong: Any = {"in_stock": True}
    with pytest.raises(DeclarationError, match="guards are functions; these are not: 'in_stock'"):
        async with opened(database_url, tmp_path, guards=wrong):
            pass


async def test_a_move_that_was_tried_again_says_so_in_the_log(database_url: str, tmp_path: Path, clock: ManualClock):
    asked = 0

    async def in_stock(context: GuardContext) -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            await penstock.lifecycles.change_data(context.instance.guid, {"seen": True})
        return True

    async with opened(database_url, tmp_path, clock, {"in_stock": in_stock}) as penstock:
        await penstock.lifecycles.import_text(text())
        guid = await paid(penstock.lifecycles)
        assert (await penstock.lifecycles.trigger(guid, "ship", retries=1)).applied
        last = await penstock.lifecycles.latest(guid)
        assert last is not None
        assert last.flags == LogFlag.RETRY


@pytest.mark.covers("I-29")
@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_crash_around_the_commit_leaves_all_of_a_move_or_nothing(penstock: Penstock, point: str):
    lifecycles = penstock.lifecycles
    await penstock.deliveries.register("billing")
    guid = (await lifecycles.start("order")).guid

    class Crash(BaseException):
        pass

    def crash(name: str) -> None:
        if name == f"lifecycle_trigger:{point}":
            raise Crash

    with armed(crash), pytest.raises(Crash):
        await lifecycles.trigger(guid, "pay", request_key="req-1")
    happened = point == "after"
    assert (await lifecycles.get(guid)).state == ("Paid" if happened else "New")
    assert len((await lifecycles.log(guid)).items) == 1 + happened
    assert len((await penstock.deliveries.list()).items) == int(happened)
    again = await lifecycles.trigger(guid, "pay", request_key="req-1")
    assert (again.kind, again.sequence) == ("duplicate" if happened else "applied", 2)


@pytest.mark.parametrize("happened", [False, True])
async def test_a_commit_whose_answer_is_lost_is_settled_by_asking_again_with_the_key(
    lifecycles: Lifecycles, monkeypatch: pytest.MonkeyPatch, happened: bool
):
    guid = (await lifecycles.start("order")).guid
    whole = Database._whole

    async def lossy(db: Database, work: Any, name: str, tx: Any) -> Any:
        if happened:
            await whole(db, work, name, tx)
        raise CommitUnknown("the connection died at COMMIT")

    monkeypatch.setattr(Database, "_whole", lossy)
    with pytest.raises(CommitUnknown):
        await lifecycles.trigger(guid, "pay", request_key="req-1")
    monkeypatch.setattr(Database, "_whole", whole)
    again = await lifecycles.trigger(guid, "pay", request_key="req-1")
    assert (again.kind, again.target) == ("duplicate" if happened else "applied", "Paid")


@pytest.mark.covers("LC-111", "LC-112")
async def test_refusals_are_logged_without_sql_and_everything_is_counted(
    lifecycles: Lifecycles, caplog: pytest.LogCaptureFixture
):
    guid = (await lifecycles.start("order")).guid
    with caplog.at_level(logging.INFO, "penstock.lifecycles"):
        await lifecycles.trigger(guid, "ship", actor="ana", correlation="req-7")
    assert "not allowed; it can take: pay, lose (actor ana, correlation req-7)" in caplog.text
    assert "SELECT" not in caplog.text
    await lifecycles.trigger(guid, "pay")
    await lifecycles.import_text(text())
    found = await lifecycles.metrics()
    assert found["lifecycle_transitions_total"] == {"not_allowed": 1, "applied": 1}
    assert found["lifecycle_imports_total"] == {"imported": 1, "unchanged": 1}
    assert found["lifecycle_instances"]["active"] == 1
    assert set(found) == {
        "lifecycle_transitions_total", "lifecycle_imports_total", "lifecycle_instances", "delivery_retries_total",
    }  # fmt: skip


async def test_data_changes_between_values_that_only_python_calls_equal(lifecycles: Lifecycles):
    guid = (await lifecycles.start("order", data={"paid": 1, "size": {"x": 1, "y": 2}})).guid
    for value in (1, 1.0, True):
        changed = await lifecycles.change_data(guid, {"paid": value})
        assert repr(changed.data["paid"]) == repr(value)
    same = {"paid": True, "size": {"y": 2, "x": 1}, "gone": None}
    assert (await lifecycles.change_data(guid, same)).revision == 3, "nothing changes"


async def test_an_archived_instance_says_that_it_takes_no_event_any_more(lifecycles: Lifecycles):
    guid = await paid(lifecycles)
    await lifecycles.complete(guid)
    await lifecycles.archive(guid)
    refused = await lifecycles.trigger(guid, "hold")
    expected = "Completed, archived; an archived instance takes no event any more"
    assert (refused.kind, refused.reason) == ("terminal", expected)
    await lifecycles.reopen(guid)
    refused = await lifecycles.trigger(guid, "hold")
    assert (refused.kind, refused.reason) == ("terminal", "Archived; an archived instance takes no event any more")


async def test_the_beginning_of_a_guid_that_several_share_is_told_as_such(lifecycles: Lifecycles):
    first, second = sorted([(await lifecycles.start("order")).guid for _ in range(2)])
    with pytest.raises(NotFound) as refused:
        await lifecycles.get(first[:8])
    assert str(refused.value) == (
        f"several instances have guids that begin with {first[:8]!r}; give more of it:\n  {first}\n  {second}"
    )
    assert (await lifecycles.get(first[:-1])).guid == first
    for unknown in ("ffffffff", "f" * 36, "f" * 37):
        with pytest.raises(NotFound, match="no instance has the guid"):
            await lifecycles.get(unknown)
