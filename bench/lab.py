"""How things are measured: each measurement in its own process, and each repetition goes round all contenders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.figures import Figure, Samples
from bench.places import Place, Places
from bench.sizes import Sizes

__all__ = ["Contender", "Lab", "MeasurementFailed", "rate", "ratio"]

LIMIT_S = 3600


class MeasurementFailed(Exception):
    """A process that measures ended badly, or its results were wrong."""


@dataclass(frozen=True)
class Contender:
    """Somebody who does the job: `entry` names a function that `bench.one` calls with `arguments`.

    With a `database` it gets a fresh one as `url`, spelled for `driver`, and a `folder`; `durable` says what it
    commits together.
    """

    label: str
    entry: str
    rows: int
    database: str | None = None
    driver: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    durable: str = ""
    python: str = sys.executable
    needs_redis: bool = False


class Lab:
    """Runs contenders in the places of one run."""

    def __init__(self, places: Places, sizes: Sizes, databases: Sequence[str], say: Callable[[str], None]) -> None:
        self.places, self.sizes, self.databases, self.say = places, sizes, databases, say

    @property
    def usual(self) -> Sequence[str]:
        """The databases for most sections: MariaDB only where it alone is asked for."""
        return [name for name in self.databases if name != "mariadb"] or self.databases

    def compare(self, contenders: Sequence[Contender], *, rounds: int) -> Samples:
        """Every contender's samples, by label; one round after the other, so that a noisy minute hits all."""
        found: dict[str, list[dict[str, Any]]] = {one.label: [] for one in contenders}
        for turn in range(rounds):
            for one in contenders:
                self.say(f"round {turn + 1} of {rounds}: {one.label}")
                found[one.label].append(self.measure(one))
        return found

    def measure(self, one: Contender) -> dict[str, Any]:
        """One measurement of one contender."""
        arguments = {"file": str(self.places.file(one.rows)), "rows": one.rows, **one.arguments}
        if one.database is None:
            return call(one.entry, arguments, one.python)
        with self.places.fresh(one.database) as place:
            sample = call(one.entry, arguments | _whereabouts(one, place), one.python, self._addresses(one, place))
            grown = self.places.bytes_of(place.kind, place.url) - place.bytes_empty
            return {**sample, "bytes_per_row": grown / one.rows}

    def _addresses(self, one: Contender, place: Place) -> dict[str, str]:
        """What the workers of queues find in their environment."""
        redis = {"BENCH_REDIS_URL": self.places.redis()} if one.needs_redis else {}
        return {"BENCH_DATABASE_URL": place.url, **redis}


def call(
    entry: str, arguments: Mapping[str, Any], python: str = sys.executable, addresses: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Call a function in a new process; what it returns, and its peak of memory."""
    command = [python, "-m", "bench.one", entry, json.dumps(arguments)]
    environment = {**os.environ, **(addresses or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    if done.returncode:
        raise MeasurementFailed(f"{entry} failed:\n{done.stdout[-2000:]}{done.stderr[-6000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def rate(samples: Samples, label: str) -> Figure:
    """Rows per second."""
    return Figure.of(_rates(samples, label))


def ratio(samples: Samples, label: str, *, to: str) -> Figure:
    """The rate of one as a multiple of another's: each round by itself, as both have met the same noise."""
    pairs = zip(_rates(samples, label), _rates(samples, to), strict=True)
    return Figure.of(mine / other for mine, other in pairs)


def _rates(samples: Samples, label: str) -> list[float]:
    return [sample["rows"] / sample["seconds"] for sample in samples[label]]


def _whereabouts(one: Contender, place: Place) -> dict[str, str]:
    if one.driver is not None:
        return {"url": place.driver_url(one.driver)}
    return {"url": place.url, "folder": str(place.folder)}
