"""The desk at which a chunk is worked on: its rows parsed, its outcomes noted, nothing written yet."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import Fault, StepFailed
from penstock.formats import Batch
from penstock.operations.held import Held, StoredRows, Story
from penstock.operations.ledger import COMPLETED, FAILED, INVALID, SKIPPED, STATES, Ledger
from penstock.operations.rules.decide import Verdict, WrongLength, cut, describe, error_text, judge
from penstock.operations.running.execution import Execution
from penstock.operations.running.gates import Refused
from penstock.operations.states import ROW_STEP
from penstock.operations.validation import Objection, faults_json
from penstock.pipeline import Context
from penstock.pipeline.rows import TOGETHER

__all__ = ["Desk", "WrongLength", "end_wait", "waited_out"]

POLL_JITTER = 0.2
NO_FAULTS: Mapping[int, list[Fault]] = {}


class Desk:
    """One held chunk with its rows parsed; every outcome of a row is noted here, on the loop's thread."""

    __slots__ = (
        "_faults",
        "execution",
        "has_moved",
        "has_outputs",
        "has_parked",
        "held",
        "ledger",
        "raws",
        "rows",
        "trouble",
        "unread",
        "unreadable",
        "was_refused",
    )

    def __init__(
        self, execution: Execution, held: Held, raws: StoredRows, faults: Mapping[int, list[Fault]] = NO_FAULTS
    ) -> None:
        self.execution, self.held, self.raws, self._faults = execution, held, raws, faults
        self.ledger: Ledger = held.ledger
        self.unread: Iterator[Batch] | None = None  # all rows, while nobody has read them
        self.rows: list[Any] = [None] * held.row_count
        self.has_parked = False  # since the last flush
        self.has_moved = False
        self.was_refused = False
        self.trouble: str | None = None  # why the operation cannot go on
        self.unreadable: OSError | None = None  # why this worker cannot read its file
        held.key_of = self.key_of
        self.refresh()

    def refresh(self) -> None:
        """Take in what came from outside: outputs that signals brought."""
        self.has_outputs = any(track.outputs for track in self.ledger.tracks)

    def parse(self, rows: Sequence[int]) -> None:
        """Rows that are about to run, from stored ones; one that no longer fits its model (it was changed) fails."""
        parsed, validated = self.rows, self.ledger.tracks[0].state
        # Not validated: it was edited, or nobody has looked at it yet, and validation comes first.
        todo = [i for i in rows if parsed[i] is None and validated[i] == COMPLETED]
        for k in range(0, len(todo), TOGETHER):
            self._parse_together(todo[k : k + TOGETHER])

    def _parse_together(self, rows: Sequence[int]) -> None:
        raws = self.raws_of(rows)
        row_type = self.execution.definition.row
        try:
            found = self.execution.parse_many(raws)
        except row_type.rejects:
            found = []
        if len(found) == len(rows):
            for i, row in zip(rows, found, strict=True):
                self.rows[i] = row
            return
        for i, given in zip(rows, raws, strict=True):
            try:
                self.rows[i] = self.execution.parse(given)
            except row_type.rejects as error:
                fault = row_type.faults(error)[0]
                self._settle(
                    i, Verdict("failed", "Processing", cut(f"the stored row no longer fits its model: {fault}"))
                )

    def raw(self, i: int) -> Any:
        """The row as it was read, or as it was edited since."""
        edited = self.held.told(i, 0)
        return self.raws[i] if edited is None or edited.data is None else edited.data

    def raws_of(self, rows: Sequence[int]) -> list[Any]:
        """The same of many rows, for less where none was edited."""
        return [*map(self.raw, rows)] if self.held.stories else self.raws.pick(rows)

    def key_of(self, i: int) -> str | None:
        """The text of the row's key, where it can be read."""
        row_type, row = self.execution.definition.row, self.rows[i]
        if row is not None:
            return row_type.key(row)
        is_known = row_type.row_key is not None and self.unread is None
        return row_type.key_of_raw(self.raw(i), self.execution.columns) if is_known else None

    @property
    def has_faults(self) -> bool:
        """Whether the reader of the file has found something wrong."""
        return bool(self._faults)

    def faults(self, i: int) -> list[Fault]:
        """What the reader of the file has found wrong with the row, unless it was edited since."""
        edited = self.held.told(i, 0)
        return self._faults.get(i, []) if edited is None or edited.data is None else []

    def refuse(self, rows: Iterable[int]) -> None:
        """These rows may not begin what they stand at: no time is left in our lease, or our part of a limit is gone."""
        self.was_refused = True
        for i in rows:
            self.ledger.stand_down((i,))
            self._close_stories(i, self.ledger.at[i])

    # --- outputs

    def outputs(self, i: int) -> dict[int, bytes]:
        """The stored outputs of a row's steps, by step index."""
        if not self.has_outputs:
            return {}
        return {n: track.outputs[i] for n, track in enumerate(self.ledger.tracks, -1) if i in track.outputs}

    def store_output(self, i: int, place: int, output: bytes) -> None:
        """A step of row i returned something."""
        self.ledger.tracks[place].outputs[i] = output
        self.has_outputs = True

    def keep_output(self, i: int, place: int, ctx: Context[Any], output: bytes | None) -> None:
        """The same, while later steps of the row may ask its context for it."""
        if output is not None:
            ctx.stored[place - 1] = output
            self.store_output(i, place, output)

    # --- what a job tells

    def left_segment(self, i: int, place: int) -> None:
        """Row i is through a segment; at the end of its span nothing of it is in flight."""
        if place in self.execution.boundaries:
            self.ledger.in_flight[i] = 0
            if place <= self.ledger.steps:
                self.ledger.lost[i] = 0  # whatever happened at a step that it got through is not held against it
        else:
            self.ledger.tracks[place].attempt[i] += 1
        if self.held.stories:
            self._close_stories(i, place)

    def raised(self, i: int, place: int, error: BaseException, began: int, *, isolate: bool = False) -> None:
        """An attempt of row i's step raised, or could not begin."""
        if isinstance(error, Refused):
            self.refuse((i,))
            return
        if self.execution.log.isEnabledFor(logging.DEBUG):
            self._log_error(i, place, error)
        now = self._time(i, place, began)
        story = self.held.told(i, place)
        verdict = judge(
            error,
            self.execution.steps[place - 1].plan.options,
            errors=story.errors if story else 0,
            postponed_s=(now - story.put_off_since) / 1e6 if story and story.put_off_since else 0.0,
            jitter=self.execution.jitter,
        )
        if isolate and verdict.event != "postponed":
            verdict = Verdict("postponed", verdict.error_type, verdict.message, spends_retry=True)
        self._close_stories(i, place)
        self._settle(i, verdict)

    def _log_error(self, i: int, place: int, error: BaseException) -> None:
        """The traceback of an attempt, which is stored nowhere."""
        run, step, row = self.execution.run, self.execution.steps[place - 1].plan.name, self.held.first_row + i
        fields = {
            "operation_id": run.operation_id,
            "operation_name": run.operation_name,
            "row_number": row,
            "step_name": step,
            "attempt": self.ledger.tracks[place].attempt[i],
        }
        if self.execution.has_secrets:
            trace = self._without_secrets(i, "".join(traceback.format_exception(error)))
            self.execution.log.debug("the attempt ended in an error\n%s", trace, extra=fields)
        else:
            self.execution.log.debug("the attempt ended in an error", exc_info=error, extra=fields)

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

    # --- validation of an edited row

    def validated(self, i: int, row: Any) -> None:
        """A row is right; if it was edited, it goes on where it failed."""
        ledger = self.ledger
        if self.held.is_raw:
            self.cleared((i,))
            return
        self.rows[i] = row
        ledger.tracks[0].state[i] = COMPLETED
        ended = (COMPLETED, SKIPPED)
        ledger.at[i] = next(p for p in range(1, ledger.steps + 1) if ledger.tracks[p].state[i] not in ended)
        ledger.in_flight[i] = 0
        self.held.story(i, 0, "Completed", self.execution.clock.now_us())
        for story in self._stories(i):
            story.row_key = self._stored_key(i)
            self.held.changed.add((story.row, story.step))

    def cleared(self, rows: Iterable[int]) -> None:
        """Rows that nobody had looked at are right, and have no story unless their validators died."""
        ledger, stories, first_row = self.ledger, self.held.stories, self.held.first_row
        validated, attempts = ledger.tracks[0].state, ledger.tracks[0].attempt
        in_flight, lost = ledger.in_flight, ledger.lost
        for i in rows:
            validated[i], ledger.at[i] = COMPLETED, 1
            attempts[i] = in_flight[i] = lost[i] = 0
            if (first_row + i, -1) in stories:
                self.held.story(i, 0, "Completed", self.execution.clock.now_us()).tell(None, None)

    def judged(self, rows: Sequence[int], objections: Mapping[int, tuple[Objection, Any]]) -> None:
        """Consecutive rows that nobody had looked at are right, but for those to which there are objections."""
        first, stop, ledger = rows[0], rows[-1] + 1, self.ledger
        track, attempts = ledger.tracks[0], [ledger.tracks[0].attempt[i] for i in objections]
        track.state[first:stop] = bytes([COMPLETED]) * len(rows)
        track.attempt[first:stop] = [0] * len(rows)
        ledger.in_flight[first:stop] = bytes(len(rows))
        for (i, (objection, raw)), attempt in zip(objections.items(), attempts, strict=True):
            track.attempt[i] = attempt
            self.rejected(i, objection, raw)

    def rejected(self, i: int, objection: Objection, raw: Any) -> None:
        """A row is wrong, or still wrong after it was edited."""
        objection = objection.without_secrets(self.execution, raw)
        is_verdict = objection.error_type == "Validation"
        self.ledger.reject(i, INVALID if is_verdict else FAILED)
        self.ledger.in_flight[i] = 0
        story = self.held.story(i, 0, "Failed", self.execution.clock.now_us())
        story.faults = faults_json(objection.faults)
        if story.row_key is None:
            key = self.execution.definition.row.key_of_raw(raw, self.execution.columns)
            story.row_key = cut(key, 200) if key else None
        story.tell(objection.error_type, describe(objection.faults))

    # --- waits

    def park(self, i: int, place: int, began: int, signal_key: str | None) -> None:
        """The step's body has run; now the row waits, holding nothing."""
        options = self.execution.steps[place - 1].plan.options
        assert options.timeout is not None
        now = self._time(i, place, began)
        self._close_stories(i, place)
        story = self._move(i, place, ROW_STEP.after("Running", "parked"), now)
        story.tell(None, None)
        story.errors = 0  # from here on it counts checks that raise
        story.since = max((s.since or 0 for s in self._stories(i)), default=0) or None
        story.signal_key = signal_key
        story.deadline = now + round(options.timeout * 1e6)
        # A poll is asked at once; a signal is heard whenever it comes.
        story.due_at = now if options.every is not None else story.deadline
        self.has_parked = True

    def check_passed(self, i: int, place: int, output: bytes | None) -> None:
        """A poll said that it is done."""
        if output is not None:
            self.store_output(i, place, output)
        self.end_wait(i, place, "poll_succeeded")

    def check_raised(self, i: int, place: int, error: BaseException) -> None:
        """A poll failed the step, or could not tell and is asked again."""
        if isinstance(error, StepFailed):
            self.end_wait(i, place, "poll_failed", "StepFailure", self._without_secrets(i, error_text(error)))
            return
        story = self.held.told(i, place)
        assert story is not None
        self.held.check_raised(story, self._without_secrets(i, error_text(error)), self.execution.clock.now_us())
        self.ask_again(i, place)

    def ask_again(self, i: int, place: int) -> None:
        """A poll said not yet: the next one is due after the interval, or it was the last."""
        story, now = self.held.told(i, place), self.execution.clock.now_us()
        every = self.execution.steps[place - 1].plan.options.every
        assert story is not None
        assert story.deadline is not None
        assert every is not None
        if now >= story.deadline:
            self.end_wait(i, place, "timed_out", "Timeout", waited_out(self.held.option(place, "timeout")))
            return
        pause = every * (1 + POLL_JITTER * self.execution.jitter.random())
        story.due_at = min(now + round(pause * 1e6), story.deadline)
        self.ledger.in_flight[i] = 0
        self.held.changed.add((story.row, story.step))

    def end_wait(
        self, i: int, place: int, event: str, error_type: str | None = None, message: str | None = None
    ) -> None:
        """Row i's wait is over."""
        end_wait(self.held, i, place, event, self.execution.clock.now_us(), error_type=error_type, message=message)

    # --- the record of a row that did not simply succeed

    def _settle(self, i: int, verdict: Verdict) -> None:
        """Note a verdict on row i's current step: its state, its record, and a line in history when it goes on."""
        held, now = self.held, self.execution.clock.now_us()
        story = self._move(i, self.ledger.at[i], ROW_STEP.after("Running", verdict.event), now)
        story.tell(verdict.error_type, self._without_secrets(i, verdict.message))
        story.errors += int(verdict.spends_retry)
        if verdict.event == "postponed":
            story.due_at = now + round(verdict.after * 1e6)
            if not verdict.spends_retry and story.put_off_since is None:
                story.put_off_since = now
            held.note(story, "postponed")

    def _without_secrets(self, i: int, message: str) -> str:
        return self.execution.without_secrets(message, self.raw(i)) if self.execution.has_secrets else message

    def _move(self, i: int, place: int, state: str, now: int) -> Story:
        self.ledger.tracks[place].state[i] = STATES.index(state)
        self.ledger.in_flight[i] = 0
        story = self.held.story(i, place, state, now)
        story.row_key = self._stored_key(i)
        story.due_at = None
        return story

    def _close_stories(self, i: int, place: int) -> None:
        """Steps that now ended well may have a record of earlier trouble: bring it up to date."""
        for done in range(1, place):
            story = self.held.told(i, done)
            if story is not None and story.state == "Pending":
                state = STATES[self.ledger.tracks[done].state[i]]
                story = self.held.story(i, done, state, self.execution.clock.now_us())
                story.due_at = None
                story.tell(None, None)

    def _stored_key(self, i: int) -> str | None:
        row = self.rows[i]
        key = None if row is None else self.execution.definition.row.key(row)
        return None if key is None else cut(key, 200)

    def _stories(self, i: int) -> list[Story]:
        row = self.held.first_row + i
        found = (self.held.stories.get((row, step)) for step in range(-1, self.ledger.steps))
        return [story for story in found if story is not None]

    def _time(self, i: int, place: int, began: int) -> int:
        now = self.execution.clock.now_us()
        track = self.ledger.tracks[place]
        track.began[i], track.took[i] = max(0, began - self.ledger.base), max(1, now - began)
        return now


def end_wait(
    held: Held,
    i: int,
    place: int,
    event: str,
    now: int,
    *,
    error_type: str | None = None,
    message: str | None = None,
) -> None:
    """Row i's wait is over: the step ends, and a row that may go on stands at the next one."""
    ledger = held.ledger
    track = ledger.tracks[place]
    state = ROW_STEP.after("WaitingForCompletion", event)
    track.took[i] = max(1, now - ledger.base - track.began[i])
    track.state[i] = STATES.index(state)
    ledger.in_flight[i] = 0
    if track.state[i] == COMPLETED:
        ledger.at[i] = place + 1
    held.end_checks(i, place, now)
    story = held.story(i, place, state, now)
    story.due_at = story.deadline = None
    story.tell(error_type, message)


def waited_out(seconds: float) -> str:
    """What to say of a wait that nobody ended."""
    return f"nobody answered within {seconds:g} s"
