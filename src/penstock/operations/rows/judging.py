"""Validating rows: the model first, then the validators, then `validate_row`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import Fault, InvalidInput, faults_of
from penstock.formats import Batch
from penstock.operations.chunk.records import ROW_KEY_MAX, StepRecord
from penstock.operations.messages import cut, message_of
from penstock.operations.rows.runtime import OperationRuntime
from penstock.operations.rows.task_pool import SLICE_NS, LoopSlice, is_ours
from penstock.operations.rows.verdicts import error_text
from penstock.pipeline.rows import TOGETHER, ModelErrors, few

__all__ = [
    "MayNotStart",
    "Objection",
    "check_batch",
    "find_objections",
    "killed_its_validator",
    "note_objection",
    "validate",
]


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a row may not run: faults of the row, or an error of a validator (`Processing`)."""

    faults: list[Fault]
    error_type: str = "Validation"

    def without_secrets(self, runtime: OperationRuntime, raw: Any) -> Objection:
        """The same, as it may be stored and shown."""
        if not runtime.has_secrets:
            return self
        faults = [Fault(runtime.without_secrets(fault.message, raw), fault.field) for fault in self.faults]
        return Objection(faults, self.error_type)


class MayNotStart(Exception):
    """No validator may be called now, so that not all rows could be judged."""


MayStart = Callable[[], bool]  # asked directly before each call of a validator
Judged = dict[int, Objection | None]  # by index; a row that is missing was not judged, because nothing may start


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with rows, by index; only the first so many rows were judged."""

    judged: int
    objections: dict[int, Objection]


async def validate(runtime: OperationRuntime, raw: Any) -> Objection | None:
    """What is wrong with one row."""
    objection = (await find_objections(runtime, [raw], {}, runtime.may_start)).objections.get(0)
    return None if objection is None else objection.without_secrets(runtime, raw)


async def check_batch(runtime: OperationRuntime, batch: Batch, may_start: MayStart) -> list[StepRecord]:
    """Judge every row of a batch: the reader's faults, then the model, then validators, then `validate_row`.

    Returns the records of the rows that are not valid. `MayNotStart` when not all rows could be judged.
    """
    found = await find_objections(runtime, batch.rows, batch.faults, may_start)
    if found.judged < len(batch.rows):
        raise MayNotStart
    return [_rejected(runtime, batch, i, objection) for i, objection in found.objections.items()]


async def find_objections(
    runtime: OperationRuntime, rows: Sequence[Any], known: Mapping[int, list[Fault]], may_start: MayStart
) -> Findings:
    """Judge rows in their order, until nothing may start any more; `known` are faults that their reader found."""
    time = LoopSlice(runtime.clock.now_ns)
    found = {i: Objection(faults) for i, faults in known.items()}
    if not (known or runtime.validators):
        for k in range(0, len(rows), TOGETHER):
            found |= {k + i: _of_model(faults) for i, faults in runtime.check(rows[k : k + TOGETHER]).items()}
            await time.share()
        return Findings(len(rows), found)
    fitting: dict[int, Any] = {}
    row_type = runtime.definition.row
    for i, raw in enumerate(rows):
        if i not in known:
            try:
                fitting[i] = runtime.parse(raw)
            except row_type.rejects as error:
                found[i] = _of_model(row_type.faults(error))
            await time.share()
    judged = await _ask_validators(runtime, fitting, may_start)
    stop = next((i for i in fitting if i not in judged), len(rows))
    found |= {i: objection for i, objection in judged.items() if objection is not None}
    return Findings(stop, {i: objection for i, objection in sorted(found.items()) if i < stop})


async def _ask_validators(runtime: OperationRuntime, rows: Mapping[int, Any], may_start: MayStart) -> Judged:
    """The objections of the operation's own validators to rows that fit their model; of each row, the first one.

    Validator after validator is asked about all rows to which none has objected so far: many rows can go to a thread
    together, where plain functions run, because they may block.
    """
    judged: Judged = {}
    left = rows
    for validator in runtime.validators:
        if not left:
            break
        ask = _ask_on_loop if validator.is_async else _ask_on_threads
        answers = await ask(runtime, validator.call, left, may_start)
        judged |= {i: objection for i, objection in answers.items() if objection is not None}
        is_halted = len(answers) < len(left)
        left = {i: rows[i] for i, objection in answers.items() if objection is None}
        if is_halted and validator is not runtime.validators[-1]:
            return judged  # those to which nobody objects may still meet an objection
    return judged | dict.fromkeys(left)


async def _ask_on_loop(
    runtime: OperationRuntime, validator: Callable[..., Any], rows: Mapping[int, Any], may_start: MayStart
) -> Judged:
    answers: Judged = {}
    meta, time = runtime.run.meta, LoopSlice(runtime.clock.now_ns)
    for i, row in rows.items():
        if not may_start():
            break
        answers[i] = await _objection_of(validator, row, meta)
        await time.share()
    return answers


async def _ask_on_threads(
    runtime: OperationRuntime, validator: Callable[..., Any], rows: Mapping[int, Any], may_start: MayStart
) -> Judged:
    answers: Judged = {}
    todo = iter([*rows.items()])
    try:
        while hop := await runtime.threads.run(_hop, runtime, validator, todo, may_start):
            for i, answer in hop:
                is_pending = inspect.isawaitable(answer)  # a plain function may give a coroutine
                answers[i] = await _objection_of(_given, answer) if is_pending else answer
    finally:
        list(todo)  # if we are cancelled, the thread is not: it must begin no other row
    return answers


def _hop(
    runtime: OperationRuntime, validator: Callable[..., Any], todo: Iterator[tuple[int, Any]], may_start: MayStart
) -> list[tuple[int, Any]]:
    """Ask about the next rows, on a thread, as many as fit into a slice: for each an objection, a coroutine or None."""
    now, meta = runtime.clock.now_ns, runtime.run.meta
    until = now() + SLICE_NS
    answers: list[tuple[int, Any]] = []
    for i, row in todo:
        if not may_start():
            list(todo)  # nor may the others
            break
        try:
            answer = validator(row, meta)
            answers.append((i, answer if inspect.isawaitable(answer) else None))
        except BaseException as error:  # a validator may raise anything; it is this row's alone
            answers.append((i, _objection(error)))
        if now() > until:
            break
    return answers


def _given(answer: Awaitable[Any]) -> Awaitable[Any]:
    return answer


async def _objection_of(validator: Callable[..., Awaitable[Any]], *given: Any) -> Objection | None:
    """The objection of an async validator to a row."""
    try:
        await validator(*given)
    except BaseException as error:
        if is_ours(error):
            raise
        return _objection(error)
    return None


def _of_model(faults: list[Fault]) -> Objection:
    return Objection(faults, "Processing" if isinstance(faults, ModelErrors) else "Validation")


def _objection(error: BaseException) -> Objection:
    """A validator's exception as an objection: a verdict on the row, or an error of the validator (`Processing`)."""
    if isinstance(error, InvalidInput) and (faults := faults_of(error)):
        return Objection(few(faults))
    if isinstance(error, InvalidInput | ValueError | AssertionError):
        return Objection([Fault(message_of(error) or type(error).__name__)])
    return Objection([Fault(error_text(error))], "Processing")


def killed_its_validator(runtime: OperationRuntime, batch: Batch, deaths: int) -> list[StepRecord]:
    """The one row of a batch is invalid, because every process that checked it died."""
    fault = Fault(f"killed its validator: {deaths} processes died while checking this row")
    return [_rejected(runtime, batch, 0, Objection([fault], "Poison"))]


def _rejected(runtime: OperationRuntime, batch: Batch, i: int, objection: Objection) -> StepRecord:
    record = StepRecord(
        chunk=0,
        row=batch.start.row + i,
        step=-1,
        operation=runtime.number,
        state="Failed",
        at=runtime.clock.now_us(),
        attempt=1,
    )
    note_objection(runtime, record, objection, batch.rows[i])
    return record


def note_objection(runtime: OperationRuntime, record: StepRecord, objection: Objection, raw: Any) -> None:
    """Note in its record why a row is not valid, and its key; secrets are left out."""
    objection = objection.without_secrets(runtime, raw)
    record.faults = [[fault.field and cut(fault.field), cut(fault.message)] for fault in objection.faults]
    if record.row_key is None and (key := runtime.definition.row.key_of_raw(raw, runtime.columns)):
        record.row_key = cut(key, ROW_KEY_MAX)
    record.set_error(objection.error_type, cut("; ".join(map(str, objection.faults))))
