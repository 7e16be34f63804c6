"""Penstock beside task queues and a workflow engine, all on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

from bench import goals
from bench.figures import Figure, Samples, Section, Verdict
from bench.lab import Contender, Lab, ratio
from bench.peers.environment import peers_python
from bench.sections.tables import ours, rate_lines

__all__ = ["PENSTOCK", "peers"]

TITLE = "The same job with task queues, on PostgreSQL"
NOTE = (
    "Queues keep a record for each step of each row in PostgreSQL, DBOS in tables of its own; Celery and Dramatiq send "
    "their messages through Redis (appended to a file, synced every second). They promise different things: a queue "
    "with a task per row has each row on disk for itself, Penstock repeats up to a group of 4,000 rows after a crash. "
    "How many rows share a message, a statement and a commit differs all at once, and these causes were not measured "
    "apart; the two lines of Celery show what grouping brings. Workers use both cores and are warm before time is "
    "taken; slower ones get fewer rows. Memory is that of the largest process."
)
PENSTOCK = "Penstock, PostgreSQL"
ROW_TASKS = ("Celery, task per row", "Dramatiq, message per row", "Procrastinate, job per row")


def peers(lab: Lab) -> Section:
    """How many times as fast Penstock is."""
    contenders = list(_contenders(lab))
    samples = lab.compare(contenders, rounds=lab.sizes.repeat)
    lines = rate_lines(contenders, samples, {"Penstock by it": lambda label: ratio(samples, PENSTOCK, to=label)})
    verdicts = [Verdict(goals.QUEUE, _advantage(samples), "times; it commits each row, Penstock up to 4,000")]
    return Section("peers", TITLE, NOTE, lines, verdicts, samples)


def _contenders(lab: Lab) -> Iterator[Contender]:
    sizes, python = lab.sizes, peers_python()

    def peer(label: str, entry: str, rows: int, durable: str) -> Contender:
        return Contender(
            label,
            f"bench.peers.{entry}",
            rows,
            "postgresql",
            "psycopg",
            durable=durable,
            python=python,
            needs_redis=entry.startswith(("on_celery", "on_dramatiq")),
        )

    yield ours(PENSTOCK, sizes.main, "postgresql")
    yield peer("Celery, task per 1,000 rows", "on_celery:chunks", sizes.chunks, "1,000 rows, one step")
    yield peer(ROW_TASKS[0], "on_celery:row_tasks", sizes.row_tasks, "a row")
    yield peer("Celery, chain per row", "on_celery:chains", sizes.row_chains, "a step")
    yield peer(ROW_TASKS[1], "on_dramatiq:row_messages", sizes.row_tasks, "a row")
    yield peer("Dramatiq, pipeline per row", "on_dramatiq:pipelines", sizes.row_chains, "a step")
    yield peer(ROW_TASKS[2], "on_procrastinate:row_jobs", sizes.row_tasks, "a row")
    yield peer("DBOS, workflow per row", "on_dbos:workflows", sizes.workflows, "a step")


def _advantage(samples: Samples) -> Figure:
    """Penstock's rate by that of the fastest queue with a task per row, round by round."""
    rates = {name: [one["rows"] / one["seconds"] for one in samples[name]] for name in (PENSTOCK, *ROW_TASKS)}
    rounds = zip(*(rates[name] for name in ROW_TASKS), strict=True)
    return Figure.of(mine / max(others) for mine, others in zip(rates[PENSTOCK], rounds, strict=True))
