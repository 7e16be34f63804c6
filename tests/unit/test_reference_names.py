"""The page of names says what the documents say: each attribute is compared with the field it becomes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from test_reference_documents import page, table

from penstock import resources
from penstock.operations.model import (
    ErrorGroup,
    Event,
    FileCheck,
    HistoryEntry,
    Operation,
    RowError,
    RowView,
    StepView,
)
from penstock.operations.signals import Receipt, Unclaimed, Wait

ID = "01900000-0000-7000-8000-000000000000"
NAMES = table(page("names.md"), "thing", "Python", "JSON", "in tables")


def at(second: int) -> datetime:
    return datetime(2030, 1, 1, second=second, tzinfo=UTC)


OPERATION = Operation(
    id=ID, name="invite", status="Failed", total_rows=1, rows_read=2, successful_rows=3, failed_rows=4, invalid_rows=5,
    timed_out_rows=6, cancelled_rows=7, waiting_rows=8, generation=9, retry_count=10, error="it broke", metadata=None,
    file_name="guests.csv", file_bytes=11, file_sha256="0" * 64, created_by="ann", created_at=at(1), started_at=at(2),
    finished_at=at(3), steps=("find",), options={},
)  # fmt: skip
STEP = StepView(
    2, "find", "WaitingForCompletion", 4, at(5), at(6), output=7, error_type="StepFailure", message="no house",
    signal_key="house-7", due_at=at(8), deadline=at(9),
)  # fmt: skip
ROW = RowView(17, "Ann", "Running", 2, "find", 3, 5, (STEP,), data={"name": "Ann"}, operation_id=ID)
ERROR = RowError(17, "Ann", 2, "find", "Failed", "Timeout", "too late", (), 3, 4, at(7), data={"name": "Ann"})
HISTORY = HistoryEntry(17, 2, "find", 3, 4, "retried", "Timeout", "too late", at(7), data={"name": "Ann"})
WAIT = Wait(ID, 17, "Ann", "find", "house-7", at(5), at(9))
GROUP = ErrorGroup(2, "find", "Timeout", "too late", 6, 17)
EVENT = Event(1, ID, "Pending", "started", "Running", at(1), "ann", None)
CHECK = FileCheck("invite", (), None, None, 1, 0, (), ())
RECEIPT = Receipt("delivered", "s-1", 17, "find")
UNCLAIMED = Unclaimed("s-1", "house-7", "failed", "no", at(1))
# What each value becomes in JSON.
SHOWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "Operation": (OPERATION, resources.operation(OPERATION)),
    "RowView": (ROW, resources.row(ROW)),
    "StepView": (STEP, resources.row(ROW)["steps"][0]),
    "RowError": (ERROR, resources.error(ERROR)),
    "HistoryEntry": (HISTORY, resources.history_entry(HISTORY)),
    "Wait": (WAIT, resources.wait(WAIT)),
    "ErrorGroup": (GROUP, resources.error_group(GROUP)),
    "Event": (EVENT, resources.event(EVENT)),
    "FileCheck": (CHECK, resources.file_check(CHECK)),
    "Receipt": (RECEIPT, resources.receipt(RECEIPT)),
    "Unclaimed": (UNCLAIMED, resources.unclaimed(UNCLAIMED)),
}


@pytest.mark.parametrize(
    "attribute, field",
    [(name, re.findall(r"`(\w+)`", row[2])[0]) for row in NAMES for name in re.findall(r"`([A-Z]\w+\.\w+)`", row[1])],
)
def test_an_attribute_has_the_listed_name_in_json(attribute: str, field: str):
    kind, _, name = attribute.partition(".")
    value, document = SHOWN[kind]
    found = getattr(value, name)
    assert document[field] == (resources.instant(found) if isinstance(found, datetime) else found)


def test_a_step_names_its_wait_as_the_list_of_waits_does():
    step, wait = SHOWN["StepView"][1], SHOWN["Wait"][1]
    assert (step["key"], step["signalKey"]) == (wait["key"], wait["signalKey"]) == ("house-7", f"{ID}:house-7:17")


def test_the_history_counts_retries_under_the_same_name_as_rows_and_errors():
    assert SHOWN["HistoryEntry"][1]["retryAttempt"] == SHOWN["RowView"][1]["retryAttempt"] == 3
