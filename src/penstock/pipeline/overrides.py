"""Options that a deployment or a single run sets over those in the code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError, Fault, SettingsInvalid
from penstock.pipeline.keys import KeyTemplate
from penstock.pipeline.options import OPERATION_RULES, OperationOptions, StepOptions, step_options
from penstock.pipeline.rows import RowType
from penstock.pipeline.rules import checked, optional, text

if TYPE_CHECKING:
    from penstock.pipeline.definition import Definition, StepPlan

__all__ = ["overridden"]

Changes = dict[str, Any]

# The key of the rows belongs to the operation, but not to its options.
RULES = {**OPERATION_RULES, "row_key": optional(text)}


def overridden(definition: Definition, overrides: Mapping[str, Any]) -> Definition:
    """The definition with these options instead of its own; `SettingsInvalid` with every fault."""
    own, by_step, faults = _sorted_out(definition, overrides)
    kept, wrong = checked(RULES, own)
    faults += wrong
    row = _rekeyed(definition.row, kept, faults)
    steps = tuple(_changed(definition, step, by_step.get(step.index, {}), faults) for step in definition.steps)
    if faults:
        listed = "; ".join(map(str, faults))
        raise SettingsInvalid(f"operation {definition.name!r} cannot take these options: {listed}", faults)
    options: OperationOptions = replace(definition.options, **kept)
    return replace(definition, row=row, options=options, steps=steps)


def _sorted_out(
    definition: Definition, overrides: Mapping[str, Any]
) -> tuple[Changes, dict[int, Changes], list[Fault]]:
    """The operation's own options, those of each step by its index, and what fits neither."""
    own: Changes = {}
    by_step: dict[int, Changes] = {}
    faults: list[Fault] = []
    for step_name, name, value in _flattened(overrides, faults):
        if step_name is None:
            own[name] = value
        elif step := definition.find_step(step_name):
            by_step.setdefault(step.index, {})[name] = value
        else:
            known = ", ".join(step.attribute for step in definition.steps)
            faults.append(Fault(f"there is no such step; known are: {known}", step_name))
    return own, by_step, faults


def _flattened(overrides: Mapping[str, Any], faults: list[Fault]) -> list[tuple[str | None, str, Any]]:
    """Every override as (step or None, option, value), whichever way it was written."""
    found: list[tuple[str | None, str, Any]] = []
    for name, value in overrides.items():
        if name == "steps":
            if not isinstance(value, Mapping) or not all(isinstance(inner, Mapping) for inner in value.values()):
                faults.append(Fault("must be a mapping from steps to their options", "steps"))
                continue
            found += [(step, option, inner) for step, options in value.items() for option, inner in options.items()]
        else:
            step, dot, option = name.removeprefix("steps.").rpartition(".")
            found.append((step, option, value) if dot else (None, name, value))
    return found


def _rekeyed(row: RowType, kept: Changes, faults: list[Fault]) -> RowType:
    if "row_key" not in kept:
        return row
    try:
        return RowType(row.model, kept.pop("row_key"))
    except DeclarationError as error:
        faults.append(Fault(str(error), "row_key"))
        return row


def _changed(definition: Definition, step: StepPlan, changes: Changes, faults: list[Fault]) -> StepPlan:
    if not changes:
        return step
    options, wrong = step_options(step.kind, {**step.options.given(step.kind), **changes}, step.attribute)
    faults += wrong
    template = step.key_template
    if "key" in changes and not wrong:
        template = _template(definition, step, options, faults)
    return replace(step, options=options, key_template=template)


def _template(definition: Definition, step: StepPlan, options: StepOptions, faults: list[Fault]) -> KeyTemplate | None:
    place = f"{step.attribute}.key"
    if step.functions.key is not None or options.key is None:
        faults.append(Fault("cannot be changed, because a .key method computes it, or left out", place))
        return None
    try:
        template = KeyTemplate.parse(options.key)
    except ValueError as error:
        faults.append(Fault(str(error), place))
        return None
    faults += [Fault(wrong, place) for wrong in template.unknown(definition.row.names, definition.meta.names)]
    return template
