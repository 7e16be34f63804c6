"""What a step is told: where it is, what earlier steps left, and how to reach the outside safely."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from typing_extensions import TypeVar

from penstock.errors import NotFound, Unavailable
from penstock.pipeline.signal_tokens import seal

if TYPE_CHECKING:
    from penstock.pipeline.definition import Definition, StepPlan
    from penstock.pipeline.steps import Step, StepObject
    from penstock.secret_keys import SecretKeys

__all__ = ["BatchContext", "Context", "Done", "NoOutput", "Outputs", "Run"]

MetaT = TypeVar("MetaT", default=None)
T = TypeVar("T")
DefaultT = TypeVar("DefaultT")
OutputT = TypeVar("OutputT", default=None)
NO_DEFAULT: Any = object()


@dataclass(frozen=True, slots=True)
class Done(Generic[OutputT]):
    """Return this from a polled or signalled step, or from a check: nothing is left to wait for."""

    output: OutputT = None  # type: ignore[assignment]


class NoOutput(NotFound, KeyError):
    """A step has no stored output: it has not run, was skipped, or returned None."""

    __str__ = Exception.__str__


@dataclass(slots=True)
class Run:
    """What all rows of one operation share while this process works on it."""

    operation_id: str
    operation_name: str
    meta: Any
    definition: Definition
    is_cancelled: Callable[[], bool] = lambda: False
    beat: Callable[[], None] = lambda: None
    public_url: str | None = None
    capabilities: Mapping[type, Any] = field(default_factory=dict)
    secret_keys: SecretKeys | None = None  # seal callback addresses
    tenant: str = ""

    def capability(self, kind: type[T]) -> T:
        """What the engine that runs this operation has of this type, for reusable steps: its lifecycles, for one."""
        found: T | None = self.capabilities.get(kind)
        if found is None:
            raise Unavailable(f"operation {self.operation_name!r} runs outside an engine, which has {kind.__name__}")
        return found


class Outputs(Mapping[str, Any]):
    """The stored outputs of a row's earlier steps, decoded when asked for; `steps` by attribute or display name."""

    __slots__ = ("_definition", "_stored")

    def __init__(self, definition: Definition, stored: Mapping[int, bytes]) -> None:
        self._definition, self._stored = definition, stored

    def __getitem__(self, name: str) -> Any:
        plan = self._definition.find_step(name)
        if plan is None:
            known = ", ".join(step.attribute for step in self._definition.steps)
            raise NoOutput(f"operation {self._definition.name!r} has no step {name!r}; it has: {known}")
        if plan.index not in self._stored:
            raise NoOutput(f"step {plan.name!r} has no output for this row")
        return plan.output.decode(self._stored[plan.index])

    def __iter__(self) -> Iterator[str]:
        return (step.attribute for step in self._definition.steps if step.index in self._stored)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class RowLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the row's place to every record, beside what the caller adds."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **(self.extra or {})}}


class Context(Generic[MetaT]):
    """One row on its way through the steps.

    The engine makes one for each row and sets `step`, `attempt`, `deadline` and `signal_key` before each
    call; it adds to `stored` as steps complete. Steps read only.
    """

    __slots__ = (
        "_key",
        "_row",
        "attempt",
        "deadline",
        "generation",
        "row_number",
        "run",
        "signal_key",
        "step",
        "stored",
    )

    step: StepPlan

    def __init__(
        self,
        run: Run,
        row_number: int,
        generation: int = 0,
        outputs: dict[int, bytes] | None = None,
        row: Any = None,
        *,
        row_key: str | None = None,
    ) -> None:
        self.run = run
        self.row_number = row_number
        self.generation = generation
        self._key = row_key
        self._row = row
        self.stored: dict[int, bytes] = {} if outputs is None else outputs
        self.attempt = 1
        self.deadline: datetime | None = None
        self.signal_key: str | None = None

    @property
    def row_key(self) -> str | None:
        """What the row is called in its own world: the text of its key field."""
        return self._key if self._row is None else self.run.definition.row.key(self._row)

    @property
    def operation_id(self) -> str:
        """The id of the operation this row belongs to."""
        return self.run.operation_id

    @property
    def operation_name(self) -> str:
        """The declared name of the operation."""
        return self.run.operation_name

    @property
    def meta(self) -> MetaT:
        """The operation's metadata."""
        return cast("MetaT", self.run.meta)

    @property
    def step_name(self) -> str:
        """The name of the step that is running."""
        return self.step.name

    @property
    def effect_key(self) -> str:
        """Send this to the other side as its idempotency key: it is the same in every attempt of this step."""
        key = f"{self.run.operation_id}:{self.row_number}:{self.step.effect_name or self.step.attribute}"
        return f"{key}:{self.generation}" if self.step.options.effect_key == "generation" else key

    @property
    def outputs(self) -> Outputs:
        """What earlier steps returned, by step name."""
        return Outputs(self.run.definition, self.stored)

    @overload
    def output_of(self, step: Step[..., Any, T] | StepObject[T]) -> T: ...
    @overload
    def output_of(self, step: Step[..., Any, T] | StepObject[T], default: DefaultT) -> T | DefaultT: ...
    def output_of(self, step: Step[..., Any, T] | StepObject[T], default: Any = NO_DEFAULT) -> Any:
        """What an earlier step returned, as its declared type: `ctx.output_of(Invoices.book)`.

        `default` is for a step that left none: it was skipped, or returned None. Without a default, that is None for a
        step that may return None, and `NoOutput` for others. Also `NoOutput` for a step that does not come before.
        """
        plan = self.run.definition.plan_of(step)
        stored = self.stored.get(plan.index)
        if stored is not None:
            return plan.output.decode(stored)
        current = getattr(self, "step", None)
        if current is not None and plan.index >= current.index:
            raise NoOutput(f"step {plan.name!r} has no output yet: it does not come before {current.name!r}")
        if default is not NO_DEFAULT:
            return default
        if plan.output.allows_none:
            return None
        why = "it ended without one"
        if plan.functions.when is not None:
            why = "it was skipped" if plan.kind == "plain" else f"it was skipped, or {why}"
        raise NoOutput(
            f"step {plan.name!r} has no output for row {self.row_number}; {why}; "
            f"for a step that may leave none, give a default: ctx.output_of({plan.attribute}, None)"
        )

    @property
    def signal_url(self) -> str | None:
        """Where the other side may post the signal for this one wait, without another credential; once.

        None without a public URL or a signal to wait for. `SettingsInvalid` without a secret key to seal it with.
        """
        base, key, secret_keys = self.run.public_url, self.signal_key, self.run.secret_keys
        if base is None or key is None or secret_keys is None:
            return None
        token = seal(
            secret_keys,
            operation=self.run.operation_id,
            key=key,
            row=self.row_number,
            step=self.step.index,
            generation=self.generation,
        )
        return f"{base.rstrip('/')}/api/signals/{token}"

    @property
    def logger(self) -> RowLogger:
        """A logger whose records carry operation, row, step and attempt."""
        return _logger(self.run, row_number=self.row_number, step_name=self.step_name, attempt=self.attempt)

    def heartbeat(self) -> None:
        """Say that a long step is still making progress."""
        self.run.beat()

    @property
    def cancelled(self) -> bool:
        """Whether the operation was asked to stop; a long step may look and leave early."""
        return self.run.is_cancelled()


@dataclass(frozen=True, slots=True)
class BatchContext(Generic[MetaT]):
    """What a batch step is told; `rows[i]` is the Context of the i-th row it was given."""

    run: Run
    step: StepPlan
    rows: Sequence[Context[MetaT]]
    attempt: int = 1

    @property
    def operation_id(self) -> str:
        """The id of the operation."""
        return self.run.operation_id

    @property
    def operation_name(self) -> str:
        """The declared name of the operation."""
        return self.run.operation_name

    @property
    def meta(self) -> MetaT:
        """The operation's metadata."""
        return cast("MetaT", self.run.meta)

    @property
    def step_name(self) -> str:
        """The name of the step that is running."""
        return self.step.name

    @property
    def logger(self) -> RowLogger:
        """A logger whose records carry operation, step and attempt."""
        return _logger(self.run, step_name=self.step_name, attempt=self.attempt)

    def heartbeat(self) -> None:
        """Say that a long batch is still making progress."""
        self.run.beat()

    @property
    def cancelled(self) -> bool:
        """Whether the operation was asked to stop."""
        return self.run.is_cancelled()


def _logger(run: Run, **place: object) -> RowLogger:
    named = {"operation_id": run.operation_id, "operation_name": run.operation_name, **place}
    return RowLogger(logging.getLogger(f"penstock.operations.{run.operation_name}"), named)
