"""A soak of compressed time: so many operations a day for so many days, pruned by policy; does anything grow?

`python -m tests.torture.soak --per-day 1000 --days 365 --keep-days 30` simulates a year, `--scale 0.05` with a
twentieth of the load. It prints the size of every table and the time that a look for work takes, month by month, and
ends with 1 when a table is larger at the end than it was once the first operations had gone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel
from sqlalchemy import func, select

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.db.schema import metadata
from penstock.operations.chunk import store
from penstock.operations.pruning import applying
from penstock.settings import Settings
from penstock.testing import Engine, engine

__all__ = ["Day", "growing", "soak"]

DAY_S = 86_400
ROWS = 3
LOOKS = 20
# Nothing is ever taken out of the log of who did what: each entry holds the digest of the one before.
GROWS_BY_DESIGN = {"penstock_audit_entry"}
GROWTH_MAX = 1.25  # the last day of a soak against the first on which as much is removed as is created


class Parcel(BaseModel):
    code: str


@operation("parcels", row_key="code")
class Parcels(Pipeline[Parcel]):
    """Of three rows one waits for a signal, one fails and is retried."""

    @step(retries=1, backoff=0)
    async def pack(self, parcel: Parcel, ctx: Context) -> str:
        if parcel.code.startswith("late") and ctx.attempt == 1:
            raise OSError("not now")
        return f"packed {parcel.code}"

    @step
    async def check(self, parcel: Parcel, ctx: Context) -> None:
        if parcel.code.startswith("bad") and ctx.generation == 0:
            raise StepFailed("torn")

    @step.signal(key="sent-{row.code}", timeout=3600)
    async def send(self, parcel: Parcel, ctx: Context) -> None: ...


@dataclass(frozen=True)
class Day:
    """A day's end: how many records each table has, bytes of files, and how long a look for work takes."""

    number: int
    tables: dict[str, int]
    files: int
    look_us: float


async def soak(folder: Path, *, url: str | None = None, per_day: int, days: int, keep_days: int) -> AsyncIterator[Day]:
    """Live through so many days, and say how each ended."""
    settings = Settings(keep={"operations": keep_days * DAY_S}, chunk_rows=100)
    async with engine([Parcels], tmp_path=folder, url=url, settings=settings) as e:
        services = {service.name: service for service in e.worker.services}
        for number in range(1, days + 1):
            await _work_of_a_day(e, [f"{number}-{each}" for each in range(per_day)])
            _age_files(folder)
            await e.advance(DAY_S - 1)
            await services["idle operations"].tick()
            await _prune(e, services["retention"].tick)
            yield Day(number, await _sizes(e), len(list((folder / "files").rglob("*"))), await _look_us(e))


async def _work_of_a_day(e: Engine, names: Sequence[str]) -> None:
    """Operations that are under way together: they wait, fail, are signalled and retried, and end."""
    made = {name: (await e.create(Parcels, _rows(name))).id for name in names}
    await e.work_until_idle()
    await e.advance(1)
    await e.work_until_idle()
    await _signal(e, made, "late", "good")
    await asyncio.gather(*(e.operations.retry(each, rows=[2]) for each in made.values()))
    await e.work_until_idle()
    await _signal(e, made, "bad")


def _rows(name: str) -> list[dict[str, str]]:
    return [{"code": f"{kind}-{name}"} for kind in ("late", "bad", "good")]


async def _signal(e: Engine, made: Mapping[str, str], *kinds: str) -> None:
    signals = e.penstock.signals
    sent = (signals.complete(each, f"sent-{kind}-{name}") for name, each in made.items() for kind in kinds)
    await asyncio.gather(*sent)
    await e.work_until_idle()


async def _prune(e: Engine, tick: Callable[[], Awaitable[object]]) -> None:
    """Let the service pass until nothing more is due, as it would within a day."""
    before = -1
    while before != (now := await _count(e, "penstock_operation")):
        before = now
        for _ in range(2):  # the first may only find that it is time to look again
            await tick()
    e.clock.advance(applying.LOOK_AGAIN_S)
    await e.advance(0)


async def _sizes(e: Engine) -> dict[str, int]:
    return {table.name: await _count(e, table.name) for table in metadata.sorted_tables}


async def _count(e: Engine, name: str) -> int:
    async with e.penstock.db.read() as tx:
        return int((await tx.execute(select(func.count()).select_from(metadata.tables[name]))).scalar_one())


async def _look_us(e: Engine) -> float:
    """How long a worker's look for work takes, in the middle of several."""
    taken = []
    for _ in range(LOOKS):
        async with e.penstock.db.read() as tx:
            begun = time.perf_counter()
            await store.candidates(e.penstock.db, tx, names=["parcels"], limit=10)
            taken.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(taken)


def _age_files(folder: Path) -> None:
    """Files that were stored within the last hour stay; here days pass in seconds."""
    for path in (folder / "files").rglob("*"):
        if path.is_file() and not path.name.startswith("storage-"):
            os.utime(path, (time.time() - DAY_S,) * 2)


def growing(before: Day, after: Day) -> list[str]:
    """The tables that have grown between two days on which as much was removed as was created."""
    sizes = {**after.tables, "files": after.files}
    first = {**before.tables, "files": before.files}
    grown = {name for name, size in sizes.items() if size > first[name] * GROWTH_MAX + 1}
    return sorted(grown - GROWS_BY_DESIGN)


async def _main(given: argparse.Namespace, folder: Path) -> int:
    per_day = max(1, round(given.per_day * given.scale))
    steady: Day | None = None
    last: Day | None = None
    async for day in soak(folder, url=given.db, per_day=per_day, days=given.days, keep_days=given.keep_days):
        last = day
        if day.number == given.keep_days + 2:
            steady = day
        if day.number % 30 == 0 or day.number in (1, given.keep_days + 2):
            sizes = " ".join(f"{name.removeprefix('penstock_')}={size}" for name, size in day.tables.items() if size)
            print(f"day {day.number}: look {day.look_us:.0f} µs, files={day.files} {sizes}", flush=True)
    if steady is None or last is None:
        print("too short to see whether anything grows: more days than --keep-days are needed")
        return 2
    grown = growing(steady, last)
    print(f"grown: {', '.join(grown) or 'nothing'}; a look took {steady.look_us:.0f} µs, then {last.look_us:.0f} µs")
    return 1 if grown else 0


def main() -> int:
    """Run a soak as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", help="a database of your own; SQLite in a folder that goes, unless given")
    parser.add_argument("--per-day", type=int, default=1000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--keep-days", type=int, default=30)
    parser.add_argument("--scale", type=float, default=1.0, help="the part of --per-day that is really created")
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as folder:
        return asyncio.run(_main(parser.parse_args(), Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
