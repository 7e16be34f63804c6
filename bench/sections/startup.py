"""How long it takes until anything happens."""

from __future__ import annotations

from bench import goals
from bench.figures import Figure, Line, Samples, Section, Verdict
from bench.lab import Contender, Lab

__all__ = ["startup"]

LABELS = {
    "python": "python -c pass",
    "import": "import penstock",
    "engine": "from penstock import Penstock",
    "help": "penstock --help",
}


def startup(lab: Lab) -> Section:
    """Seconds from the command to its end."""
    contenders = [
        Contender(label, "bench.starts:start", 100, arguments={"command": command}) for command, label in LABELS.items()
    ]
    samples = lab.compare(contenders, rounds=lab.sizes.starts)
    lines = [Line(one.label, {"seconds": _seconds(samples, one.label)}) for one in contenders]
    verdicts = [Verdict(goals.HELP, _seconds(samples, LABELS["help"]), "s")]
    return Section("startup", "Starting", "From the command to its end, with warm files.", lines, verdicts, samples)


def _seconds(samples: Samples, label: str) -> Figure:
    return Figure.of(one["seconds"] for one in samples[label])
