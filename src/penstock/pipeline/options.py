"""The options of operations and steps: their names, defaults and what each may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from penstock.errors import DeclarationError, Fault
from penstock.pipeline.backoff import Backoff, Duration
from penstock.pipeline.rules import (
    Rule,
    checked,
    claim,
    duration,
    exceptions,
    one_of,
    optional,
    rate,
    share,
    text,
    texts,
    whole,
)
from penstock.retention import parse_keep

__all__ = [
    "CommonSettings",
    "OperationOptions",
    "PlainSettings",
    "StepKind",
    "StepOptions",
    "StepSettings",
    "operation_options",
    "step_options",
]

StepKind = Literal["plain", "batch", "poll", "signal"]

DEFAULT_BACKOFF = Backoff()


class CommonSettings(TypedDict, total=False):
    """What may be said about a step of any kind."""

    name: str
    retries: int
    backoff: Backoff | Duration
    retry_on: type[Exception] | tuple[type[Exception], ...]
    delivery: Literal["at_least_once", "at_most_once"]
    concurrency: int | None
    rate: float | str | None
    allow_operation_retry: bool
    barrier: bool
    effect_key: Literal["row", "generation"]


class PlainSettings(CommonSettings, total=False):
    """What may be said about a plain or batch step: its timeout is for one attempt."""

    timeout: Duration | None


class StepSettings(PlainSettings, total=False):
    """Every option of every kind, for changing a step that was declared elsewhere."""

    size: int
    isolate: bool
    every: Duration
    key: str


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The effective options of one step; durations are seconds, `rate` is calls per second.

    `size` and `isolate` belong to batch steps, `every` to polled ones, `key` (a template) to signalled ones.
    """

    retries: int = 0
    backoff: Backoff = DEFAULT_BACKOFF
    timeout: float | None = None
    retry_on: tuple[type[Exception], ...] = (Exception,)
    delivery: Literal["at_least_once", "at_most_once"] = "at_least_once"
    concurrency: int | None = None
    rate: float | None = None
    allow_operation_retry: bool = True
    barrier: bool = False
    effect_key: Literal["row", "generation"] = "row"
    size: int = 100
    isolate: bool = True
    every: float | None = None
    key: str | None = None

    def given(self, kind: StepKind) -> dict[str, Any]:
        """The values that mean something for a step of that kind, by name."""
        return {name: getattr(self, name) for name in STEP_RULES[kind]}

    def document(self, kind: StepKind) -> dict[str, Any]:
        """The JSON form; exception classes by name."""
        names = [_class_name(error) for error in self.retry_on]
        return self.given(kind) | {"backoff": self.backoff.document(), "retry_on": names}


@dataclass(frozen=True, slots=True)
class OperationOptions:
    """The effective options of an operation."""

    description: str = ""
    retryable: bool = True
    track_row_data: bool = True
    max_row_concurrency: int = 10
    max_errors: int | None = None
    max_error_rate: float | None = None
    max_retry_attempts: int = 10
    allow_empty: bool = False
    keep: Mapping[str, float | None] | None = None
    tags: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        # How long what is kept is no part of the plan: workers need not agree on it.
        return {name: value for name, value in asdict(self).items() if name != "keep"} | {"tags": list(self.tags)}


def _backoff(value: Any) -> Backoff:
    try:
        return Backoff.of(value)
    except (DeclarationError, TypeError) as error:
        raise ValueError(str(error)) from error


COMMON_RULES: dict[str, Rule] = {
    "retries": whole(0),
    "backoff": _backoff,
    "retry_on": exceptions,
    "delivery": one_of("at_least_once", "at_most_once"),
    "concurrency": optional(whole(1)),
    "rate": optional(rate),
    "allow_operation_retry": claim,
    "barrier": claim,
    "effect_key": one_of("row", "generation"),
}

STEP_RULES: Mapping[StepKind, Mapping[str, Rule]] = {
    "plain": COMMON_RULES | {"timeout": optional(duration)},
    "batch": COMMON_RULES | {"timeout": optional(duration), "size": whole(1), "isolate": claim},
    "poll": COMMON_RULES | {"timeout": duration, "every": duration},
    "signal": COMMON_RULES | {"timeout": duration, "key": optional(text)},
}

OPERATION_RULES: Mapping[str, Rule] = {
    "description": text,
    "retryable": claim,
    "track_row_data": claim,
    "max_row_concurrency": whole(1),
    "max_errors": optional(whole(0)),
    "max_error_rate": optional(share),
    "max_retry_attempts": whole(0),
    "allow_empty": claim,
    "keep": optional(parse_keep),
    "tags": texts,
}


def step_options(kind: StepKind, given: Mapping[str, Any], where: str) -> tuple[StepOptions, list[Fault]]:
    """A step's options from what was said about it, with every fault named `where.option`."""
    kept, faults = checked(STEP_RULES[kind], given, where)
    options = StepOptions(**kept)
    if options.delivery == "at_most_once" and options.retries:
        faults.append(
            Fault(
                f"must be 0 with delivery 'at_most_once', because a second attempt could repeat the effect; "
                f"found {options.retries}",
                f"{where}.retries",
            )
        )
    return options, faults


def operation_options(given: Mapping[str, Any]) -> tuple[OperationOptions, list[Fault]]:
    """An operation's options from what was said about it, with every fault."""
    kept, faults = checked(OPERATION_RULES, given)
    return OperationOptions(**kept), faults


def _class_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
