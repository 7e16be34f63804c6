"""Every mistake in a declaration is named when the operation is declared, all of them at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from types import new_class
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from pydantic import BaseModel, RootModel

from penstock.errors import DeclarationError
from penstock.pipeline import BatchContext, Context, Pipeline, StepObject, operation, step

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


class Row(BaseModel):
    id: int


class Meta(BaseModel):
    carrier: str


class Other(BaseModel):
    x: int


class Numbers(RootModel[list[int]]): ...


class Plain(Pipeline[Row, Meta]):
    @step
    def go(self, row: Row, ctx: Context[Meta]) -> None: ...


def fault_of(declare: Callable[[], object]) -> str:
    with pytest.raises(DeclarationError) as caught:
        declare()
    return str(caught.value)


def pipeline(base: Any, **members: Any) -> Any:
    """A class X of that base with these members."""
    return new_class("X", (base,), exec_body=lambda namespace: namespace.update(members))


def declared(**members: Any) -> str:
    """The message for a pipeline with these members."""
    return fault_of(lambda: operation("x")(pipeline(Pipeline[Row, Meta], **members)))


def body(self: Any, row: Row, ctx: Context[Meta]) -> None: ...


def yes(self: Any, row: Row, ctx: Context[Meta]) -> bool:
    return True


def test_a_class_must_be_a_pipeline():
    assert "must derive from Pipeline[Row]" in fault_of(lambda: operation("x")(Row))


def test_a_pipeline_must_name_its_row_type():
    class Nameless(Pipeline):  # type: ignore[type-arg]
        @step
        def go(self, row: Row, ctx: Context) -> None: ...

    assert "Nameless must name its row type: class Nameless(Pipeline[Row])" in fault_of(
        lambda: operation("x")(Nameless)
    )


@pytest.mark.parametrize("model", [int, dict, dict[str, int], Numbers, object, BaseModel])
def test_a_row_type_must_be_a_model_with_fields(model: Any):
    cls = pipeline(Pipeline[model], go=step(body))
    assert "the row type must be a pydantic model, a dataclass, a TypedDict or a msgspec Struct" in fault_of(
        lambda: operation("x")(cls)
    )


def test_metadata_must_be_a_model():
    cls = pipeline(Pipeline[Row, int], go=step(lambda self, row, ctx: None))
    assert "the metadata type must be a pydantic model or a msgspec Struct; found int" in fault_of(
        lambda: operation("x")(cls)
    )


def test_a_pipeline_needs_a_step():
    assert "X has no steps; mark at least one method with @step" in declared()


def test_two_steps_cannot_have_one_name_ignoring_case():
    assert "again: is named like step 'go', ignoring case" in declared(go=step(body), again=step(name="GO")(body))


def test_one_step_object_cannot_stand_twice():
    class Submit(StepObject[None]):
        def run(self, row: Row, ctx: Context[Meta]) -> None: ...

    shared = Submit()
    assert "b: is the same step as 'a'; make two of them" in declared(a=shared, b=shared)


def test_a_step_object_needs_a_run_method():
    class Empty(StepObject[None]): ...

    assert "a: Empty has no method run(self, row, ctx)" in declared(a=Empty())


class Wide(Protocol):
    id: int


def test_a_step_that_names_another_row_type_is_refused():
    def other(self: Any, row: Meta, ctx: Context[Meta]) -> None: ...
    def others(self: Any, rows: list[Meta], ctx: BatchContext[Meta]) -> None: ...
    def is_other(self: Any, row: Meta, ctx: Context[Meta]) -> bool: ...

    wrong = "takes a row of type Meta, but the operation's rows are Row"
    assert f"go: {wrong}" in declared(go=step(other))
    assert f"go: {wrong}" in declared(go=step.batch()(others))
    go = step(body)
    go.when(is_other)
    assert f"go.when: {wrong}" in declared(go=go)


@pytest.mark.parametrize("named", [Row, BaseModel, object, Any, Wide, Row | None, "Nowhere"])
def test_a_step_may_name_its_rows_in_wider_words(named: Any):
    def go(self: Any, row: Any, ctx: Any) -> None: ...

    go.__annotations__["row"] = named
    operation("x")(pipeline(Pipeline[Row, Meta], go=step(go)))


def test_only_polled_steps_take_a_check():
    go = step(body)
    go.check(yes)
    assert "go: has a .check, but only polled (@step.poll) steps take one; this one is plain" in declared(go=go)


def test_a_polled_step_needs_a_check():
    assert "go: is polled, so it needs a check: mark one with @go.check" in declared(
        go=step.poll(every=1, timeout=2)(body)
    )


def test_only_signalled_steps_take_a_key():
    go = step(body)
    go.key(yes)
    assert "go: has a .key, but only signalled (@step.signal) steps take one; this one is plain" in declared(go=go)


@pytest.mark.covers("SG-009")
def test_a_signalled_step_needs_one_key():
    assert "@go.key; found none" in declared(go=step.signal(timeout=2)(body))
    go = step.signal(timeout=2, key="a")(body)
    go.key(yes)
    assert "@go.key; found both" in declared(go=go)


def test_two_signalled_steps_cannot_share_a_key_template():
    a, b = step.signal(timeout=2, key="k-{row.id}")(body), step.signal(timeout=2, key="k-{row.id}")(body)
    assert "b: has the same signal key as 'a'; a signal could not tell them apart" in declared(a=a, b=b)


@pytest.mark.covers("SG-009")
@pytest.mark.parametrize(
    "template, message",
    [
        (
            "k-{row.imei}",
            "has {row.imei}, which does not exist; there are: row.id, meta.carrier, row_number, operation_id",
        ),
        ("k-{who}", "has {who}, which does not exist"),
        ("k-{row.__class__}", "has {row.__class__}, which does not exist"),
        ("k-{row.id!r}", "takes plain fields only"),
        ("k-{}", "takes plain fields only"),
        ("k-{", "found 'k-{'"),
        ("", "must not be empty"),
    ],
)
def test_a_key_template_is_checked_against_the_models(template: str, message: str):
    found = declared(go=step.signal(timeout=2, key=template)(body))
    assert "go.key: " in found
    assert message in found


def test_a_row_key_must_be_a_field():
    assert "row_key is 'imei', but Row has no such field; it has: id" in fault_of(
        lambda: operation("x", row_key="imei")(Plain)
    )


def test_a_step_takes_self_row_and_ctx():
    def short(self: Any, row: Row) -> None: ...
    def long(self: Any, row: Row, ctx: Context[Meta], more: int) -> None: ...

    assert "go: must take (self, row, ctx), not (self, row)" in declared(go=step(short))
    assert "go: must take (self, row, ctx), not (self, row, ctx, more)" in declared(go=step(long))


def test_the_functions_beside_a_step_take_the_same():
    go = step.poll(every=1, timeout=2)(body)
    go.check(lambda self, row: True)
    go.when(lambda self: True)
    found = declared(go=go)
    assert "go.check: must take (self, row, ctx), not (self, row)" in found
    assert "go.when: must take (self, row, ctx), not (self)" in found


def test_a_function_operation_takes_row_and_ctx():
    def greet(row: Row) -> None: ...
    def bare(row, ctx): ...  # type: ignore[no-untyped-def]

    assert "greet: must take (row, ctx), not (row)" in fault_of(lambda: operation("x")(greet))
    assert "the first parameter must be annotated with the row type" in fault_of(lambda: operation("x")(bare))


def test_a_context_must_name_the_metadata_of_the_operation():
    def wrong(self: Any, row: Row, ctx: Context[Other]) -> None: ...
    def none(self: Any, row: Row, ctx: Context[None]) -> None: ...
    def base(self: Any, row: Row, ctx: Context[BaseModel]) -> None: ...
    def bare(self: Any, row: Row, ctx: Context) -> None: ...
    def anything(self: Any, row: Row, ctx: Context[Any]) -> None: ...

    found = declared(a=step(wrong), b=step(none), c=step(base), d=step(bare), e=step(anything))
    assert "a: names the metadata Other, but the operation's metadata is Meta" in found
    assert "b: names the metadata NoneType, but the operation's metadata is Meta" in found
    assert not any(f"; {fine}: names" in found for fine in "cde")


def test_a_batch_step_takes_a_list_and_a_batch_context():
    def one(self: Any, row: Row, ctx: BatchContext[Meta]) -> None: ...
    def single(self: Any, rows: list[Row], ctx: Context[Meta]) -> None: ...

    assert "a: is a batch step, so it gets a list of rows; found" in declared(a=step.batch()(one))
    assert "a: is called with a BatchContext, not a Context" in declared(a=step.batch()(single))


def test_a_plain_step_takes_no_batch_context():
    def wrong(self: Any, row: Row, ctx: BatchContext[Meta]) -> None: ...

    assert "a: is called with a Context, not a BatchContext" in declared(a=step(wrong))


def test_a_step_cannot_be_a_generator():
    async def stream(self: Any, row: Row, ctx: Context[Meta]) -> AsyncIterator[int]:
        yield 1

    assert "a: is a generator; it must return its output, not yield" in declared(a=step(stream))


def test_at_most_once_admits_no_retries():
    found = declared(go=step(delivery="at_most_once", retries=2)(body))
    assert "go.retries: must be 0 with delivery 'at_most_once', because a second attempt could repeat" in found


@pytest.mark.parametrize(
    "options, message",
    [
        ({"retries": -1}, "go.retries: must be a whole number, 0 or more; found -1"),
        ({"retries": True}, "go.retries: must be a whole number, 0 or more; found True"),
        ({"timeout": 0}, "go.timeout: must be longer than zero; found 0"),
        ({"timeout": float("nan")}, "go.timeout: must be a finite number of seconds; found nan"),
        ({"timeout": timedelta.max}, "go.timeout: must be at most a thousand years; found datetime.timedelta"),
        ({"timeout": 1e14}, "go.timeout: must be at most a thousand years; found 1"),
        ({"backoff": 1e14}, "go.backoff: must be at most a thousand years; found 1"),
        ({"concurrency": 0}, "go.concurrency: must be a whole number, 1 or more; found 0"),
        ({"rate": "5/fortnight"}, "go.rate: must be calls per second"),
        ({"rate": 0}, "go.rate: must be calls per second"),
        ({"backoff": -1}, "go.backoff: Backoff(initial=-1"),
        ({"delivery": "twice"}, "go.delivery: must be one of 'at_least_once', 'at_most_once'; found 'twice'"),
        ({"retry_on": (KeyboardInterrupt,)}, "go.retry_on: must be exception classes derived from Exception"),
        ({"retry_on": ()}, "go.retry_on: must be exception classes derived from Exception"),
        ({"effect_key": "x"}, "go.effect_key: must be one of 'row', 'generation'"),
        ({"name": " "}, "go: its name must be text of 1 to 200 characters"),
    ],
)
def test_nonsense_options_are_refused_by_step_and_name(options: dict[str, Any], message: str):
    assert message in declared(go=step(**options)(body))


def test_nonsense_options_of_waits_and_batches_are_refused():
    def rows(self: Any, rows: list[Row], ctx: BatchContext[Meta]) -> None: ...

    assert "go.every: must be longer than zero" in declared(go=step.poll(every=0, timeout=5)(body))
    assert "go.timeout: must be seconds or a timedelta; found None" in declared(
        go=step.signal(key="a", timeout=None)(body)  # type: ignore[arg-type]
    )
    assert "go.size: must be a whole number, 1 or more" in declared(go=step.batch(size=0)(rows))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_row_concurrency": 0}, "max_row_concurrency: must be a whole number, 1 or more; found 0"),
        ({"max_error_rate": 1.5}, "max_error_rate: must be a number from 0 to 1; found 1.5"),
        ({"max_errors": -1}, "max_errors: must be a whole number, 0 or more; found -1"),
        ({"colour": "red"}, "colour: there is no such option; known: allow_empty"),
        ({"validators": [lambda row: None]}, "validators: must be functions of (row, metadata)"),
    ],
)
def test_nonsense_options_of_the_operation_are_refused(settings: dict[str, Any], message: str):
    assert message in fault_of(lambda: operation("x", **settings)(Plain))


@pytest.mark.parametrize("name", ["", " x", "a/b", "a\nb", "x" * 101])
def test_an_operation_needs_a_usable_name(name: str):
    assert "the name must be 1 to 100 printable characters" in fault_of(lambda: operation(name)(Plain))


def test_an_operation_cannot_be_marked_without_a_name():
    assert 'needs a name: @operation("device-provisioning")' in fault_of(lambda: operation(Plain))  # type: ignore[arg-type]


def test_a_return_annotation_must_be_found():
    def hidden(self: Any, row: Row, ctx: Context[Meta]) -> OnlyForCheckers: ...  # type: ignore[empty-body]

    found = declared(go=step(hidden))
    assert "go: its return annotation 'OnlyForCheckers' cannot be resolved" in found


def test_an_annotation_we_do_not_need_may_stay_unknown():
    def fine(self: Any, row: OnlyForCheckers, ctx: Context[OnlyForCheckers]) -> None: ...

    operation("x")(pipeline(Pipeline[Row, Meta], go=step(fine)))


def test_an_output_must_fit_into_json():
    class Handle: ...

    def opened(self: Any, row: Row, ctx: Context[Meta]) -> Handle:
        return Handle()

    opened.__annotations__["return"] = Handle
    assert "cannot be stored as JSON" in declared(go=step(opened))


def test_a_pipeline_that_takes_clients_needs_a_lifespan():
    class Needy(Plain):
        def __init__(self, http: object) -> None: ...

    assert "lifespan: Needy.__init__ takes arguments" in fault_of(lambda: operation("x")(Needy))


def test_a_lifespan_must_be_a_context_manager():
    class Bare(Plain):
        @classmethod
        async def lifespan(cls):  # type: ignore[no-untyped-def, override]
            yield cls()

    assert "lifespan: must be an async context manager" in fault_of(lambda: operation("x")(Bare))


def test_a_hook_takes_the_row_and_the_metadata():
    class Short(Plain):
        def validate_row(self, row: Row) -> None: ...  # type: ignore[override]

    assert "validate_row: must be a method that takes (self, row, metadata)" in fault_of(lambda: operation("x")(Short))


def test_a_step_is_overridden_by_a_step():
    class Child(Plain):
        def go(self, row: Row, ctx: Context[Meta]) -> None: ...  # type: ignore[override]

    assert "go: a base class has a step here; what overrides it must be marked with @step too" in fault_of(
        lambda: operation("x")(Child)
    )


def test_a_check_cannot_take_the_name_of_its_step():
    def go(self: Any, row: Row, ctx: Context[Meta]) -> None: ...

    polled = step.poll(every=1, timeout=2)(go)
    assert "has the step's own name and would replace it" in fault_of(lambda: polled.check(go))


def test_a_step_has_one_check():
    polled = step.poll(every=1, timeout=2)(body)
    polled.check(yes)
    assert "has two functions marked .check" in fault_of(lambda: polled.check(yes))


def test_all_faults_of_a_declaration_are_told_at_once():
    cls = pipeline(Pipeline[Row, Meta], a=step(retries=-1)(body), b=step.signal(timeout=0)(body))
    with pytest.raises(DeclarationError, match="operation 'x' is declared wrongly") as caught:
        operation("x", row_key="nope", max_errors=-1)(cls)
    assert [fault.field for fault in caught.value.faults] == [None, "max_errors", "a.retries", "b.timeout", "b"]


def test_a_wrong_key_template_is_told_together_with_a_wrong_row_key_and_wrong_metadata():
    def declare() -> object:
        @operation("x", row_key="nope")
        class Keyed(Pipeline[Row, Meta]):
            @step.signal(key="a-{row.nix}", timeout=1)
            async def wait(self, row: Row, ctx: Context[Meta]) -> None: ...

        return Keyed

    told = fault_of(declare)
    assert "row_key is 'nope'" in told
    assert "wait.key: has {row.nix}, which does not exist" in told

    def declare_without_model() -> object:
        @operation("x")
        class Keyed(Pipeline[Row, int]):  # type: ignore[type-var]
            @step.signal(key="a-{row.nix}-{meta.carrier}", timeout=1)
            async def wait(self, row: Row, ctx: Context[Any]) -> None: ...

        return Keyed

    told = fault_of(declare_without_model)
    assert "metadata type must be" in told
    assert "wait.key: has {row.nix}, which does not exist; there are: row.id, row_number, operation_id" in told
    assert "meta.carrier" not in told, "nothing is known of the metadata's fields"
