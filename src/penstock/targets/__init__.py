"""High throughput against throttled remotes, with an outcome for every record; needs no database of ours."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.targets.causes import Cause
    from penstock.targets.dataverse import CustomLogicBypass, DataverseOptions, DataverseTarget
    from penstock.targets.diagnostics import Diagnostic, analyze_batch_failure, foresee_batch_failure
    from penstock.targets.executor import BulkCall, BulkCancelled, BulkExecutor
    from penstock.targets.http import Body, ClientCredentials, Endpoint, HttpTarget, ItemResults, StaticHeaders
    from penstock.targets.manifest import RetryManifest
    from penstock.targets.meter import Meter
    from penstock.targets.model import BadInput, BulkOptions, Limit, Mode, Outcome, TargetError, Trouble, Verdict
    from penstock.targets.ordering import plan_records, plan_tables
    from penstock.targets.pool import Pool
    from penstock.targets.prober import Prober
    from penstock.targets.progress import Phase, Progress, ProgressTracker
    from penstock.targets.report import ErrorReport
    from penstock.targets.results import BulkError, BulkResult, Statistics
    from penstock.targets.rules.policy import RetryPolicy
    from penstock.targets.sql import MariaDbTarget, PostgresTarget, SqliteTarget, SqlOptions
    from penstock.targets.step import TargetStep
    from penstock.targets.target import Answer, Batch, Reference, Same, Target, Traits
    from penstock.targets.waves import WavesCancelled, in_waves, tables_in_waves

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
    "Cause",
    "ClientCredentials",
    "CustomLogicBypass",
    "DataverseOptions",
    "DataverseTarget",
    "Diagnostic",
    "Endpoint",
    "ErrorReport",
    "HttpTarget",
    "ItemResults",
    "Limit",
    "MariaDbTarget",
    "Meter",
    "Mode",
    "Outcome",
    "Phase",
    "Pool",
    "PostgresTarget",
    "Prober",
    "Progress",
    "ProgressTracker",
    "Reference",
    "RetryManifest",
    "RetryPolicy",
    "Same",
    "SqlOptions",
    "SqliteTarget",
    "StaticHeaders",
    "Statistics",
    "Target",
    "TargetError",
    "TargetStep",
    "Traits",
    "Trouble",
    "Verdict",
    "WavesCancelled",
    "analyze_batch_failure",
    "foresee_batch_failure",
    "in_waves",
    "plan_records",
    "plan_tables",
    "tables_in_waves",
]

# Imported when first asked for: a target's driver is loaded only by those who use it.
_HOMES = {
    "causes": ("Cause",),
    "dataverse": ("CustomLogicBypass", "DataverseOptions", "DataverseTarget"),
    "diagnostics": ("Diagnostic", "analyze_batch_failure", "foresee_batch_failure"),
    "executor": ("BulkCall", "BulkCancelled", "BulkExecutor"),
    "http": ("Body", "ClientCredentials", "Endpoint", "HttpTarget", "ItemResults", "StaticHeaders"),
    "manifest": ("RetryManifest",),
    "meter": ("Meter",),
    "model": ("BadInput", "BulkOptions", "Limit", "Mode", "Outcome", "TargetError", "Trouble", "Verdict"),
    "ordering": ("plan_records", "plan_tables"),
    "pool": ("Pool",),
    "prober": ("Prober",),
    "progress": ("Phase", "Progress", "ProgressTracker"),
    "report": ("ErrorReport",),
    "results": ("BulkError", "BulkResult", "Statistics"),
    "rules.policy": ("RetryPolicy",),
    "sql": ("MariaDbTarget", "PostgresTarget", "SqlOptions", "SqliteTarget"),
    "step": ("TargetStep",),
    "target": ("Answer", "Batch", "Reference", "Same", "Target", "Traits"),
    "waves": ("WavesCancelled", "in_waves", "tables_in_waves"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
