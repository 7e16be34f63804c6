"""From a declared step to its plan, with every fault it has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin, is_typeddict

from penstock.errors import DeclarationError
from penstock.pipeline.context import BatchContext, Context
from penstock.pipeline.definition import StepFunctions, StepPlan
from penstock.pipeline.keys import KeyTemplate
from penstock.pipeline.metadata import MetaType
from penstock.pipeline.options import StepKind, step_options
from penstock.pipeline.outputs import OutputType
from penstock.pipeline.report import Report
from penstock.pipeline.rows import RowType
from penstock.pipeline.shapes import Member
from penstock.pipeline.signatures import Signature, Unresolved, is_async, is_listlike, output_annotation
from penstock.pipeline.steps import Step, StepObject

__all__ = ["Planner"]

STEP_NAME_CHARS_MAX = 200
ROLES: Mapping[StepKind, str] = {"poll": "check", "signal": "key"}
PURPOSES = {"check": "polled (@step.poll)", "key": "signalled (@step.signal)"}


@dataclass(frozen=True)
class Planner:
    """Plans the steps of one operation; `owner` is its class, or None for a function."""

    owner: type | None
    names: Mapping[str, Any]
    row: RowType | None
    meta: MetaType | None
    report: Report

    def plan(self, index: int, attribute: str, member: Member) -> StepPlan:
        """The plan of one step; its faults are in the report."""
        declared, functions = self._functions(attribute, member)
        given = {**declared.given, **(member.given if isinstance(member, StepObject) else {})}
        name = self._display_name(attribute, given.pop("name", attribute))
        options, faults = step_options(declared.kind, given, attribute)
        self.report.faults += faults
        self._check_companions(attribute, declared.kind, functions, key=options.key)
        return StepPlan(
            index=index,
            name=name,
            attribute=attribute,
            kind=declared.kind,
            is_async=is_async(functions.body),
            options=options,
            output=self._output(attribute, declared.kind, functions),
            functions=functions,
            declared=member,
            key_template=self._template(attribute, options.key),
        )

    def compare(self, steps: Sequence[StepPlan]) -> None:
        """Note what is wrong between steps: names that are the same ignoring case, and shared signal keys."""
        taken: dict[str, StepPlan] = {}
        for step in steps:
            for name in dict.fromkeys((step.name.casefold(), step.attribute.casefold())):
                if (other := taken.setdefault(name, step)) is not step:
                    self.report.add(f"is named like step {other.attribute!r}, ignoring case", step.attribute)
        keys: dict[str, StepPlan] = {}
        for step in steps:
            if step.options.key is not None and (other := keys.setdefault(step.options.key, step)) is not step:
                message = f"has the same signal key as {other.attribute!r}; a signal could not tell them apart"
                self.report.add(message, step.attribute)

    def _functions(self, attribute: str, member: Member) -> tuple[Step[..., Any, Any], StepFunctions]:
        if isinstance(member, StepObject):
            declared = self._run_of(attribute, member)
            companions: dict[str, Any] = {
                role: _current(type(member), function) for role, function in declared.companions.items()
            }
            return declared, StepFunctions(declared.function, **companions, owner=member)
        companions = {role: _current(self.owner, function) for role, function in member.companions.items()}
        return member, StepFunctions(member.function, **companions, is_method=self.owner is not None)

    def _run_of(self, attribute: str, member: StepObject[Any]) -> Step[..., Any, Any]:
        declared = getattr(type(member), "run", _no_run)
        if declared is _no_run:
            self.report.add(f"{type(member).__name__} has no method run(self, row, ctx)", attribute)
        return declared if isinstance(declared, Step) else Step(declared, "plain", {})

    def _display_name(self, attribute: str, name: Any) -> str:
        if not isinstance(name, str) or not name.strip() or len(name) > STEP_NAME_CHARS_MAX:
            self.report.add(f"its name must be text of 1 to {STEP_NAME_CHARS_MAX} characters", attribute)
            return attribute
        return name

    def _check_companions(self, attribute: str, kind: StepKind, functions: StepFunctions, *, key: Any) -> None:
        for role, purpose in PURPOSES.items():
            if getattr(functions, role) is not None and ROLES.get(kind) != role:
                self.report.add(f"has a .{role}, but only {purpose} steps take one; this one is {kind}", attribute)
        if kind == "poll" and functions.check is None:
            self.report.add(f"is polled, so it needs a check: mark one with @{attribute}.check", attribute)
        if kind == "signal" and (key is None) == (functions.key is None):
            how = f'either a key template (key="order-{{row.id}}") or a method marked with @{attribute}.key'
            self.report.add(
                f"waits for a signal, so it needs {how}; found {'none' if key is None else 'both'}", attribute
            )
        self._check_call(attribute, "", kind, functions.body)
        for role in ("when", "check", "key"):
            if (function := getattr(functions, role)) is not None:
                self._check_call(attribute, f".{role}", "plain", function)

    def _check_call(self, attribute: str, role: str, kind: StepKind, function: Callable[..., Any]) -> None:
        place, signature = attribute + role, Signature(function, self.names)
        wanted = (*(("self",) if self.owner else ()), "rows" if kind == "batch" else "row", "ctx")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            self.report.add("is a generator; it must return its output, not yield", place)
        elif not signature.takes(len(wanted)):
            self.report.add(f"must take ({', '.join(wanted)}), not {signature.written()}", place)
        else:
            for fault in self._annotation_faults(kind, signature, len(wanted) - 1):
                self.report.add(fault, place)

    def _annotation_faults(self, kind: StepKind, signature: Signature, last: int) -> Iterator[str]:
        expected, other = (BatchContext, Context) if kind == "batch" else (Context, BatchContext)
        context, rows = _annotation(signature, last), _annotation(signature, last - 1)
        origin = get_origin(context) or context
        if origin is other:
            yield f"is called with a {expected.__name__}, not a {other.__name__}"
        elif origin is expected and get_args(context) and not self._fits_meta(get_args(context)[0]):
            assert self.meta is not None
            found = getattr(get_args(context)[0], "__name__", get_args(context)[0])
            yield f"names the metadata {found}, but the operation's metadata is {self.meta.described}"
        if kind == "batch" and not is_listlike(rows):
            yield f"is a batch step, so it gets a list of rows; found {rows!r}"
        elif not self._fits_row(named := (get_args(rows) or (Any,))[0] if kind == "batch" else rows):
            assert self.row is not None
            found, right = (getattr(kind, "__name__", kind) for kind in (named, self.row.model))
            yield f"takes a row of type {found}, but the operation's rows are {right}"

    def _fits_row(self, named: Any) -> bool:
        """Whether rows are of the type that a function names; what cannot be compared says nothing."""
        if self.row is None or named is Any or not (isinstance(named, type) and isinstance(self.row.model, type)):
            return True
        if named is self.row.model:
            return True
        made = dict if is_typeddict(self.row.model) else self.row.model
        try:
            return not is_typeddict(named) and issubclass(made, named)
        except TypeError:  # a protocol that is there for type checkers only
            return True

    def _fits_meta(self, named: Any) -> bool:
        if self.meta is None or named is Any or named is self.meta.model:
            return True
        if self.meta.model is None or not isinstance(named, type):
            return named is type(None) and self.meta.model is None
        return issubclass(self.meta.model, named)

    def _output(self, attribute: str, kind: StepKind, functions: StepFunctions) -> OutputType:
        try:
            body = Signature(functions.body, self.names).returns()
            check = None if functions.check is None else Signature(functions.check, self.names).returns()
            return OutputType(output_annotation(kind, body, check))
        except Unresolved as error:
            self.report.add(f"its return annotation {error}; import the type where it can be found", attribute)
        except DeclarationError as error:
            self.report.add(str(error), attribute)
        return OutputType()

    def _template(self, attribute: str, key: str | None) -> KeyTemplate | None:
        if key is None:
            return None
        place = f"{attribute}.key"
        try:
            template = KeyTemplate.parse(key)
        except ValueError as error:
            self.report.add(f"{error}; found {key!r}", place)
            return None
        for fault in template.faults(self.row, self.meta):
            self.report.add(fault, place)
        return template


def _no_run(self: object, row: object, ctx: object) -> None:
    """Stands in for the method a step object lacks, so that its other faults are found as well."""


def _current(owner: type | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or the method by which a subclass overrides it."""
    found = getattr(owner, getattr(function, "__name__", ""), function)
    return found if inspect.isfunction(found) else function


def _annotation(signature: Signature, index: int) -> Any:
    """An annotation that is only compared: one that cannot be resolved says nothing."""
    try:
        return signature.parameter(index)
    except Unresolved:
        return Any
