"""Dramatiq with Redis: a message per row, or a pipeline of messages per row."""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.job import STEPS
from bench.peers.crew import REDIS, Numbered, crew, save, timed, verdicts
from bench.records import COMPLETED, now_us, record
from bench.script import judge

__all__ = ["pipelines", "row_messages"]

dramatiq.set_broker(RedisBroker(url=REDIS))
WORKER = ("-m", "dramatiq", "bench.peers.on_dramatiq", "--processes", "2", "--threads", "8")


class Invalid(ValueError):
    """Ends a pipeline."""


@dramatiq.actor(max_retries=0, throws=(Invalid,))
def validate(number: int, raw: dict[str, str]) -> tuple[int, Any]:
    row, told = judge(number, raw)
    save([told])
    if row is None:
        raise Invalid(number)
    return number, row.model_dump(mode="json")


@dramatiq.actor(max_retries=0)
def step(index: int, item: tuple[int, Any]) -> tuple[int, Any]:
    save([record(item[0], index, COMPLETED, now_us())])
    return item


@dramatiq.actor(max_retries=0)
def whole_row(number: int, raw: dict[str, str]) -> None:
    save(list(verdicts(number, raw)))


def pipelines(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """Four messages per row; each commits its record."""

    def produce(numbered: Numbered) -> None:
        for number, raw in numbered:
            steps = [step.message(index) for index in range(1, STEPS + 1)]
            dramatiq.pipeline([validate.message(number, raw), *steps]).run()

    with crew(WORKER):
        return timed(file, rows, produce)


def row_messages(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """A message per row; the actor commits the row's records together."""

    def produce(numbered: Numbered) -> None:
        for number, raw in numbered:
            whole_row.send(number, raw)

    with crew(WORKER):
        return timed(file, rows, produce)
