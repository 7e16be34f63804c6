"""High throughput against throttled remotes, with an outcome for every record; needs no database of ours."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.targets.dataverse import CustomLogicBypass, DataverseOptions, DataverseTarget
    from penstock.targets.diagnostics import Diagnostic, analyze_batch_failure
    from penstock.targets.executor import BulkCall, BulkCancelled, BulkExecutor
    from penstock.targets.http import HttpTarget
    from penstock.targets.model import BadInput, BulkOptions, Limit, Mode, Outcome, TargetError, Trouble, Verdict
    from penstock.targets.pool import Pool
    from penstock.targets.prober import Prober
    from penstock.targets.progress import Progress, ProgressTracker
    from penstock.targets.results import BulkError, BulkResult, Statistics
    from penstock.targets.rules.policy import RetryPolicy
    from penstock.targets.sql import MariaDbTarget, PostgresTarget, SqliteTarget, SqlOptions
    from penstock.targets.step import TargetStep
    from penstock.targets.target import Answer, Batch, Reference, Same, Target, Traits

__all__ = [
    "Answer",
    "BadInput",
    "Batch",
    "BulkCall",
    "BulkCancelled",
    "BulkError",
    "BulkExecutor",
    "BulkOptions",
    "BulkResult",
    "CustomLogicBypass",
    "DataverseOptions",
    "DataverseTarget",
    "Diagnostic",
    "HttpTarget",
    "Limit",
    "MariaDbTarget",
    "Mode",
    "Outcome",
    "Pool",
    "PostgresTarget",
    "Prober",
    "Progress",
    "ProgressTracker",
    "Reference",
    "RetryPolicy",
    "Same",
    "SqlOptions",
    "SqliteTarget",
    "Statistics",
    "Target",
    "TargetError",
    "TargetStep",
    "Traits",
    "Trouble",
    "Verdict",
    "analyze_batch_failure",
]

# Imported when first asked for: a target's driver is loaded only by those who use it.
_HOMES = {
    "dataverse": ("CustomLogicBypass", "DataverseOptions", "DataverseTarget"),
    "diagnostics": ("Diagnostic", "analyze_batch_failure"),
    "executor": ("BulkCall", "BulkCancelled", "BulkExecutor"),
    "http": ("HttpTarget",),
    "model": ("BadInput", "BulkOptions", "Limit", "Mode", "Outcome", "TargetError", "Trouble", "Verdict"),
    "pool": ("Pool",),
    "prober": ("Prober",),
    "progress": ("Progress", "ProgressTracker"),
    "results": ("BulkError", "BulkResult", "Statistics"),
    "rules.policy": ("RetryPolicy",),
    "sql": ("MariaDbTarget", "PostgresTarget", "SqlOptions", "SqliteTarget"),
    "step": ("TargetStep",),
    "target": ("Answer", "Batch", "Reference", "Same", "Target", "Traits"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
