"""A remote as a step of a pipeline: the rows of a chunk go out in batches, and each gets its own outcome."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from pydantic import BaseModel

from penstock.errors import StepFailed, Unavailable
from penstock.pipeline import BatchContext, Context, StepObject, step
from penstock.targets.executor import BulkExecutor
from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome
from penstock.targets.results import BulkError, BulkResult
from penstock.targets.target import Target

__all__ = ["TargetStep"]

SIZE = 1000
# Only the remote's word on the record itself is final; anything else may be better another time.
FINAL = frozenset({ErrorKind.DATA, ErrorKind.BUSINESS, ErrorKind.PERMISSION, ErrorKind.UNSUPPORTED})


class TargetStep(StepObject[Any]):
    """Send rows to a target: `load = TargetStep(PostgresTarget(url), "products", "upsert", map=to_record)`.

    `map(row)` makes the record, or the id for a delete; without it a row's fields are the record. The id that the
    remote gives is the step's output. A row the remote refuses fails; what was not sent, or was not answered and may
    be sent again, is retried as the step's `retries` say.

    A row may be sent twice when a worker dies before it has noted the answer. Upserts, updates and deletes do not
    mind. For a create name the key column in `effect_id`: it is filled with an id that is the same in every attempt,
    so that an upsert creates the record once.

    Give an executor instead of a target to share its pool with other steps; all operations that use a step share it.
    """

    def __init__(
        self,
        target: Target | BulkExecutor,
        table: str,
        mode: Mode | str = Mode.UPSERT,
        *,
        map: Callable[[Any], Any] | None = None,
        options: BulkOptions | None = None,
        effect_id: str | None = None,
        size: int = SIZE,
    ) -> None:
        self.executor = target if isinstance(target, BulkExecutor) else BulkExecutor(target)
        self.table, self.mode, self.options = table, Mode(mode), options
        self._map, self._effect_id = map or _fields, effect_id
        self.given = MappingProxyType({"size": size})

    @step.batch(size=SIZE)
    async def run(self, rows: Sequence[Any], ctx: BatchContext[Any]) -> Sequence[Any]:
        """Send the rows; an answer or an error for each."""
        records: dict[int, Any] = {}
        answers: dict[int, Any] = {}
        for at, (row, one) in enumerate(zip(rows, ctx.rows, strict=True)):
            try:
                records[at] = self._record(row, one)
            except Exception as error:
                answers[at] = error
        # A list would be refused whole for one record without its id.
        given = list(records.values()) if self._needs_list else records.values()
        result = await self.executor.start(self.mode, self.table, given, self.options)
        errors = {error.index: error for error in result.errors}
        answers |= {at: self._answer(result, errors.get(index), index) for index, at in enumerate(records)}
        return [answers[at] for at in range(len(rows))]

    async def aclose(self) -> None:
        """Let go of the target's connections; the next rows open new ones."""
        await self.executor.target.aclose()

    @property
    def _needs_list(self) -> bool:
        return self.executor.chosen(self.options).duplicates == "last"

    def _record(self, row: Any, ctx: Context[Any]) -> Any:
        record = self._map(row)
        if self._effect_id is None:
            return record
        return {**record, self._effect_id: str(uuid.uuid5(uuid.NAMESPACE_URL, f"penstock:{ctx.effect_key}"))}

    def _answer(self, result: BulkResult, error: BulkError | None, index: int) -> Any:
        outcome = result.outcome(index)
        if outcome.is_success or outcome is Outcome.SKIPPED:
            return result.id_of(index)
        if error is None:
            cause = result.stopped_error or result.stopped_reason
            return Unavailable(f"not sent to {self.table}: {cause}")
        message = f"{error.code}: {error.message}" if error.code else error.message
        if outcome is Outcome.UNKNOWN:
            text = f"no answer came, so it may or may not have taken effect: {message}"
            return StepFailed(text) if self.mode is Mode.CREATE else Unavailable(text)
        return StepFailed(message) if error.kind in FINAL else Unavailable(message)


def _fields(row: Any) -> Any:
    """A row's fields as a record."""
    if isinstance(row, BaseModel):
        return dict(row)
    if isinstance(row, msgspec.Struct):
        return msgspec.structs.asdict(row)
    if dataclasses.is_dataclass(row):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return dict(row)
