"""Upserts with what people use instead: SQLAlchemy, pandas, and dlt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from bench.people import CHANGED, COLUMNS, Record, batches, check, fill, record, table

__all__ = ["with_dlt", "with_pandas", "with_sqlalchemy"]


def with_sqlalchemy(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """Core's INSERT with a clause for conflicts, batch by batch; it sends many values with one statement."""

    def upsert(engine: sa.Engine, records: list[Record]) -> None:
        for some in batches(records):
            with engine.begin() as connection:
                connection.execute(_statement(engine.dialect.name).returning(table.c.id), some).close()

    return _measured(url, rows, upsert)


def with_pandas(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """`to_sql` into a table of its own, batch by batch, and a statement that merges it."""
    import pandas

    def upsert(engine: sa.Engine, records: list[Record]) -> None:
        staged = sa.select(*(sa.column(name) for name in COLUMNS)).select_from(sa.table("stage"))
        merge = _statement(engine.dialect.name, staged.where(sa.true()))
        for some in batches(records):
            frame = pandas.DataFrame.from_records(some, columns=COLUMNS)
            with engine.begin() as connection:
                frame.to_sql("stage", connection, if_exists="replace", index=False, method="multi", chunksize=1000)
                connection.execute(merge)

    return _measured(url, rows, upsert)


def with_dlt(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """A pipeline that merges by the primary key."""
    os.environ |= {"RUNTIME__LOG_LEVEL": "ERROR", "RUNTIME__DLTHUB_TELEMETRY": "false"}
    import dlt

    plain = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    pipeline = dlt.pipeline("people", destination=dlt.destinations.postgres(plain), dataset_name="bench")

    def load(records: list[Record]) -> None:
        pipeline.run(
            dlt.resource(
                records,
                name="people",
                primary_key="id",
                write_disposition={"disposition": "merge", "strategy": "upsert"},
            )
        ).raise_on_failed_jobs()

    load([record(n) | {"quantity": -1} for n in range(1, rows + 1, 2)])
    records = [record(n) for n in range(1, rows + 1)]
    began = time.perf_counter()
    load(records)
    seconds = time.perf_counter() - began
    engine = sa.create_engine(url, execution_options={"schema_translate_map": {None: "bench"}})
    with engine.begin() as connection:
        check(connection, rows)
    pipeline.drop()
    return {"seconds": seconds, "rows": rows}


def _measured(url: str, rows: int, upsert: Callable[[sa.Engine, list[Record]], None]) -> dict[str, Any]:
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _make_durable)
    records = [record(n) for n in range(1, rows + 1)]
    with engine.begin() as connection:
        fill(connection, rows)
    began = time.perf_counter()
    upsert(engine, records)
    seconds = time.perf_counter() - began
    with engine.begin() as connection:
        check(connection, rows)
    engine.dispose()
    return {"seconds": seconds, "rows": rows}


def _statement(dialect: str, source: sa.Select[Any] | None = None) -> Any:
    if dialect in ("mysql", "mariadb"):
        into = mysql.insert(table) if source is None else mysql.insert(table).from_select(COLUMNS, source)
        return into.on_duplicate_key_update({name: into.inserted[name] for name in CHANGED})
    made = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    filled = made if source is None else made.from_select(COLUMNS, source)
    return filled.on_conflict_do_update(index_elements=["id"], set_={name: filled.excluded[name] for name in CHANGED})


def _make_durable(connection: Any, _: Any) -> None:
    for setting in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {setting}")
