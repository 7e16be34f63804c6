"""The machine a run was made on: what it has, and how busy it was with other things."""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from bench.places import DATABASES, Places

__all__ = ["Machine", "look"]

SYNCS = 50


@dataclass(frozen=True)
class Machine:
    """What figures depend on. `load` is that of others, at the start."""

    cores: int
    processor: str
    memory_gb: float
    sync_us: float
    load: float
    python: str
    databases: dict[str, str]

    def __str__(self) -> str:
        databases = ", ".join(f"{name} {version}" for name, version in self.databases.items())
        return (
            f"{self.cores} cores ({self.processor}), {self.memory_gb:.0f} GB, {self.sync_us:.0f} µs to sync a page to "
            f"disk, load {self.load:.1f} at the start; Python {self.python}, {databases}"
        )


def look(places: Places, databases: tuple[str, ...]) -> Machine:
    """Examine this machine."""
    load = os.getloadavg()[0]
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=_processor(),
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        sync_us=_sync_us(places.folder / "sync"),
        load=load,
        python=platform.python_version(),
        databases={DATABASES[name]: places.version(name) for name in databases},
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _sync_us(path: Path) -> float:
    """How long the disk takes to make one page durable."""
    found = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(8192))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - began)
    return statistics.median(found) * 1e6
