"""The names that users of bulk calls rely on, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock import targets

DRIVERS = ("httpx", "asyncpg", "asyncmy", "sqlalchemy", "pydantic", "rich")


def test_the_public_names_are_these():
    assert targets.__all__ == [
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


@pytest.mark.parametrize("name", targets.__all__)
def test_every_public_name_can_be_had(name: str):
    assert getattr(targets, name).__doc__


def test_other_names_cannot():
    with pytest.raises(AttributeError, match="no attribute 'BulkWish'"):
        getattr(targets, "BulkWish")  # noqa: B009


def test_an_executor_is_imported_without_any_driver():
    asked = f"import sys; from penstock.targets import BulkExecutor; print([d for d in {DRIVERS} if d in sys.modules])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
