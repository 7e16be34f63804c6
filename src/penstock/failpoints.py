"""Named points at every persisted boundary, where tests let a process die, fail or wait. Off, they cost a comparison.

Each transaction of the engine has a name; the database layer hits `<name>:before` when its statements are done and
`<name>:after` when its COMMIT is. `PENSTOCK_TEST_FAILPOINT=flush:after=3` kills a process at the third hit of a point.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["KILL_VARIABLE", "arm_from_environment", "armed", "hit"]

KILL_VARIABLE = "PENSTOCK_TEST_FAILPOINT"

_action: Callable[[str], None] | None = None


def hit(point: str) -> None:
    """We are at this point."""
    if _action is not None:
        _action(point)


@contextmanager
def armed(action: Callable[[str], None]) -> Iterator[None]:
    """Call `action` at every point inside the block; it may raise."""
    global _action  # noqa: PLW0603
    before, _action = _action, action
    try:
        yield
    finally:
        _action = before


def arm_from_environment() -> None:
    """Arm this process for good if its environment asks for a kill."""
    global _action  # noqa: PLW0603
    wish = os.environ.get(KILL_VARIABLE)
    if wish:
        point, _, count = wish.partition("=")
        _action = kill_at(point, int(count or 1))


def kill_at(point: str, count: int) -> Callable[[str], None]:
    """An action that ends the process, with no chance to clean up, at the `count`-th hit of a point."""
    hits: Counter[str] = Counter()

    def action(name: str) -> None:
        hits[name] += 1
        if name == point and hits[name] == count:
            os.kill(os.getpid(), signal.SIGKILL)

    return action
