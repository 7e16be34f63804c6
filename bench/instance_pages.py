"""Pages of many instances, by flag and by state: `python -m bench.instance_pages --db postgresql --instances 100000`.

Prints the median and the longest time of pages at the beginning, in the middle and at the end, and the index by which
the database finds them. Exit 1 when pages take too long or no index is used.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event

from bench import goals
from bench.figures import percentile
from penstock import Machine, Penstock
from penstock.clock import SystemClock
from penstock.db.upgrade import upgrade
from penstock.lifecycles import InstanceFlag
from penstock.settings import Settings
from tests import servers

ORDER = Machine.of("order", ("New", "pay", "Paid"), ("Paid", "ship", "Shipped"), ("New", "lose", "Lost"))
RARE = 1000  # one in so many is suspended, and one in so many is lost
LIMIT = 100
ROUNDS = 10
INDEXES = ("ix_penstock_lifecycle_instance_flags", "ix_penstock_lifecycle_instance_state")

FILTERS: dict[str, dict[str, Any]] = {
    "a common state": {"definition": "order", "state": "New"},
    "a common state of late": {"definition": "order", "state": "Paid"},
    "a rare state": {"definition": "order", "state": "Lost"},
    "a common flag": {"all_of": InstanceFlag.ACTIVE},
    "a rare flag": {"all_of": InstanceFlag.SUSPENDED},
    "not some flags": {"none_of": InstanceFlag.SUSPENDED | InstanceFlag.COMPLETED},
    "a version and a rare flag": {"definition": "order", "any_of": InstanceFlag.SUSPENDED},
}


async def measure(url: str, folder: Path, count: int) -> bool:
    """Fill, list, print; whether all is well."""
    await upgrade(url, SystemClock())
    is_well = True
    settings = Settings(database_url=url, storage_url=str(folder / "files"))
    async with Penstock.open(settings=settings) as penstock:
        began = time.perf_counter()
        await _fill(penstock, count)
        print(f"  filled in {time.perf_counter() - began:.0f} s", flush=True)
        for name, filters in FILTERS.items():
            times, plan = await _pages(penstock, filters)
            middle, worst = (percentile(times, percent) * 1000 for percent in (50, 99))
            used = [index for index in INDEXES if index in plan]
            is_fine = middle < goals.PAGE.bound and bool(used)
            is_well &= is_fine
            found = ", ".join(used) or plan
            print(f"  {name:<28}{middle:8.1f} ms{worst:8.1f} ms{'  ' if is_fine else '  NOT WELL  '}{found}")
    return is_well


async def _fill(penstock: Penstock, count: int) -> None:
    lifecycles = penstock.lifecycles
    await lifecycles.import_machine(ORDER)
    started = await lifecycles.start_many("order", map(str, range(count)))
    await lifecycles.trigger_many([each.guid for each in started[count // 2 :]], "pay")
    await lifecycles.trigger_many([each.guid for each in started[: count // 2 : RARE]], "lose")
    for each in started[1::RARE]:
        await lifecycles.suspend(each.guid)
    if penstock.db.dialect.name == "postgresql":
        async with penstock.db.connection() as connection:
            await connection.exec_driver_sql("VACUUM ANALYZE penstock_lifecycle_instance")


async def _pages(penstock: Penstock, filters: dict[str, Any]) -> tuple[list[float], str]:
    """The times of some pages, and how the first was found."""
    lifecycles, times = penstock.lifecycles, []
    last = (await lifecycles.instances(limit=1)).items[0].id
    total = await lifecycles.count()
    for cursor in (None, str(last + total // 2), str(last + total - 2 * LIMIT)):
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await lifecycles.instances(**filters, cursor=cursor, limit=LIMIT)
            times.append(time.perf_counter() - began)
    return times, await _plan(penstock, filters)


async def _plan(penstock: Penstock, filters: dict[str, Any]) -> str:
    """How the database finds a page."""
    sent: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    engine = penstock.db._engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        await penstock.lifecycles.instances(**filters, limit=LIMIT)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    statement, parameters = next(each for each in reversed(sent) if "penstock_lifecycle_instance" in each[0])
    word = "EXPLAIN QUERY PLAN" if penstock.db.dialect.is_file else "EXPLAIN"
    async with penstock.db.connection() as connection:
        rows = (await connection.exec_driver_sql(f"{word} {statement}", parameters)).mappings().all()
    # MariaDB also names keys that it might have used.
    return " / ".join(str(row["key"]) if "key" in row else " ".join(map(str, row.values())) for row in rows)


@contextmanager
def _place(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'penstock.db'}"
        return
    with servers.private(kind) as server:
        yield server.url


def main() -> int:
    """Measure on each database."""
    parser = argparse.ArgumentParser(prog="python -m bench.instance_pages", description=__doc__)
    parser.add_argument("--db", action="append", choices=("sqlite", *servers.KINDS))
    parser.add_argument("--instances", type=int, default=1_000_000)
    given = parser.parse_args()
    is_well = True
    for kind in given.db or ("sqlite", *servers.KINDS):
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, _place(kind, Path(folder)) as url:
            print(f"{kind}, {given.instances:,} instances, pages of {LIMIT}", flush=True)
            is_well &= asyncio.run(measure(url, Path(folder), given.instances))
    return not is_well


if __name__ == "__main__":
    sys.exit(main())
