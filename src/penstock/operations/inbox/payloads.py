"""Whether the payload of a signal can be the output of the step that waits for it.

It is asked where a signal comes in, if the operation's code is there, and again where it is applied: who let it in may
have had no code, and of several steps that could wait on its key another may have been meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from penstock.errors import InvalidInput
from penstock.operations.inbox.addressing import Subject
from penstock.operations.inbox.applying import SignalContent
from penstock.operations.inbox.matching import Match
from penstock.operations.messages import cut
from penstock.pipeline import Definition, StepPlan

__all__ = ["SignalledSteps", "refuse_unfit", "signalled_steps", "with_refusals"]

SignalledSteps = Mapping[int, StepPlan]


def signalled_steps(definition: Definition | None, plan: Mapping[str, Any]) -> SignalledSteps:
    """The signalled steps of a stored plan as our code has them, by index; none without the code."""
    if definition is None:
        return {}
    found = {index: definition.find_step(stored["attribute"]) for index, stored in enumerate(plan["steps"])}
    return {index: step for index, step in found.items() if step is not None and step.kind == "signal"}


def refuse_unfit(subject: Subject, definition: Definition | None, key: str, payload: msgspec.Raw | None) -> None:
    """Raise `InvalidInput` if the payload fits none of the steps that could wait on this key."""
    if payload is None:
        return
    steps = signalled_steps(definition, subject.plan)
    reasons = list[str]()
    for index in subject.steps_for(key):
        reason = _unfit(steps[index], bytes(payload)) if index in steps else None
        if reason is None:
            return
        reasons.append(reason)
    raise InvalidInput(_refusal(key, reasons))


def with_refusals(matches: Mapping[Match, SignalContent], steps: SignalledSteps) -> dict[Match, SignalContent]:
    """What signals say to the rows that take them; a payload that does not fit the row's step is `unfit`."""
    return {found: _judged(found, content, steps.get(found.step)) for found, content in matches.items()}


def _judged(found: Match, content: SignalContent, step: StepPlan | None) -> SignalContent:
    if step is None or content.outcome != "ok" or content.payload is None:
        return content
    reason = _unfit(step, msgspec.json.encode(content.payload))
    if reason is None:
        return content
    return replace(content, outcome="unfit", payload=None, message=cut(_refusal(found.signal.key, [reason])))


def _unfit(step: StepPlan, payload: bytes) -> str | None:
    output = step.output
    reason = output.objection(payload)
    return None if reason is None else f"does not fit step {step.name!r}, whose output is {output.described}: {reason}"


def _refusal(key: str, reasons: list[str]) -> str:
    return f"the payload for key {key!r} {', and '.join(reasons)}"
