"""What can be typed back is printed as it is typed: `--rows 299,960` would name two other rows."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console, RenderableType

from penstock.cli import views, waits
from penstock.operations.inbox.signal_batching import Receipt
from penstock.operations.model import ErrorGroup, HistoryEntry, RowError, RowView, StepView
from penstock.operations.signals import Wait
from penstock.printable import per_second

AT = datetime(2030, 1, 1, tzinfo=UTC)
OPERATION = "01900000-0000-7000-8000-000000000000"
ROW = 299_960
STEP = StepView(0, "find", "Failed", 1200, None, None, error_type="StepFailure", message="it broke")
ROW_VIEW = RowView(ROW, "Ann", "Failed", 0, "find", 1500, 1, (STEP,))
SHOWN: dict[str, RenderableType] = {
    "a row": views.row(ROW_VIEW),
    "rows": views.rows([ROW_VIEW]),
    "errors": views.errors(
        [RowError(ROW, "Ann", 0, "find", "Failed", "StepFailure", "it broke", (), 1500, 1200, AT)]
    ),
    "error groups": views.error_groups([ErrorGroup(0, "find", "StepFailure", "it broke", 7, ROW)]),
    "history": views.history([HistoryEntry(ROW, 0, "find", 1500, 1200, "postponed", None, None, AT)]),
    "waits": waits.waits_table([Wait(OPERATION, ROW, "Ann", "find", "key", AT, AT)]),
    "a delivery": waits.receipt_sentence(Receipt("delivered", "id", ROW, "find")),
    "a repeated delivery": waits.receipt_sentence(Receipt("duplicate", "id", ROW, "find")),
}  # fmt: skip


@pytest.mark.parametrize("what", SHOWN)
def test_row_numbers_attempts_and_generations_are_printed_without_separators(what: str):
    text = io.StringIO()
    Console(file=text, width=400).print(SHOWN[what])
    assert str(ROW) in text.getvalue()
    assert not {"299,960", "1,200", "1,500"} & set(text.getvalue().replace("(", " ").split())


def test_counts_keep_their_separators():
    text = io.StringIO()
    Console(file=text, width=400).print(views.error_groups([ErrorGroup(0, "find", "StepFailure", "no", 12_000, 1)]))
    assert "12,000" in text.getvalue()


@pytest.mark.parametrize(
    ("rate", "shown"), [(12_345.6, "12,346 rows/s"), (10, "10 rows/s"), (0.476, "0.48 rows/s"), (3, "3 rows/s")]
)
def test_a_slow_rate_is_not_shown_as_none(rate: float, shown: str):
    assert per_second(rate) == shown
