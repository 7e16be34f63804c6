"""The desk at which a chunk is worked on: its rows parsed, its outcomes noted, nothing written yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import Fault, StepFailed
from penstock.operations.decide import Verdict, cut, judge
from penstock.operations.execution import Execution
from penstock.operations.held import Held
from penstock.operations.ledger import STATES, Ledger
from penstock.operations.states import ROW_STEP
from penstock.pipeline import Context

__all__ = ["Desk", "WrongLength", "faults_json"]


class WrongLength(StepFailed):
    """A batch step answered for another number of rows than it was given; a retry would not help."""


class Desk:
    """One held chunk with its rows parsed; every outcome of a row is noted here, on the loop's thread."""

    __slots__ = ("_with_outputs", "execution", "held", "keys", "ledger", "rows")

    def __init__(self, execution: Execution, held: Held, raws: Sequence[Any]) -> None:
        self.execution, self.held = execution, held
        self.ledger: Ledger = held.ledger
        self.rows: list[Any] = [None] * held.row_count
        self.keys: Sequence[str | None] = [None] * held.row_count
        self._parse(raws)
        self._with_outputs = any(track.outputs for track in self.ledger.tracks)

    def _parse(self, raws: Sequence[Any]) -> None:
        """Validated rows from stored ones; a row that no longer fits its model (it was changed) fails by itself."""
        parse, rejects, rows = self.execution.parse, self.execution.definition.row.rejects, self.rows
        for i in self.unfinished():
            try:
                rows[i] = parse(raws[i])
            except rejects as error:
                faults = self.execution.definition.row.faults(error)
                self._settle(
                    i, Verdict("failed", "Processing", cut(f"the stored row no longer fits its model: {faults[0]}"))
                )
        key = self.execution.definition.row.key
        if self.execution.definition.row_key is not None:
            self.keys = [None if row is None else key(row) for row in rows]

    def unfinished(self) -> Sequence[int]:
        """The rows without a verdict."""
        return self.ledger.unfinished()

    # --- what a job tells

    def outputs(self, i: int) -> dict[int, bytes]:
        """The stored outputs of a row's steps, by step index."""
        if not self._with_outputs:
            return {}
        return {n: track.outputs[i] for n, track in enumerate(self.ledger.tracks, -1) if i in track.outputs}

    def keep_output(self, i: int, place: int, ctx: Context[Any], output: bytes | None) -> None:
        """A step returned something."""
        if output is not None:
            self.ledger.tracks[place].outputs[i] = ctx.stored[place - 1] = output
            self._with_outputs = True

    def left_segment(self, i: int, place: int) -> None:
        """Row i is through a segment; at the end of its span nothing of it is in flight."""
        ledger = self.ledger
        if place in self.execution.boundaries:
            ledger.in_flight[i] = 0
        else:
            ledger.tracks[place].attempt[i] += 1
        if self.held.stories:
            self._close_stories(i, place)

    def raised(self, i: int, place: int, error: BaseException, began: int, *, isolate: bool = False) -> None:
        """An attempt of row i's step raised."""
        options = self.execution.steps[place - 1].plan.options
        story = self.held.told(i, place)
        now = self.execution.clock.now_us()
        verdict = judge(
            error,
            options,
            errors=story.errors if story else 0,
            postponed_s=(now - story.put_off_since) / 1e6 if story and story.put_off_since else 0.0,
            jitter=self.execution.jitter,
        )
        if isolate and verdict.event != "postponed":
            verdict = Verdict("postponed", verdict.error_type, verdict.message, spends_retry=True)
        track, base = self.ledger.tracks[place], self.ledger.base
        track.began[i], track.took[i] = began - base, max(1, now - began)
        self._settle(i, verdict)

    def raised_by_batch(self, rows: Sequence[int], place: int, error: BaseException, began: int) -> None:
        """A batch raised: that is every row's, and past the retries the batch is halved to find the guilty ones."""
        options = self.execution.steps[place - 1].plan.options
        is_divisible = (
            len(rows) > 1
            and options.isolate
            and options.delivery != "at_most_once"
            and not isinstance(error, WrongLength)
        )
        for i in rows:
            self.raised(i, place, error, began, isolate=is_divisible)

    def errors(self, i: int, place: int) -> int:
        """How many attempts of this step have spent a retry."""
        story = self.held.told(i, place)
        return story.errors if story else 0

    # --- the record of a row that did not simply succeed

    def _settle(self, i: int, verdict: Verdict) -> None:
        """Note a verdict on row i's current step: its state, its record, and a line in history when it goes on."""
        ledger, held, now = self.ledger, self.held, self.execution.clock.now_us()
        place = ledger.at[i]
        state = ROW_STEP.after("Running", verdict.event)
        ledger.tracks[place].state[i] = STATES.index(state)
        ledger.in_flight[i] = 0
        story = held.story(i, place, state, now)
        story.row_key = self._stored_key(i)
        story.tell(verdict.error_type, verdict.message)
        story.errors += int(verdict.spends_retry)
        story.due_at = None
        if verdict.event == "postponed":
            story.due_at = now + round(verdict.after * 1e6)
            if not verdict.spends_retry and story.put_off_since is None:
                story.put_off_since = now
            held.note(story, "postponed")

    def _close_stories(self, i: int, place: int) -> None:
        """Steps that now ended well may have a record of earlier trouble: bring it up to date."""
        for done in range(1, place):
            story = self.held.told(i, done)
            if story is not None and story.state == "Pending":
                story = self.held.story(
                    i, done, STATES[self.ledger.tracks[done].state[i]], self.execution.clock.now_us()
                )
                story.due_at = None
                story.tell(None, None)

    def _stored_key(self, i: int) -> str | None:
        key = self.keys[i]
        return None if key is None else cut(key, 200)


def faults_json(faults: Sequence[Fault]) -> list[list[str | None]]:
    """Faults as stored with a record."""
    return [[fault.field, cut(fault.message)] for fault in faults]
