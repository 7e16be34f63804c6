"""Whether the code of an operation fits the plan that was stored when the operation was created. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["differences"]


def differences(plan: Mapping[str, Any], code: Mapping[str, Any]) -> tuple[str, ...]:
    """What of a stored plan the code (`Definition.code_document`) does not have as it was; nothing when it fits.

    An operation that was created without a version is judged by its steps alone.
    """
    found: list[str] = []
    before, now = plan.get("version"), code.get("version")
    if before is not None and before != now:
        found.append(f"it has version {before}, the code has {'none' if now is None else f'version {now}'}")
    kinds = {step["attribute"]: step["kind"] for step in plan["steps"]}
    kinds_now = dict(code["steps"])
    found += [f"step {name!r} is gone" for name in kinds if name not in kinds_now]
    found += [f"step {name!r} is new" for name in kinds_now if name not in kinds]
    found += [
        f"step {name!r} is a {kinds_now[name]} step now, and was a {kind} step"
        for name, kind in kinds.items()
        if kinds_now.get(name, kind) != kind
    ]
    if kinds.keys() == kinds_now.keys() and list(kinds) != list(kinds_now):
        found.append(f"its steps run in the order {', '.join(kinds)}, those of the code in {', '.join(kinds_now)}")
    return tuple(found)
