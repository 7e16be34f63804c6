"""Reading what a function declares: how many parameters it takes, its annotations, and the output they promise."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, SimpleNamespace
from typing import Any, Union, get_args, get_origin

from penstock.pipeline.context import Done
from penstock.pipeline.fields import members
from penstock.pipeline.options import StepKind

__all__ = ["Signature", "Unresolved", "is_async", "is_listlike", "output_annotation"]

LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)


class Unresolved(Exception):
    """An annotation names something that cannot be found."""


def is_async(function: object) -> bool:
    """Whether calling this gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's declared parameters and annotations; `names` are those of the scope it was declared in."""

    function: Callable[..., Any]
    names: Mapping[str, Any]

    def takes(self, count: int) -> bool:
        """Whether it can be called with that many positional arguments and nothing else."""
        try:
            inspect.signature(self.function).bind(*[None] * count)
        except TypeError:
            return False
        return True

    def written(self) -> str:
        """The parameters as the source has them, for messages."""
        return f"({', '.join(inspect.signature(self.function).parameters)})"

    def parameter(self, index: int) -> Any:
        """The annotation of the parameter at that place, or Any."""
        parameters = list(inspect.signature(self.function).parameters.values())
        return self._resolved(parameters[index].name) if index < len(parameters) else Any

    def returns(self) -> Any:
        """The return annotation, or Any."""
        return self._resolved("return")

    def _resolved(self, name: str) -> Any:
        function = inspect.unwrap(self.function)
        written = getattr(function, "__annotations__", {})
        if name not in written:
            return Any
        # One annotation at a time: those we do not need may name things that exist for type checkers only.
        alone = SimpleNamespace(__annotations__={name: written[name]})
        try:
            hints = typing.get_type_hints(
                alone, getattr(function, "__globals__", {}), dict(self.names), include_extras=True
            )
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise Unresolved(f"{written[name]!r} cannot be resolved ({error})") from error
        return hints[name]


def is_listlike(annotation: Any) -> bool:
    """Whether this annotation, where there is one, may stand for a list of rows."""
    return annotation is Any or (get_origin(annotation) or annotation) in LISTS


def output_annotation(kind: StepKind, body: Any, check: Any = None) -> Any:
    """The type of a step's output: from what its body, and for a polled step also its check, are declared to return."""
    match kind:
        case "plain":
            return NoneType if body is None else body
        case "batch":
            return _answer(body)
        case "poll":
            answers = [part for part in members(check) if part is not bool and part is not Any]
            return _joined([*_outputs(body), *_outputs(*answers)], NoneType)
        case "signal":
            # What ends the wait is the payload of a signal, which may be anything unless the body says otherwise.
            return _joined([part for part in _outputs(body) if part is not NoneType], Any)


def _outputs(*annotations: Any) -> list[Any]:
    """The members of unions, with each Done replaced by what it carries."""
    found: list[Any] = []
    for part in (part for annotation in annotations for part in members(annotation)):
        if part is Done:
            found.append(Any)
        elif get_origin(part) is Done:
            found.extend(members(get_args(part)[0]))
        else:
            found.append(part)
    return found


def _answer(annotation: Any) -> Any:
    """One row's share of what a batch step returns."""
    if annotation is Any:
        return Any
    found: list[Any] = []
    for part in members(annotation):
        if part is not NoneType:
            inner = get_args(part)[:1] or (Any,)
            found.extend(kind for kind in members(inner[0]) if not _is_exception(kind))
    return _joined(found, NoneType)


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _joined(kinds: list[Any], otherwise: Any) -> Any:
    if not kinds:
        return otherwise
    return Any if Any in kinds else Union[tuple(kinds)]  # noqa: UP007
