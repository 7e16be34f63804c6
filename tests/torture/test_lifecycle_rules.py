"""The rules of the harness about lifecycles find what is amiss, and nothing where all is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.lifecycles import Delivery, InstanceFlag, LogEntry, LogFlag

from .journal import Said
from .lifecycle_callers import CONSUMER, LIFECYCLE
from .lifecycle_rules import lifecycle_faults

AT = datetime(2030, 1, 1, tzinfo=UTC)
ENTRY = LogEntry(
    "g", 2, "moved", "Idle", "begin", "Busy", InstanceFlag.ACTIVE, LogFlag.NONE, "c1", None, None, "k", None, 10000, AT
)


def told(consumer: str, entry: LogEntry = ENTRY) -> Delivery:
    return Delivery(f"m {consumer}", consumer, entry, "Pending", 0, 10, AT, None, None, AT, AT)


def said(answer: dict[str, Any] | None, key: str = "k") -> Said:
    detail = {"key": key, "guid": "g", "event": "begin"}
    return Said(t=0, at=0, who="c1", call=0, verb="trigger", operation=LIFECYCLE, detail=detail, answer=answer)


APPLIED = {"kind": "applied", "guid": "g", "sequence": 2, "source": "Idle", "event": "begin", "target": "Busy"}
REFUSED = {**APPLIED, "kind": "not_allowed", "sequence": None}
HEARD = [told(CONSUMER), told("effect:000:stumble"), told("effect:001:stumble")]


def rules(log: list[LogEntry], heard: list[Delivery], words: list[Said]) -> set[str]:
    return {rule for rule, _ in lifecycle_faults(log, heard, words)}


def test_nothing_is_found_where_all_is_well():
    timer = replace(ENTRY, sequence=3, event="go_on", source="Busy", request_key="timer:2:0", actor="timer")
    heard = [*HEARD, *(told(each.consumer, timer) for each in HEARD)]
    assert rules([ENTRY, timer], heard, [said(None), said(APPLIED), said(None, "lost"), said(REFUSED, "r")]) == set()


@pytest.mark.parametrize(
    "rule, amiss",
    [
        ("a_request_moves_once", lambda: ([ENTRY, ENTRY], HEARD, [said(APPLIED)])),
        ("moves_were_asked_for", lambda: ([ENTRY], HEARD, [])),
        ("acknowledged_moves_are_kept", lambda: ([], [], [said(APPLIED)])),
        ("refusals_move_nothing", lambda: ([ENTRY], HEARD, [said(REFUSED)])),
        ("answers_are_true", lambda: ([ENTRY], HEARD, [said({**APPLIED, "target": "Done"})])),
        ("moves_have_their_deliveries", lambda: ([ENTRY], HEARD[1:], [said(APPLIED)])),
        ("moves_have_their_deliveries", lambda: ([ENTRY], HEARD[:2], [said(APPLIED)])),
        ("moves_have_their_deliveries", lambda: ([ENTRY], [*HEARD, told(CONSUMER)], [said(APPLIED)])),
    ],
)
def test_each_fault_is_found_by_its_rule(rule: str, amiss: Callable[[], tuple[Any, Any, Any]]):
    assert rules(*amiss()) == {rule}
