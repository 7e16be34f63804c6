"""A small model of what must come out of an operation, whatever the chunks, the order and the interruptions.

It knows nothing of chunks, groups, ledgers or time: a row goes through its steps, each of which does what the
scenario says, and the verdict follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

from penstock.operations.model import RowView

__all__ = ["ALWAYS", "Interruption", "Row", "Scenario", "Step", "counters", "difference", "expected", "scenarios"]

ALWAYS = 99  # errors of a step that never succeeds
SKIP = -1

Kind = Literal["valid", "invalid", "broken"]
Outcome = tuple[str, int, int | None]  # state, attempts, output


@dataclass(frozen=True)
class Step:
    """One step: `manner` is how it is written, `raises` whether a batch raises for its bad rows or answers for them."""

    manner: Literal["async", "sync", "batch"]
    retries: int = 0
    is_at_most_once: bool = False
    is_barrier: bool = False
    size: int = 1
    raises: bool = False


@dataclass(frozen=True)
class Row:
    """One row: what validation makes of it, and for each step how many errors come before success, or SKIP."""

    kind: Kind
    errors: tuple[int, ...]


@dataclass(frozen=True)
class Interruption:
    """The worker ends at the n-th call of user code: it is killed or stopped, inside the call or just after."""

    call: int
    kills: bool
    is_inside: bool


@dataclass(frozen=True)
class Scenario:
    """A whole operation and the circumstances it runs under."""

    steps: tuple[Step, ...]
    rows: tuple[Row, ...]
    chunk_rows: int
    flush_rows: int
    max_row_concurrency: int
    track_row_data: bool
    interruptions: tuple[Interruption, ...]


def output_of(row: int, step: int) -> int:
    """What a step returns for a row."""
    return row * 100 + step


def expected(scenario: Scenario, number: int) -> tuple[str, list[Outcome]]:
    """The verdict on a row, and the outcome of each step it reaches."""
    row = scenario.rows[number - 1]
    if row.kind != "valid":
        return ("Invalid" if row.kind == "invalid" else "Failed"), []
    outcomes: list[Outcome] = []
    for index, (step, errors) in enumerate(zip(scenario.steps, row.errors, strict=True)):
        if errors == SKIP:
            outcomes.append(("Skipped", 1, None))
        elif errors > step.retries:
            return "Failed", [*outcomes, ("Failed", step.retries + 1, None)]
        else:
            outcomes.append(("Completed", errors + 1, output_of(number, index)))
    return "Completed", outcomes


def counters(verdicts: Sequence[str]) -> dict[str, int | str]:
    """The operation's counters and status as they follow from its rows' verdicts."""
    tally = Counter(verdicts)
    failed = tally["Invalid"] + tally["Failed"]
    return {
        "status": "CompletedWithErrors" if failed else "Completed",
        "total_rows": len(verdicts),
        "rows_read": len(verdicts),
        "processed_rows": len(verdicts),
        "successful_rows": tally["Completed"],
        "failed_rows": failed,
        "invalid_rows": tally["Invalid"],
        "timed_out_rows": 0,
        "cancelled_rows": 0,
        "waiting_rows": 0,
    }


def difference(scenario: Scenario, view: RowView) -> str | None:
    """How a row differs from what the model says, or None.

    A worker that died may leave an at-most-once step in doubt; then the row ends there, and only there.
    """
    verdict, outcomes = expected(scenario, view.number)
    steps = [step for step in view.steps if step.index >= 0]
    found = [(step.state, step.attempt, step.output) for step in steps]
    if scenario.interruptions and steps and steps[-1].error_type == "InDoubt":
        last = len(steps) - 1
        if not scenario.steps[last].is_at_most_once:
            return f"row {view.number} is in doubt at step {last}, which may be repeated"
        verdict, outcomes = "Failed", [*outcomes[:last], found[-1]]
    if view.state != verdict:
        return f"row {view.number} is {view.state}, not {verdict}: {found}"
    if [(state, output) for state, _, output in found] != [(state, output) for state, _, output in outcomes]:
        return f"row {view.number} went {found}, not {outcomes}"
    # Lost attempts count, and a batch that raises counts for its innocent rows: the model does not follow these.
    exact = [not scenario.interruptions and not (step.manner == "batch" and step.raises) for step in scenario.steps]
    for index, ((_, attempt, _), (_, wanted, _)) in enumerate(zip(found, outcomes, strict=True)):
        if attempt != wanted if exact[index] else attempt < 1:
            return f"row {view.number} took {attempt} attempts for step {index}, not {wanted}"
    return None


@st.composite
def step_specs(draw: st.DrawFn) -> Step:
    manner = draw(st.sampled_from(("async", "sync", "batch")))
    raises = manner == "batch" and draw(st.booleans())
    is_at_most_once = not raises and draw(st.integers(0, 3)) == 0
    return Step(
        manner=manner,
        retries=0 if is_at_most_once else draw(st.integers(0, 2)),
        is_at_most_once=is_at_most_once,
        is_barrier=draw(st.booleans()),
        size=draw(st.integers(1, 5)) if manner == "batch" else 1,
        raises=raises,
    )


@st.composite
def row_specs(draw: st.DrawFn, steps: Sequence[Step], *, are_lost: bool) -> Row:
    kind: Kind = draw(st.sampled_from(("valid",) * 6 + ("invalid", "broken")))
    errors = []
    for step in steps:
        drawn = draw(st.sampled_from((0, 0, 0, 0, 1, 2, 3, ALWAYS, SKIP)))
        # An error may be lost with its worker or be shared by a batch: then only "in time" and "never" are certain.
        is_certain = not are_lost and not step.raises
        errors.append(ALWAYS if drawn > step.retries and not is_certain else drawn)
    return Row(kind, tuple(errors))


interruptions = st.builds(Interruption, call=st.integers(1, 40), kills=st.booleans(), is_inside=st.booleans())


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A random operation under random circumstances."""
    steps = tuple(draw(st.lists(step_specs(), min_size=1, max_size=4)))
    ends = tuple(draw(st.lists(interruptions, max_size=2)))
    rows = tuple(draw(st.lists(row_specs(steps, are_lost=bool(ends)), max_size=14)))
    return Scenario(
        steps=steps,
        rows=rows,
        chunk_rows=draw(st.integers(1, 7)),
        flush_rows=draw(st.integers(1, 7)),
        max_row_concurrency=draw(st.integers(1, 4)),
        track_row_data=draw(st.booleans()),
        interruptions=tuple(sorted(ends, key=lambda end: end.call)),
    )
