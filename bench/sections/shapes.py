"""Rows and steps of other kinds, each beside the plain job in the same rounds."""

from __future__ import annotations

from collections.abc import Iterable

from bench.figures import Section
from bench.lab import Contender, Lab, ratio
from bench.places import DATABASES
from bench.sections.tables import OURS, ours, rate_lines

__all__ = ["batch", "failing", "outputs", "retry", "sync"]

FAILING_PERCENT = (1, 10, 100)


def failing(lab: Lab) -> Section:
    """Rows that fail have a story, and stories cost."""
    rows = lab.sizes.shapes
    contenders = []
    for database in lab.usual:
        for percent in FAILING_PERCENT:
            label = f"{DATABASES[database]}, {percent} % fail"
            # One row of each hundred is invalid and never gets as far as to fail.
            failed = rows // 100 * min(percent, 99)
            how = {"pipeline": "Failing", "failed": failed, "metadata": {"percent": percent}}
            contenders.append(ours(label, rows, database, **how))
    note = "Rows fail at the second of three steps. Each that fails has records of its own, so that it can be found."
    return _beside_plain(lab, "failing", "Rows that fail", note, contenders)


def outputs(lab: Lab) -> Section:
    """Steps that return something."""
    note = "Every step returns a value that is kept: a text, an object of two numbers, and a number."
    return _beside_plain(lab, "outputs", "Steps with outputs", note, _all(lab, "Outputs", "three outputs"))


def sync(lab: Lab) -> Section:
    """Steps that are plain functions."""
    note = "Three `def` steps that do nothing, run on threads."
    return _beside_plain(lab, "sync", "Plain functions as steps", note, _all(lab, "Sync", "three def steps"))


def batch(lab: Lab) -> Section:
    """Steps that take many rows at once."""
    note = "Three batch steps of 100 rows to a call that do nothing."
    return _beside_plain(lab, "batch", "Batch steps", note, _all(lab, "Batches", "three batch steps"))


def retry(lab: Lab) -> Section:
    """Failed rows run again."""
    rows = lab.sizes.retry
    contenders = [
        Contender(f"{DATABASES[database]}, retry of all", "bench.ours:retry", rows, database, durable=OURS)
        for database in lab.usual
    ]
    note = "Every valid row has failed at its second step; all are retried from there and succeed. The retry is timed."
    return _beside_plain(lab, "retry", "Retry of failed rows", note, contenders)


def _all(lab: Lab, pipeline: str, what: str) -> list[Contender]:
    return [
        ours(f"{DATABASES[database]}, {what}", lab.sizes.shapes, database, pipeline=pipeline) for database in lab.usual
    ]


def _beside_plain(lab: Lab, name: str, title: str, note: str, contenders: Iterable[Contender]) -> Section:
    plain = {database: ours(f"{DATABASES[database]}, plain", lab.sizes.shapes, database) for database in lab.usual}
    everyone = sorted([*plain.values(), *contenders], key=lambda one: lab.usual.index(str(one.database)))
    samples = lab.compare(everyone, rounds=lab.sizes.again)
    base = {one.label: plain[str(one.database)].label for one in everyone}
    lines = rate_lines(everyone, samples, {"of plain": lambda label: ratio(samples, label, to=base[label])})
    return Section(name, title, note, lines, [], samples)
