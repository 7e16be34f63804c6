"""The main job: no tracking at all, Penstock with one process and two workers, and a script written by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bench import goals
from bench.figures import Figure, Samples, Section, Verdict
from bench.lab import Contender, Lab, ratio
from bench.peers.environment import peers_python
from bench.places import DATABASES
from bench.sections.tables import ours, rate_lines

__all__ = ["FLOOR", "main"]

FLOOR = "no tracking (the floor)"
TITLE = "The job: validate every row, run three steps, keep every outcome"
NOTE = (
    "A CSV file of eight typed columns, one row in 100 invalid; the steps do nothing, so only the bookkeeping is "
    "measured. The floor parses and validates the same rows and awaits the same steps, and keeps nothing. "
    "The script keeps a record for each step of each row with SQLAlchemy Core. With two workers, the second is a "
    "process that waits for work when time begins. Every commit is synced to disk."
)


def main(lab: Lab) -> Section:
    """Who is how fast, and what share of the floor that is."""
    contenders = [Contender(FLOOR, "bench.floor:no_tracking", lab.sizes.main, durable="nothing")]
    for database in lab.databases:
        contenders += _contenders(lab, database)
    samples = lab.compare(contenders, rounds=lab.sizes.repeat)
    lines = rate_lines(contenders, samples, {"of the floor": lambda label: ratio(samples, label, to=FLOOR)})
    verdicts = [verdict for database in lab.databases for verdict in _verdicts(samples, database)]
    return Section("main", TITLE, NOTE, lines, verdicts, samples)


def _contenders(lab: Lab, database: str) -> Iterator[Contender]:
    name, rows = DATABASES[database], lab.sizes.main
    yield ours(f"Penstock, {name}", rows, database)
    yield ours(f"Penstock, {name}, two workers", rows, database, workers=2)
    if database == "sqlite":
        yield _script(name, lab.sizes.script, database, "pysqlite")
    elif database == "postgresql":
        yield _script(f"{name}, psycopg", lab.sizes.script, database, "psycopg", python=peers_python())
        yield _script(f"{name}, asyncpg", lab.sizes.script, database, "asyncpg", entry="asynchronous")
    else:
        yield _script(name, lab.sizes.script, database, "pymysql", python=peers_python())


def _script(
    name: str, rows: int, database: str, driver: str, *, entry: str = "synchronous", python: str = sys.executable
) -> Contender:
    return Contender(
        f"script, {name}",
        f"bench.script:{entry}",
        rows,
        database,
        driver,
        durable="1,000 rows, one step",
        python=python,
    )


def _verdicts(samples: Samples, database: str) -> Iterator[Verdict]:
    name = DATABASES[database]
    mine = f"Penstock, {name}"
    if database != "mariadb":
        yield Verdict(goals.ONE_PROCESS, ratio(samples, mine, to=FLOOR), name)
        yield Verdict(goals.TWO_WORKERS, ratio(samples, f"{mine}, two workers", to=FLOOR), name)
        for script in (label for label in samples if label.startswith(f"script, {name}")):
            yield Verdict(goals.SCRIPT[database], ratio(samples, mine, to=script), f"times the {script}")
    yield Verdict(goals.MEMORY, Figure.of(sample["peak_mb"] for sample in samples[mine]), f"MB, {name}")
    if database == "sqlite":
        yield Verdict(goals.DISK, Figure.of(sample["bytes_per_row"] for sample in samples[mine]), f"bytes, {name}")
