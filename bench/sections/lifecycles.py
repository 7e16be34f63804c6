"""Lifecycles: instances moved one by one, by hand, and in bulk."""

from __future__ import annotations

from collections.abc import Iterator

from bench import goals
from bench.figures import Line, Samples, Section, Verdict
from bench.lab import Contender, Lab, rate, ratio
from bench.places import DATABASES

__all__ = ["lifecycles"]

NOTE = (
    "Instances move from one state to the next, each move with its log entry. One by one: each in a transaction of its "
    "own, synced to disk, the next when it is committed. By hand: the same writes with SQLAlchemy Core, by code that "
    "knows the ids already. transitions (PyPI): that library decides, code by hand keeps state and log. In bulk: one "
    "call for all. Every log is folded afterwards and compared with the instances."
)


def lifecycles(lab: Lab) -> Section:
    """Moves a second, and what the guarantees of a trigger cost."""
    contenders = [one for database in lab.databases for one in _contenders(lab, database)]
    samples = lab.compare(contenders, rounds=lab.sizes.again)
    lines = [line for database in lab.databases for line in _lines(samples, database)]
    verdicts = [
        Verdict(goals.TRIGGER, ratio(samples, _one(database), to=_hand(database)), DATABASES[database])
        for database in lab.databases
    ]
    verdicts += [
        Verdict(goals.TRIGGER_MANY, ratio(samples, _many(database), to=_one(database)), DATABASES[database])
        for database in lab.databases
    ]
    return Section("lifecycles", "Lifecycles", NOTE, lines, verdicts, samples)


def _contenders(lab: Lab, database: str) -> Iterator[Contender]:
    singly, many = lab.sizes.moves_singly, lab.sizes.moves
    yield Contender(_one(database), "bench.moves:one_by_one", singly, database, durable="1 move")
    yield Contender(_hand(database), "bench.moves:by_hand", singly, database, durable="1 move")
    yield Contender(_library(database), "bench.moves:with_transitions", singly, database, durable="1 move")
    yield Contender(_many(database), "bench.moves:in_bulk", many, database, durable="1,000 moves")
    yield Contender(_start(database), "bench.moves:started_in_bulk", many, database, durable="1,000 instances")


def _lines(samples: Samples, database: str) -> Iterator[Line]:
    for name in (_one, _hand, _library, _many, _start):
        label = name(database)
        cells = {
            "a second": rate(samples, label),
            "of by hand": ratio(samples, label, to=_hand(database)),
            "of one by one": ratio(samples, label, to=_one(database)),
        }
        yield Line(label, dict(cells))


def _one(database: str) -> str:
    return f"trigger, {DATABASES[database]}"


def _hand(database: str) -> str:
    return f"by hand, {DATABASES[database]}"


def _library(database: str) -> str:
    return f"transitions (PyPI), {DATABASES[database]}"


def _many(database: str) -> str:
    return f"trigger_many, {DATABASES[database]}"


def _start(database: str) -> str:
    return f"start_many, {DATABASES[database]}"
