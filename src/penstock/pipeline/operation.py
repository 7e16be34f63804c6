"""`@operation` marks what users declare: a pipeline of steps, or one plain function. Nothing registers itself."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypedDict, Unpack

from typing_extensions import TypeVar

from penstock.errors import DeclarationError
from penstock.pipeline.compiling import compiled
from penstock.pipeline.definition import MARK

__all__ = ["OperationSettings", "Validator", "operation"]

DeclaredT = TypeVar("DeclaredT", bound=Callable[..., Any])

Validator = Callable[[Any, Any], Awaitable[None] | None]


class OperationSettings(TypedDict, total=False):
    """What may be said about an operation."""

    description: str
    version: str | int | None
    row_key: str | None
    validators: Iterable[Validator]
    retryable: bool
    track_row_data: bool
    max_row_concurrency: int
    max_errors: int | None
    max_error_rate: float | None
    max_retry_attempts: int
    allow_empty: bool
    keep: str | Mapping[str, Any] | None
    tags: Iterable[str]


def operation(name: str, /, **settings: Unpack[OperationSettings]) -> Callable[[DeclaredT], DeclaredT]:
    """Mark a `Pipeline` subclass, or a function of (row, ctx), as an operation.

    The declaration is checked here and now: `DeclarationError` names everything that is wrong with it. The row and
    metadata types are those of `Pipeline[...]`, or of a function's annotations.
    """
    if not isinstance(name, str):
        raise DeclarationError('an operation needs a name: @operation("device-provisioning")')
    names = _names_in_scope()

    def mark(declared: DeclaredT) -> DeclaredT:
        setattr(declared, MARK, compiled(declared, name, settings, names))
        return declared

    return mark


def _names_in_scope() -> Mapping[str, Any]:
    """The names where the operation is declared: inside a function, annotations cannot be resolved without them."""
    frame = sys._getframe(2)
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
