"""Celery with Redis: a chain of tasks per row, a task per row, or a task per thousand rows."""

from __future__ import annotations

from itertools import islice
from typing import Any

import sqlalchemy as sa
from celery import Celery, chain

from bench.job import STEPS
from bench.peers.crew import DATABASE, REDIS, Numbered, crew, save, timed, verdicts
from bench.records import COMPLETED, now_us, record, table
from bench.script import BATCH, judge, nothing, steps_of

__all__ = ["chains", "chunks", "row_tasks"]

app = Celery("bench", broker=REDIS)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
)
WORKER = ("-m", "celery", "-A", "bench.peers.on_celery", "worker", "--pool", "prefork", "--concurrency", "2")
QUIET = ("-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat")


class Invalid(ValueError):
    """Ends a chain."""


@app.task(name="validate", throws=(Invalid,))
def validate(number: int, raw: dict[str, str]) -> tuple[int, Any]:
    row, told = judge(number, raw)
    save([told])
    if row is None:
        raise Invalid(number)
    return number, row.model_dump(mode="json")


@app.task(name="step")
def step(item: tuple[int, Any], index: int) -> tuple[int, Any]:
    save([record(item[0], index, COMPLETED, now_us())])
    return item


@app.task(name="row")
def whole_row(number: int, raw: dict[str, str]) -> None:
    save(list(verdicts(number, raw)))


@app.task(name="chunk")
def chunk(numbered: Numbered) -> None:
    engine = _engine()
    for records in steps_of(numbered, nothing):
        with engine.begin() as connection:
            connection.execute(sa.insert(table), records)


def chains(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """A chain of four tasks per row; each commits its record."""

    def produce(numbered: Numbered) -> None:
        with app.pool.acquire() as connection, app.amqp.Producer(connection) as producer:
            for number, raw in numbered:
                steps = (step.s(index) for index in range(1, STEPS + 1))
                chain(validate.s(number, raw), *steps).apply_async(producer=producer)

    with crew([*WORKER, *QUIET]):
        return timed(file, rows, produce)


def row_tasks(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """A task per row; it commits the row's records together."""

    def produce(numbered: Numbered) -> None:
        with app.pool.acquire() as connection, app.amqp.Producer(connection) as producer:
            for item in numbered:
                whole_row.apply_async(item, producer=producer)

    with crew([*WORKER, *QUIET]):
        return timed(file, rows, produce)


def chunks(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """A task per thousand rows, which does what the hand-written script does."""

    def produce(numbered: Numbered) -> None:
        rest = iter(numbered)
        while batch := list(islice(rest, BATCH)):
            chunk.delay(batch)

    with crew([*WORKER, *QUIET]):
        return timed(file, rows, produce)


_engines: list[sa.Engine] = []


def _engine() -> sa.Engine:
    """The engine of this worker process, made when first needed: after the fork."""
    if not _engines:
        _engines.append(sa.create_engine(sa.make_url(DATABASE).set(drivername="postgresql+psycopg")))
    return _engines[0]
