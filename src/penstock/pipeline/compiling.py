"""From a declaration to a `Definition`, or to one error that names everything wrong with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from penstock.errors import DeclarationError
from penstock.pipeline.base import Pipeline
from penstock.pipeline.definition import Definition, Hook
from penstock.pipeline.metadata import MetaType
from penstock.pipeline.options import operation_options
from penstock.pipeline.planning import Planner
from penstock.pipeline.report import Report
from penstock.pipeline.rows import RowType
from penstock.pipeline.shapes import Shape, class_shape, function_shape
from penstock.pipeline.signatures import Signature
from penstock.pipeline.steps import Step

__all__ = ["compiled"]

NAME_CHARS_MAX = 100
VERSION_CHARS_MAX = 40
STEPS_MAX = 250  # a ledger has a byte for the place of a row
T = TypeVar("T")


def compiled(declared: Any, name: str, settings: Mapping[str, Any], names: Mapping[str, Any]) -> Definition:
    """The definition of a class or function under `@operation(name, **settings)`."""
    report = Report(name)
    _check_name(name, report)
    shape = _shape(declared, names, report)
    if shape is None:
        report.raise_any()
    assert shape is not None
    given: dict[str, Any] = {"description": inspect.getdoc(declared) if declared.__doc__ else "", **settings}
    row_key, validators = given.pop("row_key", None), given.pop("validators", ())
    version = _version(given.pop("version", None), report)
    row = _built(lambda: RowType(shape.row, row_key), report) or _without_key(shape.row)
    meta = _built(lambda: MetaType(shape.meta), report)
    options, faults = operation_options(given)
    report.faults += faults
    planner = Planner(shape.owner, names, row, meta, report)
    steps = tuple(planner.plan(index, *member) for index, member in enumerate(shape.members.items()))
    planner.compare(steps)
    if len(steps) > STEPS_MAX:
        report.add(f"an operation has at most {STEPS_MAX} steps; found {len(steps)}")
    checks = tuple(_validators(validators, report))
    report.raise_any()
    assert row is not None
    assert meta is not None
    return Definition(
        name=name,
        row=row,
        meta=meta,
        options=options,
        validators=checks,
        steps=steps,
        validate_row=shape.validate_row,
        validate_metadata=shape.validate_metadata,
        source=declared,
        enter=shape.enter,
        handlers=shape.handlers,
        version=version,
    )


def _check_name(name: str, report: Report) -> None:
    if not name or name != name.strip() or len(name) > NAME_CHARS_MAX or "/" in name or not name.isprintable():
        report.add(f"the name must be 1 to {NAME_CHARS_MAX} printable characters without '/' or spaces around it")


def _version(version: Any, report: Report) -> str | None:
    """The version as text; versions are only compared, so any text or number will do."""
    if version is None:
        return None
    text = str(version)
    if isinstance(version, bool) or not isinstance(version, str | int) or not text.strip() or not text.isprintable():
        report.add(f"must be text or a whole number, such as 2; found {version!r}", "version")
    elif len(text) > VERSION_CHARS_MAX:
        report.add(f"must have at most {VERSION_CHARS_MAX} characters; found {len(text)}", "version")
    return text


def _shape(declared: Any, names: Mapping[str, Any], report: Report) -> Shape | None:
    if isinstance(declared, type) and issubclass(declared, Pipeline):
        return class_shape(declared, report)
    if isinstance(declared, Step) or inspect.isfunction(declared):
        return function_shape(declared, names, report)
    report.add(f"{declared!r} must derive from Pipeline[Row], or be a function of (row, ctx)")
    return None


def _built(build: Callable[[], T], report: Report) -> T | None:
    try:
        return build()
    except DeclarationError as error:
        report.add(str(error))
        return None


def _without_key(model: Any) -> RowType | None:
    """The row type, where only its key is wrong: what the steps say of its fields can still be checked."""
    try:
        return RowType(model)
    except DeclarationError:
        return None


def _validators(functions: Iterable[Any], report: Report) -> list[Hook]:
    for function in (functions := list(functions)):
        if not callable(function) or not Signature(function, {}).takes(2):
            report.add(f"must be functions of (row, metadata); found {function!r}", "validators")
    return [Hook.of(function) for function in functions]
