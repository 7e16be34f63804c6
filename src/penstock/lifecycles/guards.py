"""Guards and gates: named callables that allow or deny a transition, and conditions over an instance's data.

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

__all__ = ["Allow", "Deny", "Guard", "GuardContext", "denial"]

log = logging.getLogger("penstock.lifecycles")


@dataclass(frozen=True, slots=True)
class Deny:
    """A guard's answer: no, and why."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Allow:
    """A gate's answer: yes, and the gates behind it need not be asked, for this reason."""

    reason: str


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


Answer = bool | Allow | Deny
Guard = Callable[[GuardContext], Answer | Awaitable[Answer]]


async def denial(transition: LifecycleTransition, guards: Mapping[str, Guard], context: GuardContext) -> str | None:
    """Why this transition is denied; None when its condition is met and its guard and all gates allow it.

    They are asked in order, and the first that denies ends it. A gate may allow it for those behind it too.
    """
    if transition.condition is not None:
        why = unmet(transition.condition, context.data)
        if why is not None:
            return why
    if transition.guard is not None:
        answer = await _asked("guard", transition.guard, guards, context)
        if isinstance(answer, str):
            return answer
    for gate in transition.gates:
        answer = await _asked("gate", gate, guards, context)
        if isinstance(answer, str):
            return answer
        if isinstance(answer, Allow):
            log.info("gate %s let instance %s pass: %s", gate, context.instance.guid, answer.reason)
            return None
    return None


async def _asked(kind: str, name: str, guards: Mapping[str, Guard], context: GuardContext) -> Allow | str | None:
    """Why it is denied, as text; None or `Allow` when it is not."""
    guard = guards.get(name)
    if guard is None:
        return f"no {kind} {name!r} is registered; registered are: {', '.join(sorted(guards)) or 'none'}"
    try:
        answer = guard(context)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:
        log.warning("%s %s raised for instance %s", kind, name, context.instance.guid, exc_info=True)
        return f"{kind} {name!r} raised {type(error).__name__}: {error}"
    return _meaning(kind, name, answer)


def _meaning(kind: str, name: str, answer: object) -> Allow | str | None:
    if answer is True or isinstance(answer, Allow):
        return None if answer is True else answer
    if isinstance(answer, Deny):
        return answer.reason
    if answer is False:
        return f"{kind} {name!r} denied it"
    known = "True, False or Deny(reason)" if kind == "guard" else "True, False, Deny(reason) or Allow(reason)"
    return f"{kind} {name!r} answered {answer!r:.60}; it answers {known}"
