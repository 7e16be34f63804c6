"""What processes noted of their calls, and what follows from that alone: how many at once, and who stood still."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Call", "calls_of", "idle_s_of", "most_at_once", "most_in_a_second", "standstills"]


@dataclass
class Call:
    """One call of the step; `end` is its process's death if it noted none."""

    start: float
    end: float


def calls_of(path: Path, died_at: float) -> Iterator[tuple[str, Call]]:
    """The calls of one process, by operation."""
    open_calls: dict[tuple[str, str], float] = {}
    for line in path.read_text().splitlines():
        what, made, row, at = line.split()
        if what == "began":
            open_calls[made, row] = float(at)
        else:
            yield made, Call(open_calls.pop((made, row)), float(at))
    for (made, _), start in open_calls.items():
        yield made, Call(start, died_at)


def most_at_once(calls: Sequence[Call]) -> int:
    """The most calls that were ever under way together."""
    moments = sorted([(call.start, 1) for call in calls] + [(call.end, -1) for call in calls])
    inside = most = 0
    for _, change in moments:
        inside += change
        most = max(most, inside)
    return most


def most_in_a_second(calls: Sequence[Call]) -> int:
    """The most calls that ever began within one second."""
    starts, first, most = sorted(call.start for call in calls), 0, 0
    for last, start in enumerate(starts):
        while start - starts[first] >= 1:
            first += 1
        most = max(most, last - first + 1)
    return most


def longest_idle_s(calls: Sequence[Call], since: float, until: float) -> float:
    """The longest time from `since` to `until` in which none was under way."""
    longest, busy_until = 0.0, since
    for call in sorted(calls, key=lambda call: call.start):
        longest = max(longest, min(call.start, until) - busy_until)
        busy_until = max(busy_until, call.end)
    return max(longest, until - busy_until)


def idle_s_of(calls: Mapping[str, Sequence[Call]], created: Mapping[str, float], end: float) -> dict[str, float]:
    """How long each operation stood still; it has work until the next one is created, and the last one until the end.

    `created` is in order.
    """
    untils = [*list(created.values())[1:], end]
    return {
        made: longest_idle_s(calls.get(made, ()), since, until)
        for (made, since), until in zip(created.items(), untils, strict=True)
    }


def standstills(idle_s: Mapping[str, float], idle_s_max: float) -> list[str]:
    """What is to be said of operations that stood still for too long."""
    return [
        f"operation {made} stood still for {each_s:.1f} s while it had work"
        for made, each_s in idle_s.items()
        if each_s > idle_s_max
    ]
