"""Guards: named callables that allow or deny a transition, and conditions over an instance's data.

They are called before the transaction, on the instance as it was read; the transaction moves it only if it is still
that. A guard that is not registered or raises denies: nothing passes a guard that nobody asked.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.graphs.conditions import unmet
from penstock.lifecycles.model import Instance
from penstock.lifecycles.rules.graph import LifecycleTransition

__all__ = ["Deny", "Guard", "GuardContext", "denial"]

log = logging.getLogger("penstock.lifecycles")


@dataclass(frozen=True, slots=True)
class Deny:
    """A guard's answer: no, and why."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class GuardContext:
    """What a guard is shown."""

    instance: Instance
    event: str
    source: str
    target: str
    actor: str
    metadata: Mapping[str, Any]
    correlation: str | None = None

    @property
    def data(self) -> Mapping[str, Any]:
        """The instance's data."""
        return self.instance.data


Answer = bool | Deny
Guard = Callable[[GuardContext], Answer | Awaitable[Answer]]


async def denial(transition: LifecycleTransition, guards: Mapping[str, Guard], context: GuardContext) -> str | None:
    """Why this transition is denied; None when its condition is met and its guard allows it."""
    if transition.condition is not None:
        why = unmet(transition.condition, context.data)
        if why is not None:
            return why
    return None if transition.guard is None else await _asked(transition.guard, guards, context)


async def _asked(name: str, guards: Mapping[str, Guard], context: GuardContext) -> str | None:
    guard = guards.get(name)
    if guard is None:
        return f"no guard {name!r} is registered; registered are: {', '.join(sorted(guards)) or 'none'}"
    try:
        answer = guard(context)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:
        log.warning("guard %s raised for instance %s", name, context.instance.guid, exc_info=True)
        return f"guard {name!r} raised {type(error).__name__}: {error}"
    if answer is True:
        return None
    if isinstance(answer, Deny):
        return answer.reason
    if answer is False:
        return f"guard {name!r} denied it"
    return f"guard {name!r} answered {answer!r:.60}; it answers True, False or Deny(reason)"
