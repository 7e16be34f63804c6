"""`step` marks the stages of a pipeline; it only records what was said, and the definition judges it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType, MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, Unpack, cast, overload

from typing_extensions import TypeVar

from penstock.errors import DeclarationError
from penstock.pipeline.backoff import Duration
from penstock.pipeline.context import Done
from penstock.pipeline.options import CommonSettings, PlainSettings, StepKind, StepSettings

__all__ = ["Step", "StepObject", "step"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
ObjectT = TypeVar("ObjectT", default=Any)
F = TypeVar("F", bound=Callable[..., Any])
Async = Coroutine[Any, Any, T]
Answers = Sequence[T | Exception] | None


class Step(Generic[P, R, T]):
    """A stage of a pipeline: parameters, what calling it gives, and the type of its output.

    On the class it is this object, `ctx.output_of(Orders.book)`; on an instance it is the plain bound function.
    """

    def __init__(self, function: Callable[..., Any], kind: StepKind, given: Mapping[str, Any]) -> None:
        self.function, self.kind, self.given = function, kind, MappingProxyType(dict(given))
        self.attribute: str = getattr(function, "__name__", type(function).__name__)
        self.companions: dict[str, Callable[..., Any]] = {}
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[P, R]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Callable[P, R]:
        return self if instance is None else cast("Callable[P, R]", MethodType(self.function, instance))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def check(self, function: F) -> F:
        """Mark what a polled step asks until it says True or Done."""
        return self._accompany("check", function)

    def when(self, function: F) -> F:
        """Mark the condition of this step; a row for which it is false skips the step."""
        return self._accompany("when", function)

    def key(self, function: F) -> F:
        """Mark what computes the key a signalled step waits for."""
        return self._accompany("key", function)

    def with_options(self, **options: Unpack[StepSettings]) -> Self:
        """The same step with other options, for a subclass."""
        changed = copy.copy(self)
        changed.given = MappingProxyType({**self.given, **options})
        changed.companions = dict(self.companions)
        return changed

    def _accompany(self, role: str, function: F) -> F:
        if role in self.companions:
            raise DeclarationError(f"step {self.attribute!r} has two functions marked .{role}; one is enough")
        if getattr(function, "__name__", None) == self.attribute:
            raise DeclarationError(
                f"the .{role} of step {self.attribute!r} has the step's own name and would replace it; rename it"
            )
        self.companions[role] = function
        return function


class StepObject(Generic[ObjectT]):
    """Derive from this to make a step that several pipelines can use: `submit = SubmitToCarrier(url=…)`.

    Write `run(self, row, ctx)`, bare or under `@step`, `@step.poll(…)`, `@step.signal(…)`, `@step.batch(…)`; `self`
    is the step object. `StepObject[Receipt]` names the output for type checkers. In a pipeline's class body it
    stands at its place among the steps, named after the attribute.
    """

    run: Any
    given: Mapping[str, Any] = MappingProxyType({})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    async def aclose(self) -> None:
        """Let go of what the step holds open. Called when the pipelines of a process end; it may be used again then."""

    def with_options(self, **options: Unpack[StepSettings]) -> Self:
        """A copy of this step object with other options."""
        changed = copy.copy(self)
        changed.given = MappingProxyType({**self.given, **options})
        return changed


class PlainDecorator(Protocol):
    """Turns a method into a plain step."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Async[T]], /) -> Step[P, Async[T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], T], /) -> Step[P, T, T]: ...


class BatchDecorator(Protocol):
    """Turns a method over a list of rows into a batch step; its output is one row's answer."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Async[None]], /) -> Step[P, Async[None], None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Async[Answers[T]]], /
    ) -> Step[P, Async[Answers[T]], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], None], /) -> Step[P, None, None]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Answers[T]], /) -> Step[P, Answers[T], T]: ...


class WaitDecorator(Protocol):
    """Turns a method that starts something into a step that waits for its end.

    A body that returns None says nothing about the output, which then comes from the check or the signal.
    """

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Async[None]], /) -> Step[P, Async[None], Any]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Async[Done[T] | None]], /
    ) -> Step[P, Async[Done[T] | None], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Async[T]], /) -> Step[P, Async[T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], None], /) -> Step[P, None, Any]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Done[T] | None], /) -> Step[P, Done[T] | None, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], T], /) -> Step[P, T, T]: ...


class StepDecorator:
    """`@step`, `@step(retries=2)`, `@step.batch(…)`, `@step.poll(…)`, `@step.signal(…)`."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Async[T]], /) -> Step[P, Async[T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], T], /) -> Step[P, T, T]: ...
    @overload
    def __call__(self, /, **options: Unpack[PlainSettings]) -> PlainDecorator: ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        return _decorator("plain", options) if function is None else Step(function, "plain", options)

    def batch(self, *, size: int = 100, isolate: bool = True, **options: Unpack[PlainSettings]) -> BatchDecorator:
        """Up to `size` rows of a chunk that are ready at once; a failed batch is halved if `isolate`."""
        return cast("BatchDecorator", _decorator("batch", {"size": size, "isolate": isolate, **options}))

    def poll(self, *, every: Duration, timeout: Duration, **options: Unpack[CommonSettings]) -> WaitDecorator:
        """The body starts the work; its `.check` is asked every `every` until it says so, for `timeout` at most."""
        return cast("WaitDecorator", _decorator("poll", {"every": every, "timeout": timeout, **options}))

    def signal(self, *, timeout: Duration, key: str | None = None, **options: Unpack[CommonSettings]) -> WaitDecorator:
        """The body starts the work; the row waits for a signal, by a template or a `.key` method."""
        return cast("WaitDecorator", _decorator("signal", {"timeout": timeout, "key": key, **options}))


def _decorator(kind: StepKind, given: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Step[..., Any, Any]]:
    return lambda function: Step(function, kind, given)


step = StepDecorator()
