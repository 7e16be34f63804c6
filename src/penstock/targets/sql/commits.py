"""Commits to a server: one whose caller stops waiting, and one whose answer never came."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.targets.model import Verdict
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.target import TableBatch

__all__ = ["CANCEL_S", "Pending", "committed"]

CANCEL_S = 2.0
"""How long a cancelled call still waits for a commit or a rollback."""


async def committed(commit: Coroutine[Any, Any, Any]) -> None:
    """Await a commit. Who is cancelled meanwhile still gets its answer if it comes soon: it tells what became of it."""
    answer = asyncio.ensure_future(commit)
    try:
        await asyncio.shield(answer)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            raise
        if not (await asyncio.wait([answer], timeout=CANCEL_S))[0]:
            answer.cancel()
            raise
        task.uncancel()
        answer.result()


@dataclass(frozen=True, slots=True)
class Pending:
    """What a transaction will have done if it committed."""

    work: TableBatch
    groups: Sequence[RowGroup]
    verdicts: Sequence[Sequence[Verdict]]
    transaction_id: str = ""
    """What the server calls the transaction, where it can be asked about it."""
