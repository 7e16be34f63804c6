"""The oracle: every rule over the evidence of one operation, each yielding what it finds amiss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .attempt_rules import (
    attempts_are_written_ahead,
    cancel_binds,
    effect_keys_are_stable,
    no_step_starts_after_its_completion_was_seen,
    once_is_once,
    steps_come_in_order,
)
from .edit_rules import accepted_edits_are_kept
from .facts import Evidence
from .row_rules import rows_are_conserved, verdicts_follow_from_the_data, waits_last_their_time
from .signal_rules import (
    acknowledged_signals_are_kept,
    consumed_signals_ended_a_wait,
    delivered_signals_are_consumed,
    lower_rows_are_served_first,
    no_wait_times_out_beside_a_signal,
    signals_are_heard_at_once,
)

__all__ = ["RULES", "Finding", "judge"]

Rule = Callable[[Evidence], Iterator[str]]

RULES: Sequence[Rule] = (
    rows_are_conserved,
    verdicts_follow_from_the_data,
    waits_last_their_time,
    no_step_starts_after_its_completion_was_seen,
    attempts_are_written_ahead,
    once_is_once,
    effect_keys_are_stable,
    steps_come_in_order,
    cancel_binds,
    accepted_edits_are_kept,
    acknowledged_signals_are_kept,
    consumed_signals_ended_a_wait,
    delivered_signals_are_consumed,
    lower_rows_are_served_first,
    no_wait_times_out_beside_a_signal,
    signals_are_heard_at_once,
)


@dataclass(frozen=True)
class Finding:
    """Something that must not be."""

    rule: str
    message: str
    operation: str | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}" + (f" (operation {self.operation})" if self.operation else "")


def judge(evidence: Evidence) -> list[Finding]:
    """Every rule's findings."""
    return [Finding(rule.__name__, message, evidence.operation.id) for rule in RULES for message in rule(evidence)]
