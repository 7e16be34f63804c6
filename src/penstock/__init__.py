"""Durable bulk operations for Python."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.engine import Penstock, run
    from penstock.errors import PenstockError, RetryLater, RowInvalid, StepFailed
    from penstock.machine import Machine
    from penstock.operations.telling import Notify, RowFailure
    from penstock.outbox.model import OperationEvent
    from penstock.pipeline import AllowEmpty, Backoff, BatchContext, Context, Done, Pipeline, operation, step

__all__ = [
    "AllowEmpty",
    "Backoff",
    "BatchContext",
    "Context",
    "Done",
    "Machine",
    "Notify",
    "OperationEvent",
    "Penstock",
    "PenstockError",
    "Pipeline",
    "RetryLater",
    "RowFailure",
    "RowInvalid",
    "StepFailed",
    "operation",
    "run",
    "step",
]

# Imported when first asked for: the command line answers `--help` without loading a database.
_HOMES = {
    "penstock.engine": ("Penstock", "run"),
    "penstock.errors": ("PenstockError", "RetryLater", "RowInvalid", "StepFailed"),
    "penstock.machine": ("Machine",),
    "penstock.operations.telling": ("Notify", "RowFailure"),
    "penstock.outbox.model": ("OperationEvent",),
    "penstock.pipeline": ("AllowEmpty", "Backoff", "BatchContext", "Context", "Done", "Pipeline", "operation", "step"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
