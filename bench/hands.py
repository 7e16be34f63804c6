"""Worker processes beside the one that measures: `python -m bench.hands SETTINGS PIPELINE` works until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.pipelines import PIPELINES
from penstock import Penstock
from penstock.settings import Settings

__all__ = ["working"]

STOP_S = 30


@contextmanager
def working(settings: Settings, pipeline: str, count: int) -> Iterator[None]:
    """So many worker processes; they have begun to look for work when this is entered."""
    command = [sys.executable, "-m", "bench.hands", settings.model_dump_json(), pipeline]
    hands = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for hand in hands:
            assert hand.stdout is not None
            assert hand.stdout.readline() == "ready\n", "a worker did not start"
        yield
    finally:
        for hand in hands:
            hand.terminate()
        for hand in hands:
            hand.wait(STOP_S)


async def _work(settings: Settings, pipeline: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with (
        Penstock.open(operations=[PIPELINES[pipeline]], settings=settings) as penstock,
        penstock.worker(owns_process=True) as worker,
    ):
        print("ready", flush=True)
        await worker.run(stop)


if __name__ == "__main__":
    asyncio.run(_work(Settings.model_validate_json(sys.argv[1]), sys.argv[2]))
