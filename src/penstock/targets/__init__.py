"""High throughput against throttled remotes, with an outcome for every record; needs no database of ours."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.targets.blocking import create, delete, open_target, update, upsert
    from penstock.targets.composite.ordering import plan_records
    from penstock.targets.composite.prober import Prober
    from penstock.targets.composite.waves import WavesCancelled, in_waves, tables_in_waves
    from penstock.targets.dataverse import CustomLogicBypass, DataverseOptions, DataverseTarget
    from penstock.targets.diagnostics import Cause, Diagnostic, analyze_batch_failure
    from penstock.targets.executor import BulkCall, BulkCancelled, BulkExecutor
    from penstock.targets.http import (
        Body,
        ClientCredentials,
        Endpoint,
        File,
        HttpTarget,
        ItemResults,
        PagedLookup,
        StaticHeaders,
        bearer,
    )
    from penstock.targets.manifest import RetryManifest
    from penstock.targets.model import BadInput, BulkOptions, ErrorKind, Limit, Mode, Outcome, TargetError, Verdict
    from penstock.targets.pool import Pool
    from penstock.targets.progress import Phase, Progress, ProgressTracker
    from penstock.targets.progress_display import ProgressDisplay
    from penstock.targets.report import ErrorReport
    from penstock.targets.results import BulkError, BulkResult, Statistics
    from penstock.targets.rules.limits import RateLimit
    from penstock.targets.rules.retry import RetryPolicy
    from penstock.targets.sql import MariaDbTarget, PostgresTarget, SqliteTarget, SqlOptions
    from penstock.targets.step import TargetStep
    from penstock.targets.target import Answer, Batch, Capabilities, Reference, Target, UniformVerdicts, count_request

__all__ = [
    "Answer",
    "BadInput",
    "Batch",
    "Body",
    "BulkCall",
    "BulkCancelled",
    "BulkError",
    "BulkExecutor",
    "BulkOptions",
    "BulkResult",
    "Capabilities",
    "Cause",
    "ClientCredentials",
    "CustomLogicBypass",
    "DataverseOptions",
    "DataverseTarget",
    "Diagnostic",
    "Endpoint",
    "ErrorKind",
    "ErrorReport",
    "File",
    "HttpTarget",
    "ItemResults",
    "Limit",
    "MariaDbTarget",
    "Mode",
    "Outcome",
    "PagedLookup",
    "Phase",
    "Pool",
    "PostgresTarget",
    "Prober",
    "Progress",
    "ProgressDisplay",
    "ProgressTracker",
    "RateLimit",
    "Reference",
    "RetryManifest",
    "RetryPolicy",
    "SqlOptions",
    "SqliteTarget",
    "StaticHeaders",
    "Statistics",
    "Target",
    "TargetError",
    "TargetStep",
    "UniformVerdicts",
    "Verdict",
    "WavesCancelled",
    "analyze_batch_failure",
    "bearer",
    "count_request",
    "create",
    "delete",
    "in_waves",
    "open_target",
    "plan_records",
    "tables_in_waves",
    "update",
    "upsert",
]

# Imported when first asked for: a target's driver is loaded only by those who use it.
_HOMES = {
    "blocking": ("create", "delete", "open_target", "update", "upsert"),
    "composite.ordering": ("plan_records",),
    "composite.prober": ("Prober",),
    "composite.waves": ("WavesCancelled", "in_waves", "tables_in_waves"),
    "dataverse": ("CustomLogicBypass", "DataverseOptions", "DataverseTarget"),
    "diagnostics": ("Cause", "Diagnostic", "analyze_batch_failure"),
    "executor": ("BulkCall", "BulkCancelled", "BulkExecutor"),
    "http": (
        "Body",
        "ClientCredentials",
        "Endpoint",
        "File",
        "HttpTarget",
        "ItemResults",
        "PagedLookup",
        "StaticHeaders",
        "bearer",
    ),
    "manifest": ("RetryManifest",),
    "model": ("BadInput", "BulkOptions", "ErrorKind", "Limit", "Mode", "Outcome", "TargetError", "Verdict"),
    "pool": ("Pool",),
    "progress": ("Phase", "Progress", "ProgressTracker"),
    "progress_display": ("ProgressDisplay",),
    "report": ("ErrorReport",),
    "results": ("BulkError", "BulkResult", "Statistics"),
    "rules.limits": ("RateLimit",),
    "rules.retry": ("RetryPolicy",),
    "sql": ("MariaDbTarget", "PostgresTarget", "SqlOptions", "SqliteTarget"),
    "step": ("TargetStep",),
    "target": ("Answer", "Batch", "Capabilities", "Reference", "Target", "UniformVerdicts", "count_request"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
