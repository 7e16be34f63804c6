"""Asks how a table behaves, outside of a bulk call but under the same limits and retries."""

from __future__ import annotations

from penstock.targets.executor import BulkExecutor
from penstock.targets.model import BulkOptions, Mode
from penstock.targets.running.calling import Caller
from penstock.targets.running.inputs import checked_table
from penstock.targets.running.job import Job
from penstock.targets.running.opening import described
from penstock.targets.running.party import Party
from penstock.targets.target import Traits

__all__ = ["traits_of"]


async def traits_of(executor: BulkExecutor, mode: Mode, table: str, options: BulkOptions) -> Traits:
    """How the table behaves; raises the `TargetError` that no retry could avoid."""
    target, pool = executor.target, executor.pool
    target.check_options(options)
    job = Job(target, checked_table(table), mode, options, "")
    return (await described(job, Caller(target, pool, Party(None)))).traits
