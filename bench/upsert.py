"""`python -m bench.upsert`: Penstock's upsert into a PostgreSQL table against a hand-tuned loop, in turns.

Half of the records are in the table already. The loop copies batches into a temporary table and merges them, on as many
connections; it reports nothing. Penstock tells created from updated for every record. Figures are comparable within one
run only.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from operator import itemgetter
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from penstock.targets.executor import BulkExecutor
from penstock.targets.sql import PostgresTarget, SqlOptions
from tests.servers import private

Record = dict[str, Any]
COLUMNS = ("id", "email", "name", "amount", "quantity")
TABLE = "CREATE TABLE people (id integer PRIMARY KEY, email text, name text, amount float8, quantity integer)"
STAGE = "CREATE TEMP TABLE IF NOT EXISTS stage (LIKE people) ON COMMIT DELETE ROWS"
MERGE = f"INSERT INTO people ({', '.join(COLUMNS)}) SELECT * FROM stage ON CONFLICT (id) DO UPDATE SET " + ", ".join(
    f"{name} = excluded.{name}" for name in COLUMNS[1:]
)


def record(n: int) -> Record:
    """The nth record."""
    return {
        "id": n,
        "email": f"user{n}@example.com",
        "name": f"First{n % 997} Last{n % 1009}",
        "amount": n * 37 % 100_000 / 100,
        "quantity": n % 50,
    }


async def loop(dsn: str, records: list[Record], batch: int, connections: int) -> None:
    """The hand-tuned loop."""
    opened = [await asyncpg.connect(dsn) for _ in range(connections)]
    pick = itemgetter(*COLUMNS)
    starts = iter(range(0, len(records), batch))

    async def work(connection: Any) -> None:
        for start in starts:
            async with connection.transaction():
                await connection.execute(STAGE)
                rows = list(map(pick, records[start : start + batch]))
                await connection.copy_records_to_table("stage", records=rows, columns=COLUMNS)
                await connection.execute(MERGE)

    await asyncio.gather(*map(work, opened))
    for connection in opened:
        await connection.close()


async def penstock(dsn: str, records: list[Record], batch: int, connections: int) -> None:
    """The executor with its PostgreSQL target."""
    target = PostgresTarget(dsn, connections=connections)
    options = SqlOptions(batch_size=batch, batch_size_max=batch)
    result = await BulkExecutor(target, options=options).upsert_multiple("people", records)
    await target.aclose()
    assert result.is_success
    assert result.created_count == result.updated_count == len(records) // 2


CONTENDERS: dict[str, Callable[[str, list[Record], int, int], Awaitable[None]]] = {"loop": loop, "penstock": penstock}


async def measure(dsn: str, name: str, records: list[Record], batch: int, connections: int) -> float:
    """Seconds for all records, on a fresh table with every other record in it."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"DROP TABLE IF EXISTS people; {TABLE}")
    old = [tuple(record.values()) for record in records[::2]]
    await connection.copy_records_to_table("people", records=old, columns=COLUMNS)
    for settle in ("VACUUM ANALYZE people", "CHECKPOINT"):
        await connection.execute(settle)
    began = time.perf_counter()
    await CONTENDERS[name](dsn, records, batch, connections)
    seconds = time.perf_counter() - began
    assert await connection.fetchval("SELECT count(*) FROM people") == len(records)
    await connection.close()
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.upsert", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=4)
    given = parser.parse_args()
    records = [record(n) for n in range(1, given.rows + 1)]
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with private("postgresql", "-c", "shared_buffers=128MB") as server:
        for _ in range(given.repeat):
            for name in CONTENDERS:
                found[name].append(asyncio.run(measure(server.url, name, records, given.batch, given.connections)))
    base = statistics.median(found["loop"])
    print(f"{given.rows:,} records, batches of {given.batch:,}, {given.connections} connections")
    for name, seconds in found.items():
        median = statistics.median(seconds)
        print(f"{name:10}{given.rows / median:12,.0f} records/s{base / median:8.2f} of the loop")


if __name__ == "__main__":
    main()
