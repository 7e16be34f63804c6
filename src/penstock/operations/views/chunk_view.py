"""One chunk to read from: its ledger, its records and its rows put together; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import msgspec

from penstock.clock import from_micros
from penstock.errors import Fault, InvalidInput
from penstock.listing import named
from penstock.operations.chunk.ledger import INVALID, STATES, Ledger, Track
from penstock.operations.chunk.packing import StoredRows
from penstock.operations.chunk.records import StepRecord
from penstock.operations.model import RowState, RowView, StepState, StepView
from penstock.operations.row_keys import key_of
from penstock.operations.states import ROW_STEP
from penstock.pipeline.secret_values import mask_fields

__all__ = ["VALIDATION", "VERDICTS", "ChunkView", "RowLayout", "fault_values", "verdict_codes"]

VALIDATION = "validation"

# A row's verdict by the ledger's code; no row stays at a skipped step.
VERDICTS = {code: "Invalid" if code == INVALID else name for code, name in enumerate(STATES) if name != "Skipped"}


def verdict_codes(names: str | Sequence[str]) -> frozenset[int]:
    """The ledger's codes for verdicts given by name, ignoring case."""
    codes = {name: code for code, name in VERDICTS.items()}
    return frozenset(codes[name] for name in named(names, codes, "row state"))


def fault_values(stored: Sequence[Sequence[str | None]] | None) -> tuple[Fault, ...]:
    """Faults as they were before they were stored with a record."""
    return tuple(Fault(message or "", name) for name, message in stored or ())


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What it takes to read the rows of an operation; `key_names` are the names its key may have in a record."""

    number: int
    id: str
    name: str
    rows_read: int
    columns: tuple[str, ...] | None
    plan: Mapping[str, Any]
    key_names: tuple[str, ...]
    secret_names: tuple[str, ...] = ()  # fields of a row that are not shown

    @property
    def steps(self) -> int:
        """How many steps are planned."""
        return len(self.plan["steps"])

    @property
    def tracks_rows(self) -> bool:
        """Whether the rows' data is stored."""
        return bool(self.plan["options"]["track_row_data"])

    def step_name(self, index: int) -> str:
        """The name of a step; validation is -1."""
        return VALIDATION if index < 0 else str(self.plan["steps"][index]["name"])

    def step_index(self, step: int | str) -> int:
        """The index of a step given by name, attribute or index."""
        by_name = {VALIDATION: -1, "-1": -1}
        for planned in self.plan["steps"]:
            index = planned["index"]
            by_name |= {str(index): index, planned["attribute"].casefold(): index, planned["name"].casefold(): index}
        try:
            return by_name[str(step).casefold()]
        except KeyError:
            known = ", ".join(self.step_name(index) for index in range(-1, self.steps))
            raise InvalidInput(f"operation {self.name!r} has no step {step!r}; it has: {known}") from None

    def shown(self, raw: Any) -> Any:
        """A stored row as callers see it: cells by column, unless their number is wrong; anything else as it is.

        Secrets are masked.
        """
        if self.secret_names:
            raw = mask_fields(raw, self.secret_names, self.columns)
        if isinstance(raw, list) and self.columns is not None and len(raw) == len(self.columns):
            return dict(zip(self.columns, raw, strict=True))
        return raw

    def text_of(self, key: str) -> bytes:
        """The bytes that a chunk's stored rows contain if one of them has this key."""
        # Cells are quoted text. A key of a JSON record may be a number, which is not quoted and has several spellings.
        is_number = self.columns is None and key.lstrip("-")[:1].isdigit()
        return b"" if is_number else msgspec.json.encode(key.encode(errors="replace").decode())

    def key_of(self, raw: Any) -> str | None:
        """The text of a stored row's key, where it can be read."""
        return key_of(raw, self.key_names, self.columns)


@dataclass(slots=True)
class ChunkView:
    """A chunk to read from; row i is number `first_row + i`. `records` and `raws` may be filled in later."""

    layout: RowLayout
    chunk: int
    first_row: int
    ledger: Ledger
    records: Mapping[tuple[int, int], StepRecord] = field(default_factory=dict)
    raws: StoredRows | None = None

    def step(self, i: int) -> int:
        """The index of row i's current step."""
        return min(self.ledger.at[i], self.ledger.steps) - 1

    def current(self, i: int) -> StepRecord | None:
        """The record of row i's current step."""
        return self.records.get((self.first_row + i, self.step(i)))

    def key(self, i: int) -> str | None:
        """The row's key: an edit's, else as recorded, else as in the file."""
        edited = self._edited(i)
        if edited is not None:
            return self.layout.key_of(edited)
        recorded = next((record.row_key for record in self._records_of_row(i) if record.row_key is not None), None)
        return recorded if recorded is not None or self.raws is None else self.layout.key_of(self.raws[i])

    def lacks_a_key(self, places: Iterable[int]) -> bool:
        """Whether one of the rows may have a key that can only be read from the chunk's rows."""
        return bool(self.layout.key_names) and any(self.key(i) is None for i in places)

    def places_of(self, key: str, *, recorded: str) -> list[int]:
        """The rows that have this key, or `recorded`, the form in which their records hold it."""
        raws = () if self.raws is None else self.raws.near(self.layout.text_of(key))
        near = {i for i, raw in raws if not isinstance(raw, list) or key in raw}
        # Whatever else has a record has its key among the rows.
        near |= {
            record.row - self.first_row
            for record in self.records.values()
            if record.row_key == recorded or record.data is not None
        }
        return sorted(i for i in near if self._has_key(i, key, recorded))

    def _has_key(self, i: int, key: str, recorded: str) -> bool:
        edited = self._edited(i)
        if edited is not None:
            return self.layout.key_of(edited) == key
        if any(record.row_key == recorded for record in self._records_of_row(i)):
            return True
        return self.raws is not None and self.layout.key_of(self.raws[i]) == key

    def data(self, i: int) -> Any:
        """The row's data: an edit's if there was one, else what the file said."""
        edited = self._edited(i)
        return self.layout.shown(edited if edited is not None or self.raws is None else self.raws[i])

    def view(self, i: int, *, with_data: bool) -> RowView:
        """Row i with every step it has reached."""
        step = self.step(i)
        return RowView(
            number=self.first_row + i,
            row_key=self.key(i),
            state=cast("RowState", VERDICTS[self.ledger.state(i)]),
            step=step,
            step_name=self.layout.step_name(step),
            generation=self.ledger.generation[i],
            total_steps=self.ledger.steps,
            steps=tuple(self._step_view(i, place) for place in range(step + 2)),
            data=self.data(i) if with_data else None,
            operation_id=self.layout.id,
        )

    def _edited(self, i: int) -> Any:
        record = self.records.get((self.first_row + i, -1)) if self.records else None
        return None if record is None else record.data

    def _records_of_row(self, i: int) -> Iterator[StepRecord]:
        if self.records:
            for step in range(-1, self.ledger.steps):
                record = self.records.get((self.first_row + i, step))
                if record is not None:
                    yield record

    def _step_view(self, i: int, place: int) -> StepView:
        ledger, track = self.ledger, self.ledger.tracks[place]
        code = ledger.state(i) if place == ledger.at[i] else track.state[i]
        record = self.records.get((self.first_row + i, place - 1)) if self.records else None
        started, ended = _times(ledger, track, i, code, record)
        output = track.outputs.get(i) if record is None or record.output is None else record.output
        told = (
            place - 1,
            self.layout.step_name(place - 1),
            cast("StepState", STATES[code]),
            track.attempt[i] or int(place == 0),
            started,
            ended,
            None if output is None else msgspec.json.decode(output),
        )
        # Most steps have no record, and this is done for every step of every row that is shown.
        return StepView(*told) if record is None else StepView(*told, **_shown_of(record))


_IS_SETTLED = tuple(ROW_STEP.is_settled(state) for state in STATES)


def _times(
    ledger: Ledger, track: Track, i: int, code: int, record: StepRecord | None
) -> tuple[datetime | None, datetime | None]:
    """When the last attempt of a step began and ended; the ledger does not time validation."""
    is_settled = _IS_SETTLED[code]
    if not track.took[i]:
        return None, from_micros(record.at) if record is not None and is_settled else None
    began = ledger.base + track.began[i]
    if not is_settled:
        return from_micros(began), None
    return from_micros(began), from_micros(began + track.took[i])


def _shown_of(record: StepRecord) -> dict[str, Any]:
    """What a record adds to the view of its step."""
    return {
        "error_type": record.error_type,
        "message": record.message,
        "faults": fault_values(record.faults),
        "signal_key": record.signal_key,
        "due_at": None if record.due_at is None else from_micros(record.due_at),
        "deadline": None if record.deadline is None else from_micros(record.deadline),
    }
