"""Rows that wait, and the signals that wake them."""

from __future__ import annotations

from bench import goals
from bench.figures import Figure, Line, Samples, Section, Verdict
from bench.lab import Contender, Lab, rate
from bench.places import DATABASES

__all__ = ["signals"]

PER_SECOND = 100
NOTE = (
    "Rows are parked until a signal comes. Accepted: one process on one core sends to rows that wait, 32 calls at "
    "once, each on disk when it returns, while no worker runs. Latency: signals are sent at an even pace of "
    f"{PER_SECOND} a second to rows of a worker in another process; from the call to the beginning of the next step."
)


def signals(lab: Lab) -> Section:
    """Signals accepted, and how soon rows go on."""
    contenders = [one for database in lab.usual for one in _contenders(lab, database)]
    samples = lab.compare(contenders, rounds=lab.sizes.again)
    lines = [_line(samples, database) for database in lab.usual]
    verdicts = [
        Verdict(goals.SIGNALS, rate(samples, f"accept, {database}"), f"a second, {DATABASES[database]}")
        for database in lab.usual
    ]
    if "postgresql" in lab.usual:
        found = _figure(samples, "latency, postgresql", "p99_ms")
        verdicts.append(Verdict(goals.SIGNAL_LATENCY, found, "ms, PostgreSQL"))
    return Section("signals", "Waits and signals", NOTE, lines, verdicts, samples)


def _contenders(lab: Lab, database: str) -> list[Contender]:
    pace = {"per_second": PER_SECOND}
    return [
        Contender(f"accept, {database}", "bench.waits:accept", lab.sizes.signals, database),
        Contender(f"latency, {database}", "bench.waits:latency", lab.sizes.paced, database, arguments=pace),
    ]


def _line(samples: Samples, database: str) -> Line:
    accepted = samples[f"accept, {database}"]
    cells: dict[str, Figure | str] = {
        "parked rows/s": Figure.of(one["rows"] / one["park_s"] for one in accepted),
        "signals/s accepted": rate(samples, f"accept, {database}"),
        "rows/s going on": Figure.of(one["rows"] / one["finish_s"] for one in accepted),
        "p50 ms": _figure(samples, f"latency, {database}", "p50_ms"),
        "p99 ms": _figure(samples, f"latency, {database}", "p99_ms"),
    }
    return Line(DATABASES[database], cells)


def _figure(samples: Samples, label: str, name: str) -> Figure:
    return Figure.of(one[name] for one in samples[label])
