"""What must be true of lifecycles after a storm, from the callers' journals and what is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from penstock import Penstock
from penstock.lifecycles import Delivery, LogEntry
from penstock.listing import Page

from .journal import Said
from .lifecycle_callers import CONSUMER, EFFECTS
from .oracle import Finding

__all__ = ["judge_lifecycles", "lifecycle_faults"]

T = TypeVar("T")


async def judge_lifecycles(penstock: Penstock, said: Sequence[Said]) -> tuple[list[Finding], int]:
    """Everything that is amiss, and how many entries the log has."""
    lifecycles = penstock.lifecycles
    _, differences = await lifecycles.verify()
    found = [Finding("lifecycle_verify", str(difference)) for difference in differences]
    log = await _all(lifecycles.log)
    told = await _all(lifecycles.deliveries.list)
    found += [Finding(rule, message) for rule, message in lifecycle_faults(log, told, said)]
    return found, len(log)


async def _all(lister: Callable[..., Awaitable[Page[T]]]) -> list[T]:
    """Every page of a list."""
    page = await lister(limit=1000)
    items = list(page.items)
    while page.next_cursor is not None:
        page = await lister(limit=1000, cursor=page.next_cursor)
        items += page.items
    return items


def lifecycle_faults(
    log: Sequence[LogEntry], told: Iterable[Delivery], said: Sequence[Said]
) -> Iterator[tuple[str, str]]:
    """Requests that moved twice or not as they were told, and moves whose deliveries are missing."""
    entries: dict[str, list[LogEntry]] = {}
    for entry in log:
        if entry.request_key is not None and entry.actor != "timer":
            entries.setdefault(entry.request_key, []).append(entry)
    for key, mine in entries.items():
        if len(mine) > 1:
            yield "a_request_moves_once", f"{key} has moved {len(mine)} times"
    for key in entries.keys() - {line.detail["key"] for line in said}:
        yield "moves_were_asked_for", f"{key} is in the log, and nobody asked for it"
    for line in said:
        if line.answer is not None:
            yield from _answer_faults(line.detail["key"], line.answer, entries.get(line.detail["key"], []))
    yield from _delivery_faults([entry for entry in log if entry.kind == "moved"], told)


def _answer_faults(key: str, answer: dict[str, Any], mine: Sequence[LogEntry]) -> Iterator[tuple[str, str]]:
    if answer["kind"] not in ("applied", "duplicate"):
        if mine:
            yield "refusals_move_nothing", f"{key} was answered {answer['kind']}, and is in the log"
    elif not mine:
        yield "acknowledged_moves_are_kept", f"{key} was answered {answer['kind']}, and is not in the log"
    else:
        kept = {name: getattr(mine[0], name) for name in ("guid", "sequence", "source", "event", "target")}
        if any(answer[name] != value for name, value in kept.items()):
            yield "answers_are_true", f"{key} was answered {answer}, and the log has {kept}"


def _delivery_faults(moves: Iterable[LogEntry], told: Iterable[Delivery]) -> Iterator[tuple[str, str]]:
    heard = Counter((each.entry.guid, each.entry.sequence, each.consumer == CONSUMER) for each in told)
    for entry in moves:
        for is_consumer, many in ((True, 1), (False, EFFECTS if entry.target == "Busy" else 0)):
            got = heard[entry.guid, entry.sequence, is_consumer]
            if got != many:
                who = "its consumer" if is_consumer else "its effects"
                yield "moves_have_their_deliveries", f"{entry.guid}:{entry.sequence} has {got} for {who}, not {many}"
