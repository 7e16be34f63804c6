"""Upserts into tables: Penstock beside the best way by hand, and beside what people use instead."""

from __future__ import annotations

from collections.abc import Iterator

from bench import goals
from bench.figures import Line, Samples, Section, Verdict
from bench.lab import Contender, Lab, rate, ratio
from bench.peers.environment import peers_python
from bench.places import DATABASES

__all__ = ["upserts"]

NOTE = (
    "Records of five columns into a table that has half of them already. Penstock runs with its defaults and tells for "
    "every record whether it was created or updated. By hand: COPY into a temporary table and a merge on PostgreSQL, "
    "many values with one INSERT on MariaDB (four connections each), a prepared statement on SQLite; batches of "
    "10,000, nothing is told. SQLAlchemy: its INSERT with a clause for conflicts. pandas: `to_sql` and a merge. dlt: a "
    "pipeline that merges."
)
DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg", "mariadb": "pymysql"}
PEERS = {"SQLAlchemy": "with_sqlalchemy", "pandas": "with_pandas", "dlt": "with_dlt"}


def upserts(lab: Lab) -> Section:
    """Records a second, and how many times the others' that is."""
    contenders = [one for database in lab.databases for one in _contenders(lab, database)]
    samples = lab.compare(contenders, rounds=lab.sizes.again)
    lines = [_line(samples, one) for one in contenders]
    verdicts = [
        Verdict(goals.UPSERT, ratio(samples, _label("Penstock", name), to=_label("by hand", name)), DATABASES[name])
        for name in lab.databases
    ]
    return Section("upserts", "Upserts into a table", NOTE, lines, verdicts, samples)


def _contenders(lab: Lab, database: str) -> Iterator[Contender]:
    rows, python = lab.sizes.upserted, peers_python()
    yield Contender(_label("Penstock", database), "bench.upserts:penstock", rows, database)
    yield Contender(_label("by hand", database), "bench.upserts:by_hand", rows, database)
    for name, entry in PEERS.items():
        if name != "dlt" or database == "postgresql":
            where = f"bench.peers.on_tables:{entry}"
            yield Contender(_label(name, database), where, rows, database, DRIVERS[database], python=python)


def _line(samples: Samples, one: Contender) -> Line:
    assert one.database is not None
    mine, hand = _label("Penstock", one.database), _label("by hand", one.database)
    cells = {
        "records/s": rate(samples, one.label),
        "of by hand": ratio(samples, one.label, to=hand),
        "Penstock by it": ratio(samples, mine, to=one.label),
    }
    return Line(one.label, dict(cells))


def _label(who: str, database: str) -> str:
    return f"{who}, {DATABASES[database]}"
