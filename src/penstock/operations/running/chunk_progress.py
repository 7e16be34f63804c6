"""The progress of a chunk in memory: its rows parsed, the outcomes noted in ledger and records, nothing written yet."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.errors import Fault, FileRejected, StepFailed
from penstock.formats import Batch
from penstock.operations.chunk.ledger import COMPLETED, FAILED, INVALID, SKIPPED, STATES, Ledger
from penstock.operations.chunk.owned import OwnedChunk, no_key
from penstock.operations.chunk.packing import StoredRows
from penstock.operations.chunk.records import ROW_KEY_MAX, StepRecord
from penstock.operations.messages import cut
from penstock.operations.rows.gates import Refused
from penstock.operations.rows.judging import Objection, note_objection
from penstock.operations.rows.runtime import OperationRuntime
from penstock.operations.rows.verdicts import Verdict, WrongLength, error_text, judge
from penstock.operations.states import ROW_STEP
from penstock.pipeline import Context
from penstock.pipeline.rows import TOGETHER

__all__ = ["ChunkProgress"]

POLL_JITTER = 0.2
LAST_CHECK_S = 30.0  # the least time that a check gets, for the last one begins at the deadline
PUT_OFF_NOTED_MAX = 100  # attempts of one step; later ones are only counted, whatever reason they give
NO_FAULTS: Mapping[int, list[Fault]] = {}
ERASED = "its data was erased"


class ChunkProgress:
    """An owned chunk with its rows parsed; every outcome of a row is noted here, on the loop's thread."""

    def __init__(
        self,
        runtime: OperationRuntime,
        owned: OwnedChunk,
        raws: StoredRows,
        faults: Mapping[int, list[Fault]] = NO_FAULTS,
    ) -> None:
        self.runtime, self.owned, self.raws, self._faults = runtime, owned, raws, faults
        self.ledger: Ledger = owned.ledger
        self.unread: Iterator[Batch] | None = None  # all rows, if they are still to be read from the file
        self.rows: list[Any] = [None] * owned.row_count
        self.has_parked = False  # since the last flush
        self.has_moved = False  # rows were run since the last flush
        self.was_refused = False  # see `refuse`
        self.trouble: str | None = None  # why the operation cannot go on
        self.unreadable: FileRejected | OSError | None = None  # why this worker cannot read its file
        owned.key_of = self.key_of
        self.refresh()

    def close(self) -> None:
        """Nothing more is written: break the cycle of references, so that rows are freed now, not by the collector."""
        self.owned.key_of = no_key

    def refresh(self) -> None:
        """Note whether rows have outputs; call it when signals may have brought some."""
        in_records = (record.output is not None for record in self.owned.records.values())
        self.has_outputs = any(track.outputs for track in self.ledger.tracks) or any(in_records)

    def parse(self, rows: Sequence[int]) -> None:
        """Parse stored rows that are about to run; one that no longer fits its model, which was changed, fails."""
        parsed, validated = self.rows, self.ledger.tracks[0].state
        # A row that was edited, or is new, is validated first.
        todo = [i for i in rows if parsed[i] is None and validated[i] == COMPLETED]
        for k in range(0, len(todo), TOGETHER):
            self._parse_together(todo[k : k + TOGETHER])

    def _parse_together(self, rows: Sequence[int]) -> None:
        raws = self.raws_of(rows)
        if None in raws:
            self._fail_erased(rows, raws)
            return
        row_type = self.runtime.definition.row
        try:
            found = self.runtime.parse_many(raws)
        except row_type.rejects:
            found = []
        if len(found) == len(rows):
            for i, row in zip(rows, found, strict=True):
                self.rows[i] = row
            return
        for i, given in zip(rows, raws, strict=True):
            try:
                self.rows[i] = self.runtime.parse(given)
            except row_type.rejects as error:
                fault = row_type.faults(error)[0]
                self._settle(
                    i, Verdict("failed", "Processing", cut(f"the stored row no longer fits its model: {fault}"))
                )

    def _fail_erased(self, rows: Sequence[int], raws: Sequence[Any]) -> None:
        """Fail the rows among these whose data was erased, and parse the others."""
        for i, given in zip(rows, raws, strict=True):
            if given is None:
                self._settle(i, Verdict("failed", "Processing", ERASED))
            else:
                self._parse_together((i,))

    def raw(self, i: int) -> Any:
        """The row as it was read, or as it was edited since."""
        edited = self.owned.record_of(i, 0)
        return self.raws[i] if edited is None or edited.data is None else edited.data

    def raws_of(self, rows: Sequence[int]) -> list[Any]:
        """The same for many rows; faster where none was edited."""
        return [*map(self.raw, rows)] if self.owned.records else self.raws.pick(rows)

    def key_of(self, i: int) -> str | None:
        """The text of the row's key, where it can be read."""
        row_type, row = self.runtime.definition.row, self.rows[i]
        if row is not None:
            with suppress(Exception):  # its steps may have changed it
                return row_type.key(row)
        is_known = row_type.row_key is not None and self.unread is None
        return row_type.key_of_raw(self.raw(i), self.runtime.columns) if is_known else None

    def faults_of(self, rows: Sequence[int], raws: Sequence[Any]) -> dict[int, list[Fault]]:
        """What is wrong with rows as they were read, by their place among these; unless they were edited since."""
        found = {place: [Fault(ERASED)] for place, raw in enumerate(raws) if raw is None}
        for place, i in enumerate(rows if self._faults else ()):
            edited = self.owned.record_of(i, 0)
            if i in self._faults and (edited is None or edited.data is None):
                found[place] = self._faults[i]
        return found

    def refuse(self, rows: Iterable[int]) -> None:
        """Put rows back that may not begin their step: our lease or runtime is over, or a limit leaves us no units."""
        self.was_refused = True
        for i in rows:
            self.ledger.undo_start((i,))
            self.owned.close_records(i, self.ledger.at[i], self.runtime.clock.now_us())

    # --- outputs

    def outputs(self, i: int) -> dict[int, bytes]:
        """The stored outputs of a row's steps, by step index."""
        if not self.has_outputs:
            return {}
        found = {n: track.outputs[i] for n, track in enumerate(self.ledger.tracks, -1) if i in track.outputs}
        if self.owned.records:
            found |= {record.step: record.output for record in self._records(i) if record.output is not None}
        return found

    def store_output(self, i: int, place: int, output: bytes) -> None:
        """A step of row i returned something."""
        self.owned.store_output(i, place, output, self.runtime.clock.now_us())
        self.has_outputs = True

    def keep_output(self, i: int, place: int, ctx: Context[Any], output: bytes | None) -> None:
        """The same, while later steps of the row may ask its context for it."""
        if output is not None:
            ctx.stored[place - 1] = output
            self.store_output(i, place, output)

    # --- called by jobs

    def left_segment(self, i: int, place: int) -> None:
        """Row i is through a segment; at the end of its span nothing of it is in flight."""
        if place in self.runtime.boundaries:
            self.ledger.in_flight[i] = 0
            if place <= self.ledger.steps:
                self.ledger.lost[i] = 0  # losses at earlier steps do not count any more
        else:
            self.ledger.tracks[place].attempt[i] += 1
        if self.owned.records:
            self.owned.close_records(i, place, self.runtime.clock.now_us())

    def raised(self, i: int, place: int, error: BaseException, began: int, *, isolate: bool = False) -> None:
        """An attempt of row i's step raised, or could not begin."""
        if isinstance(error, Refused):
            self.refuse((i,))
            return
        if self.runtime.log.isEnabledFor(logging.DEBUG):
            self._log_error(i, place, error)
        now = self._time(i, place, began)
        record = self.owned.record_of(i, place)
        verdict = judge(
            error,
            self.runtime.steps[place - 1].plan.options,
            errors=self.errors(i, place),
            postponed_s=(now - record.put_off_since) / 1e6 if record and record.put_off_since else 0.0,
            jitter=self.runtime.jitter,
        )
        if isolate and verdict.event != "postponed":
            verdict = Verdict("postponed", verdict.error_type, verdict.message, spends_retry=True)
        self.owned.close_records(i, place, now)
        self._settle(i, verdict)

    def _log_error(self, i: int, place: int, error: BaseException) -> None:
        """The traceback of an attempt, which is stored nowhere."""
        run, step, row = self.runtime.run, self.runtime.steps[place - 1].plan.name, self.owned.first_row + i
        fields = {
            "operation_id": run.operation_id,
            "operation_name": run.operation_name,
            "row_number": row,
            "step_name": step,
            "attempt": self.ledger.tracks[place].attempt[i],
        }
        if self.runtime.has_secrets:
            trace = self._without_secrets(i, _trace(error))
            self.runtime.log.debug("the attempt ended in an error\n%s", trace, extra=fields)
        else:
            self.runtime.log.debug("the attempt ended in an error", exc_info=error, extra=fields)

    def raised_by_batch(self, rows: Sequence[int], place: int, error: BaseException, began: int) -> None:
        """A batch raised, so each of its rows did; past the retries it is halved, to find the rows at fault."""
        options = self.runtime.steps[place - 1].plan.options
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
        record = self.owned.record_of(i, place)
        return record.errors if record else 0

    # --- validation of rows that are new or were edited

    def validated(self, rows: Iterable[int]) -> None:
        """Rows are valid; those that were edited go on at the step where they failed."""
        if self.owned.is_raw:
            self._cleared(rows)
            return
        ledger, ended = self.ledger, (COMPLETED, SKIPPED)
        for i in rows:
            self.rows[i] = None  # what was parsed of it may be older than the edit
            ledger.tracks[0].state[i] = COMPLETED
            ledger.at[i] = next(p for p in range(1, ledger.steps + 1) if ledger.tracks[p].state[i] not in ended)
            ledger.in_flight[i] = 0
            self.owned.record(i, 0, "Completed", self.runtime.clock.now_us())
            for record in self._records(i):
                record.row_key = None  # it is read anew when the record is written
                self.owned.changed.add((record.row, record.step))

    def _cleared(self, rows: Iterable[int]) -> None:
        """New rows are valid; they have a record only if a process died while it validated them."""
        ledger, records, first_row = self.ledger, self.owned.records, self.owned.first_row
        validated, attempts = ledger.tracks[0].state, ledger.tracks[0].attempt
        in_flight, lost = ledger.in_flight, ledger.lost
        for i in rows:
            validated[i], ledger.at[i] = COMPLETED, 1
            attempts[i] = in_flight[i] = lost[i] = 0
            if (first_row + i, -1) in records:
                self.owned.record(i, 0, "Completed", self.runtime.clock.now_us()).set_error(None, None)

    def judged(self, rows: Sequence[int], objections: Mapping[int, tuple[Objection, Any]]) -> None:
        """New, consecutive rows are valid, except those to which there are objections."""
        first, stop, ledger = rows[0], rows[-1] + 1, self.ledger
        track, attempts = ledger.tracks[0], [ledger.tracks[0].attempt[i] for i in objections]
        track.state[first:stop] = bytes([COMPLETED]) * len(rows)
        track.attempt[first:stop] = [0] * len(rows)
        ledger.in_flight[first:stop] = bytes(len(rows))
        for (i, (objection, raw)), attempt in zip(objections.items(), attempts, strict=True):
            track.attempt[i] = attempt
            self.rejected(i, objection, raw)

    def rejected(self, i: int, objection: Objection, raw: Any) -> None:
        """A row is invalid, or its validator broke."""
        self.ledger.reject(i, INVALID if objection.error_type == "Validation" else FAILED)
        self.ledger.in_flight[i] = 0
        record = self.owned.record(i, 0, "Failed", self.runtime.clock.now_us())
        note_objection(self.runtime, record, objection, raw)

    # --- waits

    def park(self, i: int, place: int, began: int, signal_key: str | None) -> None:
        """The step's body has run; now the row waits for a signal or a poll."""
        options = self.runtime.steps[place - 1].plan.options
        assert options.timeout is not None
        now = self._time(i, place, began)
        self.owned.close_records(i, place, now)
        record = self._move(i, place, ROW_STEP.after("Running", "parked"), now)
        record.set_error(None, None)
        record.errors = 0  # of a row that waits, the checks that raised
        record.since = max((earlier.since or 0 for earlier in self._records(i)), default=0) or None
        record.signal_key = signal_key
        record.deadline = now + round(options.timeout * 1e6)
        # The first poll is due at once; a row that waits for a signal is due at its deadline.
        record.due_at = now if options.every is not None else record.deadline
        self.has_parked = True

    def left_to_wait_s(self, i: int, place: int) -> float:
        """How long a check of row i may take: until its deadline, or what a last one gets."""
        record = self.owned.record_of(i, place)
        assert record is not None
        assert record.deadline is not None
        return max((record.deadline - self.runtime.clock.now_us()) / 1e6, LAST_CHECK_S)

    def check_raised(self, i: int, place: int, error: BaseException) -> None:
        """A check raised: it failed the step, or it is asked again."""
        message, now = self._without_secrets(i, error_text(error)), self.runtime.clock.now_us()
        if isinstance(error, StepFailed):
            self.owned.end_wait(i, place, "poll_failed", now, error_type="StepFailure", message=message)
            return
        record = self.owned.record_of(i, place)
        assert record is not None
        self.owned.check_raised(record, message, now)
        self.ask_again(i, place)

    def ask_again(self, i: int, place: int) -> None:
        """A check said not yet: the next one is due after the interval, unless the deadline has passed."""
        record, now = self.owned.record_of(i, place), self.runtime.clock.now_us()
        every = self.runtime.steps[place - 1].plan.options.every
        assert record is not None
        assert record.deadline is not None
        assert every is not None
        if now >= record.deadline:
            self.owned.time_out(i, place, now)
            return
        pause = every * (1 + POLL_JITTER * self.runtime.jitter.random())
        record.due_at = min(now + round(pause * 1e6), record.deadline)
        self.ledger.in_flight[i] = 0
        self.owned.changed.add((record.row, record.step))

    # --- step records

    def _settle(self, i: int, verdict: Verdict) -> None:
        """Note a verdict on row i's current step: its state, its record, and a line in history when it goes on.

        A row that is put off again for the same reason gets no further line: its attempts are counted.
        """
        owned, now = self.owned, self.runtime.clock.now_us()
        record = self._move(i, self.ledger.at[i], ROW_STEP.after("Running", verdict.event), now)
        before = record.error_group
        record.set_error(verdict.error_type, self._without_secrets(i, verdict.message))
        record.errors += int(verdict.spends_retry)
        if verdict.event == "postponed":
            record.due_at = now + round(verdict.after * 1e6)
            if not verdict.spends_retry and record.put_off_since is None:
                record.put_off_since = now
            is_another = record.error_group != before and record.attempt <= PUT_OFF_NOTED_MAX
            if verdict.spends_retry or is_another:
                owned.add_history(record, "postponed")

    def _without_secrets(self, i: int, message: str) -> str:
        return self.runtime.without_secrets(message, self.raw(i)) if self.runtime.has_secrets else message

    def _move(self, i: int, place: int, state: str, now: int) -> StepRecord:
        self.ledger.tracks[place].state[i] = STATES.index(state)
        self.ledger.in_flight[i] = 0
        record = self.owned.record(i, place, state, now)
        record.row_key = self._stored_key(i)
        record.due_at = None
        return record

    def _stored_key(self, i: int) -> str | None:
        key = None if self.rows[i] is None else self.key_of(i)
        return None if key is None else cut(key, ROW_KEY_MAX)

    def _records(self, i: int) -> list[StepRecord]:
        row = self.owned.first_row + i
        found = (self.owned.records.get((row, step)) for step in range(-1, self.ledger.steps))
        return [record for record in found if record is not None]

    def _time(self, i: int, place: int, began: int) -> int:
        now = self.runtime.clock.now_us()
        track = self.ledger.tracks[place]
        track.began[i], track.took[i] = max(0, began - self.ledger.base), max(1, now - began)
        return now


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # a user's exception may fail even at this
        return type(error).__name__
