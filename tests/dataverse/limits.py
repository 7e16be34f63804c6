"""The service protection limits: sliding windows for each user on each web server."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from .problems import LimitName, Problem, throttled

__all__ = ["Limits", "Pace", "Quota", "Window"]


@dataclass(frozen=True)
class Quota:
    """What one user may ask of one web server within `window_s`; the defaults are the platform's."""

    requests: int = 6000
    execution_s: float = 1200
    concurrency: int = 52
    window_s: float = 300
    dop_hint: int = 5
    """The parallelism the server recommends to this user, until changed live."""
    growth_s: float = 1
    """By how much each call made before the wait is over lengthens it."""


@dataclass(frozen=True)
class Pace:
    """What work costs the server in seconds: every call, every row of a bulk action, every single operation."""

    call_s: float = 0
    row_s: float = 0
    single_s: float = 0

    def cost_s(self, rows: int, singles: int) -> float:
        return self.call_s + rows * self.row_s + singles * self.single_s


class Window:
    """One user's recent use of one web server."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.in_flight = 0
        self._starts: deque[float] = deque()
        self._spent: deque[tuple[float, float]] = deque()
        self._spent_s = 0.0
        self._closed_until = -math.inf
        self._closed_by: LimitName = "requests"
        self._strikes = 0

    def admit(self, now: float) -> Problem | None:
        """Let a call in, or say why not and how long to wait; waiting grows when the wait is not kept."""
        self._forget(now)
        if now < self._closed_until:
            self._closed_until = min(self._closed_until + self.quota.growth_s, now + self.quota.window_s)
            return self._refusal(self._closed_by, self._closed_until - now)
        if self.in_flight >= self.quota.concurrency:
            self._strikes += 1
            return self._refusal("concurrency", 1 + (self._strikes - 1) * self.quota.growth_s)
        wait_s, limit = self._wait(now)
        if wait_s > 0:
            self._closed_until, self._closed_by = now + wait_s, limit
            return self._refusal(limit, wait_s)
        self._strikes = 0
        self._starts.append(now)
        self.in_flight += 1
        return None

    def leave(self, now: float, spent_s: float) -> None:
        """A call that was let in is over."""
        self.in_flight -= 1
        self._spent.append((now, spent_s))
        self._spent_s += spent_s

    def remaining(self) -> dict[str, str]:
        """The debugging headers about this web server's windows."""
        return {
            "x-ms-ratelimit-burst-remaining-xrm-requests": str(max(0, self.quota.requests - len(self._starts))),
            "x-ms-ratelimit-time-remaining-xrm-requests": f"{max(0.0, self.quota.execution_s - self._spent_s):.2f}",
        }

    def _wait(self, now: float) -> tuple[float, LimitName]:
        if len(self._starts) >= self.quota.requests:
            return self._starts[0] + self.quota.window_s - now, "requests"
        over_s = self._spent_s - self.quota.execution_s
        if over_s < 0:
            return 0, "time"
        for at, spent_s in self._spent:
            over_s -= spent_s
            if over_s < 0:
                return at + self.quota.window_s - now, "time"
        return self.quota.window_s, "time"

    def _refusal(self, limit: LimitName, wait_s: float) -> Problem:
        most = {
            "requests": self.quota.requests,
            "time": self.quota.execution_s * 1000,
            "concurrency": self.quota.concurrency,
        }
        return throttled(limit, max(1, math.ceil(wait_s)), most=most[limit], window_s=self.quota.window_s)

    def _forget(self, now: float) -> None:
        horizon = now - self.quota.window_s
        while self._starts and self._starts[0] <= horizon:
            self._starts.popleft()
        while self._spent and self._spent[0][0] <= horizon:
            self._spent_s -= self._spent.popleft()[1]
        if not self._spent:
            self._spent_s = 0.0


class Limits:
    """The windows of all users on all web servers."""

    def __init__(self, users: Mapping[str, Quota], web_servers: int) -> None:
        self.web_servers = web_servers
        self._windows = {(user, n): Window(quota) for user, quota in users.items() for n in range(web_servers)}
        self._next = 0

    def window(self, user: str, web_server: int) -> Window:
        return self._windows[user, web_server]

    def choose(self, cookie: str | None) -> int:
        """The web server an affinity cookie names, or the next one in turn."""
        named = next((n for n in range(self.web_servers) if cookie and affinity(n) in cookie), None)
        if named is not None:
            return named
        self._next = (self._next + 1) % self.web_servers
        return self._next


def affinity(web_server: int) -> str:
    """The cookie that pins a client to a web server."""
    return f"ARRAffinity={web_server:032x}"
