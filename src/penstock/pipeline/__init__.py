"""What users declare, and its compiled form."""

from penstock.pipeline.backoff import Backoff, Duration
from penstock.pipeline.base import Pipeline
from penstock.pipeline.context import BatchContext, Context, Done, NoOutput, Outputs, Run
from penstock.pipeline.definition import BoundStep, Definition, Hook, StepPlan, definition_of
from penstock.pipeline.discovery import discover, load_app
from penstock.pipeline.fields import AllowEmpty
from penstock.pipeline.keys import KeyTemplate
from penstock.pipeline.metadata import MetaType
from penstock.pipeline.operation import operation
from penstock.pipeline.options import OperationOptions, StepKind, StepOptions
from penstock.pipeline.outputs import OutputType
from penstock.pipeline.rows import RawRow, RowType
from penstock.pipeline.steps import Step, StepObject, step

__all__ = [
    "AllowEmpty",
    "Backoff",
    "BatchContext",
    "BoundStep",
    "Context",
    "Definition",
    "Done",
    "Duration",
    "Hook",
    "KeyTemplate",
    "MetaType",
    "NoOutput",
    "OperationOptions",
    "OutputType",
    "Outputs",
    "Pipeline",
    "RawRow",
    "RowType",
    "Run",
    "Step",
    "StepKind",
    "StepObject",
    "StepOptions",
    "StepPlan",
    "definition_of",
    "discover",
    "load_app",
    "operation",
    "step",
]
