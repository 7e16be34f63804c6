"""Steps that wait, as calls over a network do: how close Penstock comes to no overhead at all."""

from __future__ import annotations

from bench import goals
from bench.figures import Figure, Section, Verdict
from bench.job import STEPS, bad_rows
from bench.lab import Contender, Lab, rate, ratio
from bench.places import DATABASES
from bench.sections.tables import ours, rate_lines

__all__ = ["sleeping"]

AT_ONCE, SLEEP_S = 100, 0.01
BARE = "bare asyncio, 100 tasks"
NOTE = (
    "Three steps of 10 ms each, 100 rows at once. The ideal is that every row takes its 30 ms, a hundred at a time, "
    "and nothing else takes any; 100 bare tasks show what the event loop itself can reach."
)


def sleeping(lab: Lab) -> Section:
    """How much of the ideal rate is reached."""
    rows = lab.sizes.sleeping
    bare = Contender(BARE, "bench.floor:sleeping", rows, arguments={"at_once": AT_ONCE, "sleep_s": SLEEP_S})
    tracked = [ours(f"Penstock, {DATABASES[database]}", rows, database, pipeline="Sleeping") for database in lab.usual]
    samples = lab.compare([bare, *tracked], rounds=lab.sizes.again)
    ideal_s = (rows - bad_rows(rows)) * STEPS * SLEEP_S / AT_ONCE

    def of_ideal(label: str) -> Figure:
        found = rate(samples, label)
        return Figure(*(value * ideal_s / rows for value in (found.value, found.low, found.high)))

    def of_bare(label: str) -> Figure:
        return ratio(samples, label, to=BARE)

    lines = rate_lines([bare, *tracked], samples, {"of ideal": of_ideal, "of bare": of_bare})
    verdicts = [Verdict(goals.ASLEEP, of_ideal(one.label), one.label) for one in tracked]
    return Section("sleeping", "Steps that wait", NOTE, lines, verdicts, samples)
