"""Whether one row is right: the model first, then the validators, then `validate_row`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from penstock.errors import Fault, InvalidInput
from penstock.operations.decide import error_text
from penstock.operations.execution import Execution

__all__ = ["Objection", "ask_validators", "object_to", "validate"]


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
            return object_to(error)
    return None


def object_to(error: Exception) -> Objection:
    """A validator's exception: a verdict on the row, or its own trouble."""
    if isinstance(error, InvalidInput):
        return Objection(list(error.faults) or [Fault(str(error) or type(error).__name__)])
    if isinstance(error, ValueError | AssertionError):
        return Objection([Fault(str(error) or type(error).__name__)])
    return Objection([Fault(error_text(error))], "Processing")
