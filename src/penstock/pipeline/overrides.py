"""Options set over those in the code: by a deployment or a single run, or by what was stored with an operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError, Fault, SettingsInvalid
from penstock.pipeline.keys import KeyTemplate
from penstock.pipeline.options import OPERATION_RULES, OperationOptions, operation_options, step_options
from penstock.pipeline.rows import RowType
from penstock.pipeline.rules import checked, optional, text

if TYPE_CHECKING:
    from penstock.pipeline.definition import Definition, StepPlan

__all__ = ["overridden", "overridden_for_run", "planned"]

Changes = dict[str, Any]

# Options of steps that earlier releases stored; they have no meaning any more.
RETIRED = ("wait",)
# The key of the rows belongs to the operation, but not to its options.
RULES = {**OPERATION_RULES, "row_key": optional(text)}


def overridden(definition: Definition, overrides: Mapping[str, Any]) -> Definition:
    """The definition with these options instead of its own; `SettingsInvalid` with every fault."""
    own, by_step, faults = _sorted_out(definition, overrides)
    kept, wrong = checked(RULES, own)
    faults += wrong
    row = _rekeyed(definition.row, kept.pop("row_key", definition.row_key), faults)
    steps = tuple(_changed(definition, step, by_step.get(step.index, {}), faults) for step in definition.steps)
    _raise_any(definition, faults)
    options: OperationOptions = replace(definition.options, **kept)
    return replace(definition, row=row, options=options, steps=steps)


def overridden_for_run(definition: Definition, overrides: Mapping[str, Any]) -> Definition:
    """The same, where all options are to be stored: of exception classes only the names could be."""
    changed = overridden(definition, overrides)
    unstorable = "holds exception classes, which can be set in code only"
    _raise_any(
        definition,
        [
            Fault(unstorable, f"{step.attribute}.retry_on")
            for step, declared in zip(changed.steps, definition.steps, strict=True)
            if step.options.retry_on != declared.options.retry_on
        ],
    )
    return changed


def planned(definition: Definition, plan: Mapping[str, Any]) -> Definition:
    """The definition with all options of a stored plan; `InvalidInput` when the plan does not fit it."""
    if found := definition.differences(plan):
        raise DeclarationError(f"the code does not fit: {'; '.join(found)}")
    options, faults = operation_options(plan["options"])
    row = _rekeyed(definition.row, plan["row_key"], faults)
    steps = tuple(
        _as_stored(definition, step, stored, faults)
        for step, stored in zip(definition.steps, plan["steps"], strict=True)
    )
    _raise_any(definition, faults)
    return replace(definition, row=row, options=options, steps=steps)


def _raise_any(definition: Definition, faults: list[Fault]) -> None:
    if faults:
        listed = "; ".join(map(str, faults))
        raise SettingsInvalid(f"operation {definition.name!r} cannot take these options: {listed}", faults)


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
            faults.append(Fault(f"there is no such step; known: {known}", step_name))
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


def _rekeyed(row: RowType, row_key: str | None, faults: list[Fault]) -> RowType:
    if row_key == row.row_key:
        return row
    try:
        return RowType(row.model, row_key)
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
        if step.functions.key is None and options.key is not None:
            template = _template(definition, step, options.key, faults)
        else:
            fault = "cannot be changed, because a .key method computes it, or left out"
            faults.append(Fault(fault, f"{step.attribute}.key"))
    return replace(step, options=options, key_template=template)


def _as_stored(definition: Definition, step: StepPlan, stored: Mapping[str, Any], faults: list[Fault]) -> StepPlan:
    """The step with stored options. Without a stored key template its code computes the key, as it does now."""
    given = {name: value for name, value in stored["options"].items() if name not in RETIRED}
    given["retry_on"] = step.options.retry_on  # of classes only the names are stored
    options, wrong = step_options(step.kind, given, step.attribute)
    faults += wrong
    template = step.key_template
    if options.key is not None:
        template = _template(definition, step, options.key, faults)
    effect_name = stored.get("effect_name", "")
    return replace(step, options=options, key_template=template, effect_name=effect_name)


def _template(definition: Definition, step: StepPlan, key: str, faults: list[Fault]) -> KeyTemplate | None:
    place = f"{step.attribute}.key"
    try:
        template = KeyTemplate.parse(key)
    except ValueError as error:
        faults.append(Fault(str(error), place))
        return None
    faults += [Fault(wrong, place) for wrong in template.faults(definition.row, definition.meta)]
    return template
