"""The two shapes of an operation, a `Pipeline` class and a plain function, reduced to the same parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ForwardRef, TypeVar, get_args, get_origin

from penstock.pipeline.base import Pipeline
from penstock.pipeline.context import BatchContext, Context
from penstock.pipeline.definition import HANDLERS, Hook
from penstock.pipeline.report import Report
from penstock.pipeline.signatures import Signature, Unresolved
from penstock.pipeline.steps import Step, StepObject

__all__ = ["Member", "Shape", "class_shape", "function_shape"]

Member = Step[..., Any, Any] | StepObject[Any]


@dataclass(frozen=True)
class Shape:
    """Row and metadata model, steps by attribute, hooks, and how to come by the pipeline instance."""

    row: Any
    meta: Any
    members: Mapping[str, Member]
    owner: type | None
    enter: Callable[[], AbstractAsyncContextManager[object]]
    validate_row: Hook | None = None
    validate_metadata: Hook | None = None
    handlers: tuple[str, ...] = ()


def class_shape(cls: type[Pipeline[Any, Any]], report: Report) -> Shape | None:
    """The parts of a pipeline class; None, and a fault, when it does not name its types."""
    arguments = _pipeline_arguments(cls)
    if arguments is None or any(isinstance(argument, TypeVar | ForwardRef | str) for argument in arguments):
        report.add(f"{cls.__qualname__} must name its row type: class {cls.__name__}(Pipeline[Row])")
        return None
    row, meta = arguments
    members = dict(_members(cls, report))
    if not members:
        report.add(f"{cls.__qualname__} has no steps; mark at least one method with @step")
    _check_lifespan(cls, report)
    hooks = {name: _own_hook(cls, name, count, report) for name, count in HOOKS.items()}
    return Shape(row, meta, members, cls, cls.lifespan, **hooks, handlers=tuple(_handlers(cls, report)))


def function_shape(function: Any, names: Mapping[str, Any], report: Report) -> Shape | None:
    """The parts of a function of (row, ctx), bare or under `@step`; None, and a fault, when its row type is unknown."""
    member: Step[..., Any, Any] = function if isinstance(function, Step) else Step(function, "plain", {})
    signature = Signature(member.function, names)
    try:
        row, context = signature.parameter(0), signature.parameter(1)
    except Unresolved as error:
        report.add(f"the annotation {error}", member.attribute)
        return None
    if member.kind == "batch":
        row = next(iter(get_args(row)), Any)
    if row is Any:
        report.add("the first parameter must be annotated with the row type: (row: Person, ctx: Context)")
        return None
    meta = get_args(context)[0] if get_origin(context) in (Context, BatchContext) else None
    return Shape(row, meta, {member.attribute: member}, None, lambda: nullcontext(object()))


def _pipeline_arguments(cls: Any) -> tuple[Any, ...] | None:
    """What stands in the brackets of `Pipeline[...]`, looked for through generic bases in between."""
    for base in getattr(cls, "__orig_bases__", cls.__bases__) if "__orig_bases__" in vars(cls) else cls.__bases__:
        origin = get_origin(base) or base
        if not isinstance(origin, type) or not issubclass(origin, Pipeline):
            continue
        if origin is Pipeline:
            return get_args(base) or None
        inner = _pipeline_arguments(origin)
        if inner is not None:
            given = dict(zip(getattr(origin, "__parameters__", ()), get_args(base), strict=False))
            return tuple(
                given.get(argument, argument) if isinstance(argument, TypeVar) else argument for argument in inner
            )
    return None


def _members(cls: type, report: Report) -> Iterator[tuple[str, Member]]:
    """The steps in the order of the class body, base classes first; an override keeps the place of the first."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if name in found or isinstance(value, Step | StepObject):
                found[name] = value
    places: dict[int, str] = {}
    for name, value in found.items():
        if not isinstance(value, Step | StepObject):
            report.add("a base class has a step here; what overrides it must be marked with @step too", name)
        elif (earlier := places.setdefault(id(value), name)) != name:
            report.add(f"is the same step as {earlier!r}; make two of them", name)
        else:
            yield name, value


HOOKS = {"validate_row": 3, "validate_metadata": 2}


def _own_hook(cls: type, name: str, count: int, report: Report) -> Hook | None:
    function = inspect.getattr_static(cls, name)
    if function is vars(Pipeline)[name]:
        return None
    signature = Signature(function, {})
    if not inspect.isfunction(function) or not signature.takes(count):
        wanted = ("self", "row", "metadata") if name == "validate_row" else ("self", "metadata")
        report.add(f"must be a method that takes ({', '.join(wanted)})", name)
        return None
    return Hook.of(function)


def _handlers(cls: type, report: Report) -> Iterator[str]:
    """The methods that are told of events."""
    for name in HANDLERS:
        function = inspect.getattr_static(cls, name, None)
        if function is None:
            continue
        if inspect.isfunction(function) and Signature(function, {}).takes(2):
            yield name
        else:
            report.add("must be a method that takes (self, event)", name)


def _check_lifespan(cls: type[Pipeline[Any, Any]], report: Report) -> None:
    if inspect.isasyncgenfunction(cls.lifespan) or inspect.iscoroutinefunction(cls.lifespan):
        report.add("must be an async context manager: put @classmethod and @asynccontextmanager over it", "lifespan")
    if getattr(cls.lifespan, "__func__", None) is not vars(Pipeline)["lifespan"].__func__:
        return
    try:
        inspect.signature(cls).bind()
    except TypeError:
        report.add(f"{cls.__name__}.__init__ takes arguments, so a lifespan must say where they come from", "lifespan")
