"""The compiled form of a declaration: everything the engine needs, checked and ready to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from types import MethodType
from typing import Any, cast

from penstock.errors import DeclarationError, NotFound
from penstock.pipeline.context import Context
from penstock.pipeline.fitting import differences
from penstock.pipeline.keys import KeyTemplate
from penstock.pipeline.metadata import MetaType
from penstock.pipeline.options import OperationOptions, StepKind, StepOptions
from penstock.pipeline.outputs import OutputType
from penstock.pipeline.overrides import overridden, overridden_for_run, planned
from penstock.pipeline.rows import RowType
from penstock.pipeline.signatures import is_async
from penstock.pipeline.steps import StepObject

__all__ = ["HANDLERS", "MARK", "BoundStep", "Definition", "Hook", "StepFunctions", "StepPlan", "definition_of"]

MARK = "__penstock_definition__"
HANDLERS = ("on_created", "on_status_changed", "on_completed", "on_failed", "on_row_failed")
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Hook:
    """A function of the user's and whether it gives a coroutine.

    A hook of the pipeline is called with the pipeline first; a validator with row and metadata only.
    """

    call: Call
    is_async: bool

    @classmethod
    def of(cls, function: Call) -> Hook:
        """The hook for this function."""
        return cls(function, is_async(function))


@dataclass(frozen=True, slots=True)
class BoundStep:
    """A step's functions ready to be called with (row, ctx); those that it does not have are None."""

    call: Call
    when: Call | None
    check: Call | None
    key: Call | None
    check_is_async: bool


@dataclass(frozen=True, slots=True)
class StepFunctions:
    """A step's functions as declared. `owner` is a step object; `is_method` is False for a plain function operation."""

    body: Call
    when: Call | None = None
    check: Call | None = None
    key: Call | None = None
    owner: object | None = None
    is_method: bool = True


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of an operation, in the place where it runs."""

    index: int
    name: str
    attribute: str
    kind: StepKind
    is_async: bool
    options: StepOptions
    output: OutputType
    functions: StepFunctions = field(repr=False)
    declared: object = field(repr=False)
    key_template: KeyTemplate | None = None
    effect_name: str = ""  # in effect keys, where it is not the attribute: the name before the step was renamed

    def bind(self, pipeline: object) -> BoundStep:
        """The step's functions bound to the pipeline, or to the step object they belong to."""
        declared = self.functions
        owner = pipeline if declared.owner is None else declared.owner

        def bound(function: Call | None) -> Call | None:
            return MethodType(function, owner) if function is not None and declared.is_method else function

        return BoundStep(
            call=cast("Call", bound(declared.body)),
            when=bound(declared.when),
            check=bound(declared.check),
            key=_template_key(self.key_template) if self.key_template is not None else bound(declared.key),
            check_is_async=is_async(declared.check),
        )

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        place: dict[str, Any] = {"index": self.index, "name": self.name, "attribute": self.attribute, "kind": self.kind}
        if self.effect_name:
            place["effect_name"] = self.effect_name
        return place | {"options": self.options.document(self.kind)}


def _template_key(template: KeyTemplate) -> Callable[[Any, Context[Any]], str]:
    def key(row: Any, ctx: Context[Any]) -> str:
        def value_of(place: str) -> Any:
            source, _, name = place.partition(".")
            if not name:
                return getattr(ctx, place)
            found = row if source == "row" else ctx.meta
            return found[name] if isinstance(found, dict) else getattr(found, name)

        return template.render(value_of)

    return key


@dataclass(frozen=True, eq=False)
class Definition:
    """An operation as declared, as changed by `with_overrides`, or as stored (`as_planned`)."""

    name: str
    row: RowType
    meta: MetaType
    options: OperationOptions
    validators: tuple[Hook, ...]
    steps: tuple[StepPlan, ...]
    validate_row: Hook | None
    validate_metadata: Hook | None
    source: object = field(repr=False)
    enter: Callable[[], AbstractAsyncContextManager[object]] = field(repr=False)
    handlers: tuple[str, ...] = ()  # which methods of the pipeline are told of events
    version: str | None = None

    @property
    def description(self) -> str:
        """What the operation does, in its author's words."""
        return self.options.description

    @property
    def row_key(self) -> str | None:
        """The field whose text identifies a row to its owner."""
        return self.row.row_key

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """The pipeline instance, with whatever it holds open; once per worker process."""
        return self.enter()

    async def close_steps(self) -> None:
        """Let the step objects go of what they hold open."""
        for owner in {id(step.functions.owner): step.functions.owner for step in self.steps}.values():
            if isinstance(owner, StepObject):
                await owner.aclose()

    def find_step(self, name: str) -> StepPlan | None:
        """The step with this attribute or display name, ignoring case."""
        return self._by_name.get(name.casefold())

    def plan_of(self, declared: object) -> StepPlan:
        """The step that was declared by this object, such as `Invoices.book`."""
        found = self._by_declaration.get(id(declared))
        if found is None:
            # A subclass may have put another step in the place of the one that is asked for.
            found = self.find_step(getattr(declared, "attribute", ""))
        if found is None:
            known = ", ".join(step.attribute for step in self.steps)
            raise NotFound(f"{declared!r} is no step of operation {self.name!r}; it has: {known}")
        return found

    def with_overrides(self, overrides: Mapping[str, Any]) -> Definition:
        """This operation with other options, from code, a settings file or a command line.

        `{"max_errors": 5, "steps": {"book": {"retries": 5}}}` or `{"book.retries": "5"}`; `SettingsInvalid` lists
        every fault.
        """
        return overridden(self, overrides)

    def for_run(self, overrides: Mapping[str, Any]) -> Definition:
        """The same for one run, where they are stored: `retry_on` can be set in code only."""
        return overridden_for_run(self, overrides)

    def as_planned(self, plan: Mapping[str, Any]) -> Definition:
        """This operation with every option of a stored `plan_document`, whatever the code says now.

        Functions, models and exception classes (`retry_on`) cannot be stored: they are the code's. `InvalidInput` when
        steps, fields or options of the plan do not fit the code any more.
        """
        return planned(self, plan)

    def plan_document(self) -> dict[str, Any]:
        """What is stored with an operation: its effective options, on which all workers agree, and its steps."""
        return {
            "operation": self.name,
            "version": self.version,
            "row_key": self.row_key,
            "secret_fields": sorted(self.row.secret_names),
            "options": self.options.document(),
            "steps": [step.document() for step in self.steps],
        }

    def code_document(self) -> dict[str, Any]:
        """What a worker says of its code: by this others can tell whether it fits an operation."""
        return {"version": self.version, "steps": [[step.attribute, step.kind] for step in self.steps]}

    def differences(self, plan: Mapping[str, Any]) -> tuple[str, ...]:
        """What of a stored `plan_document` this code does not have as it was; nothing when it fits."""
        return differences(plan, self.code_document())

    @cached_property
    def _by_name(self) -> dict[str, StepPlan]:
        return {name.casefold(): step for step in self.steps for name in (step.name, step.attribute)}

    @cached_property
    def _by_declaration(self) -> dict[int, StepPlan]:
        return {id(step.declared): step for step in self.steps}


def definition_of(obj: object) -> Definition:
    """The definition of a class or function marked by `@operation`; a definition is its own."""
    if isinstance(obj, Definition):
        return obj
    # Looked up on the object itself: a subclass of an operation is not an operation until it is marked.
    found = getattr(obj, "__dict__", {}).get(MARK)
    if not isinstance(found, Definition):
        raise DeclarationError(f'{obj!r} is not an operation; mark it with @operation("name")')
    return found
