"""Durable bulk operations for Python."""

from penstock.engine import Penstock, run
from penstock.errors import PenstockError, RetryLater, RowInvalid, StepFailed
from penstock.machine import Machine
from penstock.pipeline import Backoff, BatchContext, Context, Done, Pipeline, operation, step

__all__ = [
    "Backoff",
    "BatchContext",
    "Context",
    "Done",
    "Machine",
    "Penstock",
    "PenstockError",
    "Pipeline",
    "RetryLater",
    "RowInvalid",
    "StepFailed",
    "operation",
    "run",
    "step",
]
