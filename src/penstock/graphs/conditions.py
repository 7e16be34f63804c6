"""Conditions over an instance's data, as documents: compared, never evaluated as code.

{"field": "amount", "op": "<=", "value": 1000}
{"all": [{"field": "paid", "op": "=", "value": true}, {"not": {"field": "hold", "op": "exists"}}]}
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.errors import Fault

__all__ = ["OPERATORS", "condition_faults", "unmet"]

DEPTH_MAX = 10

_MISSING = object()


def _same(found: Any, value: Any) -> bool:
    # In Python True equals 1, in a document it does not.
    return isinstance(found, bool) is isinstance(value, bool) and bool(found == value)


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": _same,
    "!=": lambda found, value: not _same(found, value),
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda found, value: any(_same(found, each) for each in value),
    "not in": lambda found, value: not any(_same(found, each) for each in value),
}
_ORDERED = ("<", "<=", ">", ">=")
OPERATORS = (*_COMPARED, "exists", "missing")


def condition_faults(condition: Any, path: str, depth: int = 1) -> Iterator[Fault]:
    """Everything that is wrong with a condition, each with its path in the document."""
    if depth > DEPTH_MAX:
        yield Fault(f"is nested more than {DEPTH_MAX} deep", path)
        return
    if not isinstance(condition, Mapping):
        yield Fault(f"is an object with field, op and value, or with all, any or not; found {condition!r:.60}", path)
        return
    combined = [word for word in ("all", "any", "not") if word in condition]
    if combined:
        yield from _combination_faults(condition, combined[0], path, depth)
    else:
        yield from _comparison_faults(condition, path)


def _combination_faults(condition: Mapping[str, Any], word: str, path: str, depth: int) -> Iterator[Fault]:
    yield from (
        Fault(f"stands beside {word!r}; combine them in a list", f"{path}.{key}") for key in condition if key != word
    )
    inner = condition[word]
    if word == "not":
        yield from condition_faults(inner, f"{path}.not", depth + 1)
    elif not isinstance(inner, list) or not inner:
        yield Fault("is a list of at least one condition", f"{path}.{word}")
    else:
        for place, each in enumerate(inner):
            yield from condition_faults(each, f"{path}.{word}[{place}]", depth + 1)


def _comparison_faults(condition: Mapping[str, Any], path: str) -> Iterator[Fault]:
    unknown = [key for key in condition if key not in ("field", "op", "value")]
    yield from (Fault("unknown key; a condition has field, op and value", f"{path}.{key}") for key in unknown)
    if not isinstance(condition.get("field"), str) or not condition["field"]:
        yield Fault("names a field of the data, such as 'amount' or 'customer.country'", f"{path}.field")
    op = condition.get("op")
    if op not in OPERATORS:
        yield Fault(f"is one of {', '.join(OPERATORS)}; found {op!r}", f"{path}.op")
        return
    value = condition.get("value", _MISSING)
    if op in ("exists", "missing"):
        if value is not _MISSING:
            yield Fault(f"{op!r} takes no value", f"{path}.value")
    elif value is _MISSING:
        yield Fault(f"{op!r} compares with a value", f"{path}.value")
    elif op in ("in", "not in") and not isinstance(value, list):
        yield Fault(f"{op!r} takes a list", f"{path}.value")
    elif op in _ORDERED and (isinstance(value, bool) or not isinstance(value, int | float | str)):
        yield Fault(f"{op!r} compares numbers or text; found {value!r:.60}", f"{path}.value")


def unmet(condition: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """Why the data does not meet a checked condition; None when it does."""
    if "all" in condition:
        return next((why for each in condition["all"] if (why := unmet(each, data))), None)
    if "any" in condition:
        reasons = [unmet(each, data) for each in condition["any"]]
        return None if None in reasons else " and ".join(filter(None, reasons))
    if "not" in condition:
        return None if unmet(condition["not"], data) else f"not wanted: {describe(condition['not'])}"
    return _unmet_comparison(condition, data)


def _unmet_comparison(condition: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    field, op, found = condition["field"], condition["op"], _look_up(data, condition["field"])
    if op in ("exists", "missing"):
        is_met = (found is _MISSING) == (op == "missing")
        return None if is_met else f"{field} is {'missing' if found is _MISSING else 'there'}"
    if found is _MISSING:
        return f"{field} is missing, wanted {op} {condition['value']!r}"
    try:
        is_met = _COMPARED[op](found, condition["value"])
    except TypeError:
        is_met = False
    return None if is_met else f"{field} is {found!r:.80}, wanted {op} {condition['value']!r}"


def describe(condition: Mapping[str, Any]) -> str:
    """A condition in one line."""
    for word, joint in (("all", " and "), ("any", " or ")):
        if word in condition:
            return "(" + joint.join(map(describe, condition[word])) + ")"
    if "not" in condition:
        return f"not {describe(condition['not'])}"
    value = f" {condition['value']!r}" if "value" in condition else ""
    return f"{condition['field']} {condition['op']}{value}"


def _look_up(data: Any, field: str) -> Any:
    """The value at a dotted path."""
    if isinstance(data, Mapping) and field in data:
        return data[field]
    for part in field.split("."):
        if not isinstance(data, Mapping) or part not in data:
            return _MISSING
        data = data[part]
    return data
