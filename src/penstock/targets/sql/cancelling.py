"""What happens to a transaction whose caller does not want to wait any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["CANCEL_S", "committed"]

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
