"""How many requests a bulk call costs, whoever makes them on its behalf."""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["RequestCounter", "count_request"]


class RequestCounter:
    """The requests of one bulk call; tasks that are started after `begin` count here."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self) -> None:
        """Count what this task, and those it starts, send."""
        _current.set(self)


_current: ContextVar[RequestCounter | None] = ContextVar("penstock_requests", default=None)


def count_request() -> None:
    """A target is about to send a request, of whatever kind."""
    counter = _current.get()
    if counter is not None:
        counter.count += 1
