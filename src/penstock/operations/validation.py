"""Whether rows are right: the model first, then the validators, then `validate_row`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import Fault, InvalidInput
from penstock.formats import Batch
from penstock.operations.held import Story
from penstock.operations.rules.decide import cut, describe, error_text
from penstock.operations.running.execution import Execution

__all__ = [
    "Objection",
    "ask_validators",
    "check_batch",
    "faults_json",
    "find_objections",
    "killed_its_validator",
    "validate",
]


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a row may not run: faults of the row, or trouble of a validator (`Processing`)."""

    faults: list[Fault]
    error_type: str = "Validation"


async def validate(execution: Execution, raw: Any) -> tuple[Any, Objection | None]:
    """The parsed row, or what is wrong with it."""
    row_type = execution.definition.row
    try:
        row = execution.parse(raw)
    except row_type.rejects as error:
        return None, Objection(row_type.faults(error))
    return row, await ask_validators(execution, row)


async def ask_validators(execution: Execution, row: Any) -> Objection | None:
    """What the operation's own validators say of a row that fits its model; the first to object decides."""
    for validator in execution.validators:
        try:
            answer = validator(row, execution.run.meta)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:
            return _objection(error)
    return None


def _objection(error: Exception) -> Objection:
    """A validator's exception: a verdict on the row, or its own trouble."""
    if isinstance(error, InvalidInput):
        return Objection(list(error.faults) or [Fault(str(error) or type(error).__name__)])
    if isinstance(error, ValueError | AssertionError):
        return Objection([Fault(str(error) or type(error).__name__)])
    return Objection([Fault(error_text(error))], "Processing")


async def check_batch(execution: Execution, batch: Batch) -> list[Story]:
    """Judge every row of a batch: the reader's faults, then the model, then validators, then `validate_row`.

    Answers with the records of the rows that are not right.
    """
    return [_rejected(execution, batch, i, found) for i, found in (await find_objections(execution, batch)).items()]


async def find_objections(execution: Execution, batch: Batch) -> dict[int, Objection]:
    """What is wrong with the rows of a batch, by index."""
    known, rows = batch.faults, batch.rows
    if not (known or execution.validators):
        return {i: Objection(faults) for i, faults in execution.check(rows).items()}
    found = {i: Objection(faults) for i, faults in known.items()}
    for i, raw in enumerate(rows):
        if i not in known:
            _, objection = await validate(execution, raw)
            if objection is not None:
                found[i] = objection
    return dict(sorted(found.items()))


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
