"""Whether rows are right: the model first, then the validators, then `validate_row`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import Fault, InvalidInput
from penstock.formats import Batch
from penstock.operations.held import Story
from penstock.operations.rules.decide import cut, describe, error_text, message_of
from penstock.operations.running.crew import SLICE_NS, is_ours
from penstock.operations.running.execution import Execution
from penstock.pipeline import Hook

__all__ = [
    "Findings",
    "MayNotStart",
    "Objection",
    "ask_validators",
    "check_batch",
    "faults_json",
    "find_objections",
    "killed_its_validator",
    "parse",
    "validate",
]


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a row may not run: faults of the row, or trouble of a validator (`Processing`)."""

    faults: list[Fault]
    error_type: str = "Validation"


class MayNotStart(Exception):
    """No validator may be called now, so that not all rows could be judged."""


MayStart = Callable[[], bool]  # asked directly before each call of a validator
Judged = dict[int, Objection | None]  # by index; a row that is missing was not judged, because nothing may start


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with the rows of a batch, by index; only the first so many rows were judged."""

    judged: int
    objections: dict[int, Objection]


async def validate(execution: Execution, raw: Any) -> Objection | None:
    """What is wrong with one row; `MayNotStart`."""
    row, objection = parse(execution, raw)
    return objection or await _ask(execution, execution.validators, row, execution.may_start)


def parse(execution: Execution, raw: Any) -> tuple[Any, Objection | None]:
    """The row as its model has it, or what the model has against it."""
    row_type = execution.definition.row
    try:
        return execution.parse(raw), None
    except row_type.rejects as error:
        return None, Objection(row_type.faults(error))


async def check_batch(execution: Execution, batch: Batch, may_start: MayStart) -> list[Story]:
    """Judge every row of a batch: the reader's faults, then the model, then validators, then `validate_row`.

    Answers with the records of the rows that are not right; `MayNotStart`.
    """
    found = await find_objections(execution, batch, may_start)
    if found.judged < len(batch.rows):
        raise MayNotStart
    return [_rejected(execution, batch, i, objection) for i, objection in found.objections.items()]


async def find_objections(execution: Execution, batch: Batch, may_start: MayStart) -> Findings:
    """Judge the rows of a batch in their order, until nothing may start any more."""
    known, rows = batch.faults, batch.rows
    if not (known or execution.validators):
        return Findings(len(rows), {i: Objection(faults) for i, faults in execution.check(rows).items()})
    found = {i: Objection(faults) for i, faults in known.items()}
    fitting: dict[int, Any] = {}
    for i, raw in enumerate(rows):
        if i not in known:
            row, objection = parse(execution, raw)
            if objection is None:
                fitting[i] = row
            else:
                found[i] = objection
    judged = await ask_validators(execution, fitting, may_start)
    stop = next((i for i in fitting if i not in judged), len(rows))
    found |= {i: objection for i, objection in judged.items() if objection is not None}
    return Findings(stop, {i: objection for i, objection in sorted(found.items()) if i < stop})


async def ask_validators(execution: Execution, rows: Mapping[int, Any], may_start: MayStart) -> Judged:
    """What the operation's own validators have against rows that fit their model; the first to object decides.

    Row after row. Plain functions run on threads, where they may block: many rows to a hop, as many as fit into a
    slice. Where some validators are awaited on the loop, the others have a hop for each row.
    """
    if not execution.validators:
        return dict.fromkeys(rows)
    if any(validator.is_async for validator in execution.validators):
        return await _ask_on_loop(execution, rows, may_start)
    return await _ask_on_threads(execution, rows, may_start)


async def _ask_on_loop(execution: Execution, rows: Mapping[int, Any], may_start: MayStart) -> Judged:
    judged: Judged = {}
    now = execution.clock.now_ns
    until = now() + SLICE_NS
    for i, row in rows.items():
        try:
            judged[i] = await _ask(execution, execution.validators, row, may_start)
        except MayNotStart:
            break
        if now() > until:  # others get a turn
            await asyncio.sleep(0)
            until = now() + SLICE_NS
    return judged


async def _ask(execution: Execution, validators: Sequence[Hook], row: Any, may_start: MayStart) -> Objection | None:
    """What these validators have against one row."""
    meta = execution.run.meta
    for validator in validators:
        if not may_start():
            raise MayNotStart
        if validator.is_async:
            objection = await _objection_of(validator.call, row, meta)
        else:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(execution.threads, _answer, validator.call, row, meta)
            objection = await _settled(answer)
        if objection is not None:
            return objection
    return None


async def _ask_on_threads(execution: Execution, rows: Mapping[int, Any], may_start: MayStart) -> Judged:
    judged: Judged = {}
    loop, todo = asyncio.get_running_loop(), iter([*rows.items()])
    try:
        while hop := await loop.run_in_executor(execution.threads, _hop, execution, todo, may_start):
            for i, asked, answer in hop:
                objection = await _settled(answer)
                judged[i] = objection or await _ask(execution, execution.validators[asked:], rows[i], may_start)
    except MayNotStart:
        pass
    finally:
        list(todo)  # if we are cut off, the thread is not: it shall begin no other row
    return judged


def _hop(execution: Execution, todo: Iterator[tuple[int, Any]], may_start: MayStart) -> list[tuple[int, int, Any]]:
    """Ask about the next rows, on a thread: of each its index, how many validators were asked, and the last answer."""
    now, meta, validators = execution.clock.now_ns, execution.run.meta, execution.validators
    until = now() + SLICE_NS
    hop: list[tuple[int, int, Any]] = []
    for i, row in todo:
        answer, asked = None, 0
        while answer is None and asked < len(validators):
            if not may_start():
                list(todo)  # nor may the others
                return hop
            answer = _answer(validators[asked].call, row, meta)
            asked += 1
        hop.append((i, asked, answer))
        if now() > until:
            break
    return hop


def _answer(validator: Callable[..., Any], row: Any, meta: Any) -> Objection | Awaitable[Any] | None:
    """What a plain function has against a row; if it gives a coroutine, that is to be awaited on the loop."""
    try:
        answer = validator(row, meta)
    except BaseException as error:  # a validator may raise anything; it is this row's alone
        return _objection(error)
    return answer if inspect.isawaitable(answer) else None


async def _settled(answer: Objection | Awaitable[Any] | None) -> Objection | None:
    if answer is None or isinstance(answer, Objection):
        return answer
    given = answer
    return await _objection_of(lambda: given)


async def _objection_of(validator: Callable[..., Awaitable[Any]], *given: Any) -> Objection | None:
    """What a validator that is awaited has against a row."""
    try:
        await validator(*given)
    except BaseException as error:
        if is_ours(error):
            raise
        return _objection(error)
    return None


def _objection(error: BaseException) -> Objection:
    """A validator's exception: a verdict on the row, or its own trouble."""
    if isinstance(error, InvalidInput) and error.faults:
        return Objection(list(error.faults))
    if isinstance(error, InvalidInput | ValueError | AssertionError):
        return Objection([Fault(message_of(error) or type(error).__name__)])
    return Objection([Fault(error_text(error))], "Processing")


def killed_its_validator(execution: Execution, batch: Batch, deaths: int) -> list[Story]:
    """The one row of a batch is invalid, because every process that checked it died."""
    fault = Fault(f"killed its validator: {deaths} processes died while checking this row")
    return [_rejected(execution, batch, 0, Objection([fault], "Poison"))]


def _rejected(execution: Execution, batch: Batch, i: int, objection: Objection) -> Story:
    key = execution.definition.row.key_of_raw(batch.rows[i], execution.columns)
    story = Story(
        chunk=0,
        row=batch.start.row + i,
        step=-1,
        operation=execution.number,
        state="Failed",
        at=execution.clock.now_us(),
        attempt=1,
        row_key=cut(key, 200) if key else None,
        faults=faults_json(objection.faults),
    )
    story.tell(objection.error_type, describe(objection.faults))
    return story


def faults_json(faults: Sequence[Fault]) -> list[list[str | None]]:
    """Faults as stored with a record."""
    return [[fault.field, cut(fault.message)] for fault in faults]
