"""What really happened at the remote: every change once per application, every request, the most calls at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .wire import Request

__all__ = ["Arrival", "Change", "Entry", "Ledger"]


@dataclass(frozen=True)
class Change:
    """One change of one row: `what` is create, update or delete; `index` its place in the call."""

    table: str
    key: str
    what: str
    values: Mapping[str, Any]
    index: int


@dataclass
class Arrival:
    """A request as it came in, what it was answered with, and the parts of a batch."""

    number: int
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    at: float
    bytes: int
    user: str | None = None
    web_server: int = 0
    rows: int = 0
    table: str | None = None
    action: str = ""
    parts: Sequence[Request] = ()
    status: int | None = None
    """None while it runs, and for good when the connection was dropped instead."""

    @property
    def tag(self) -> str | None:
        """What plug-ins would see as the caller's tag."""
        return self.query.get("tag")

    @property
    def request_id(self) -> str:
        """The client's own id of the request, or ours."""
        return self.headers.get("x-ms-client-request-id", f"request-{self.number}")


@dataclass(frozen=True)
class Entry:
    """One application of one change, by one request of one user, at one time."""

    change: Change
    request: int
    request_id: str
    user: str
    action: str
    at: float

    @property
    def table(self) -> str:
        return self.change.table

    @property
    def key(self) -> str:
        return self.change.key

    @property
    def what(self) -> str:
        return self.change.what

    @property
    def values(self) -> Mapping[str, Any]:
        return self.change.values


@dataclass
class Ledger:
    """The account that tests hold clients to."""

    entries: list[Entry] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    concurrency_max: Counter[str] = field(default_factory=Counter)
    """The most calls at once that were seen of each user."""
    in_flight: Counter[str] = field(default_factory=Counter)

    def of(self, table: str, what: str | None = None) -> list[Entry]:
        """The changes of a table, of one kind if named."""
        return [entry for entry in self.entries if entry.table == table and what in {None, entry.what}]

    def times(self, table: str, column: str, what: str | None = None) -> Counter[Any]:
        """How often each value of a column was applied; a column unique among the records shows exactly-once."""
        return Counter(entry.values.get(column) for entry in self.of(table, what))

    def doubled(self, table: str, column: str, what: str = "create") -> dict[Any, int]:
        """The values that were applied more than once."""
        return {value: count for value, count in self.times(table, column, what).items() if count > 1}

    def calls(self, action: str | None = None, table: str | None = None) -> list[Arrival]:
        """The requests of one action (`CreateMultiple`, `$batch`, `DELETE`, …), to one table if named."""
        wanted = (call for call in self.arrivals if action in {None, call.action})
        return [call for call in wanted if table in {None, call.table}]

    def statuses(self) -> Counter[int | None]:
        """How often each status was answered."""
        return Counter(call.status for call in self.arrivals)

    @contextmanager
    def counted(self, user: str) -> Iterator[None]:
        """Count a call as in flight."""
        self.in_flight[user] += 1
        self.concurrency_max[user] = max(self.concurrency_max[user], self.in_flight[user])
        try:
            yield
        finally:
            self.in_flight[user] -= 1
