"""What users declare: pipelines, functions, steps of every kind, and what they become."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

import pytest
from pydantic import BaseModel

from penstock.errors import DeclarationError
from penstock.pipeline import (
    BatchContext,
    Context,
    Definition,
    Done,
    Pipeline,
    Run,
    Step,
    StepObject,
    definition_of,
    operation,
    step,
)


class Parcel(BaseModel):
    id: int
    kind: str = "box"


class Order(BaseModel):
    carrier: str


class Label(BaseModel):
    text: str


class Submit(StepObject[Label]):
    def __init__(self, url: str) -> None:
        self.url = url

    async def run(self, parcel: Parcel, ctx: Context[Order]) -> Label:
        return Label(text=self.url)


class Approve(StepObject[Any]):
    @step.signal(key="approval-{row.id}", timeout=timedelta(hours=48))
    def run(self, parcel: Parcel, ctx: Context[Order]) -> None: ...

    @run.when
    def is_big(self, parcel: Parcel, ctx: Context[Order]) -> bool:
        return parcel.kind == "crate"


def has_kind(parcel: Parcel, order: Order) -> None:
    assert parcel.kind


async def is_known(parcel: Parcel, order: Order) -> None: ...


@operation("shipping", row_key="id", validators=[has_kind, is_known])
class Shipping(Pipeline[Parcel, Order]):
    """Ship parcels.

    One by one.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncGenerator[Self]:
        yield cls("https://carrier.example")

    def validate_metadata(self, order: Order) -> None: ...
    async def validate_row(self, parcel: Parcel, order: Order) -> None: ...

    @step(name="Print label", retries=2)
    async def label(self, parcel: Parcel, ctx: Context[Order]) -> Label:
        return Label(text=f"{self.url}/{parcel.id}")

    submit = Submit("https://bank.example")

    @step.poll(every=2, timeout=20)
    def push(self, parcel: Parcel, ctx: Context[Order]) -> None: ...

    @push.check
    async def is_pushed(self, parcel: Parcel, ctx: Context[Order]) -> bool | Done[int]:
        return Done(1)

    approve = Approve()

    @step.batch(size=10)
    def book(self, parcels: list[Parcel], ctx: BatchContext[Order]) -> list[Label | Exception]:
        return [Label(text=str(parcel.id)) for parcel in parcels]

    @step.signal(timeout=5)
    def paid(self, parcel: Parcel, ctx: Context[Order]) -> None: ...

    @paid.key
    async def payment_key(self, parcel: Parcel, ctx: Context[Order]) -> str:
        return f"pay-{parcel.id}"


def context(definition: Definition, meta: object = None) -> Context[Any]:
    return Context(Run("op-1", definition.name, meta, definition), 7)


@pytest.mark.covers("SM-054", "SG-048")
def test_steps_stand_in_the_order_of_the_class_body_step_objects_included():
    steps = definition_of(Shipping).steps
    assert [plan.attribute for plan in steps] == ["label", "submit", "push", "approve", "book", "paid"]
    assert [plan.index for plan in steps] == [0, 1, 2, 3, 4, 5]
    assert [plan.kind for plan in steps] == ["plain", "plain", "poll", "signal", "batch", "signal"]
    assert [plan.is_async for plan in steps] == [True, True, False, False, False, False]


@pytest.mark.covers("SG-030")
def test_a_step_is_named_after_its_function_unless_it_has_a_display_name():
    assert [plan.name for plan in definition_of(Shipping).steps[:2]] == ["Print label", "submit"]


def test_the_definition_carries_name_description_key_and_hooks():
    definition = definition_of(Shipping)
    assert (definition.name, definition.row_key) == ("shipping", "id")
    assert definition.description == "Ship parcels.\n\nOne by one."
    assert definition.validate_row is not None
    assert definition.validate_row.is_async
    assert definition.validate_metadata is not None
    assert not definition.validate_metadata.is_async
    assert [(hook.call, hook.is_async) for hook in definition.validators] == [(has_kind, False), (is_known, True)]


@pytest.mark.covers("SG-029")
async def test_the_lifespan_gives_the_pipeline_with_its_clients():
    async with definition_of(Shipping).lifespan() as pipeline:
        assert isinstance(pipeline, Shipping)
        assert pipeline.url == "https://carrier.example"


async def test_on_an_instance_a_step_is_the_plain_bound_function():
    pipeline = Shipping("here")
    assert inspect.ismethod(pipeline.label)
    assert (await pipeline.label(Parcel(id=3), context(definition_of(Shipping)))).text == "here/3"
    assert isinstance(Shipping.label, Step)


async def test_a_bound_step_calls_the_pipeline_and_says_what_must_be_awaited():
    definition = definition_of(Shipping)
    label, submit, push, approve, _, paid = (plan.bind(Shipping("here")) for plan in definition.steps)
    ctx = context(definition)
    assert (await label.call(Parcel(id=3), ctx)).text == "here/3"
    assert (label.when, label.check, label.key) == (None, None, None)
    assert (await submit.call(Parcel(id=3), ctx)).text == "https://bank.example"
    assert push.check is not None
    assert push.check_is_async
    assert await push.check(Parcel(id=3), ctx) == Done(1)
    assert approve.when is not None
    assert approve.when(Parcel(id=3, kind="crate"), ctx) is True
    assert paid.key is not None
    assert await paid.key(Parcel(id=3), ctx) == "pay-3"


@pytest.mark.covers("SG-009")
def test_a_key_template_is_a_bound_key_like_any_other():
    definition = definition_of(Shipping)
    approve = definition.steps[3].bind(Shipping("here"))
    assert approve.key is not None
    assert approve.key(Parcel(id=12), context(definition)) == "approval-12"


def test_hooks_that_are_not_overridden_are_absent():
    @operation("x")
    class X(Pipeline[Parcel]):
        @step
        def a(self, row: Parcel, ctx: Context) -> None: ...

    assert definition_of(X).validate_row is None
    assert definition_of(X).validate_metadata is None


async def test_a_pipeline_without_a_lifespan_is_simply_built():
    @operation("x")
    class X(Pipeline[Parcel]):
        @step
        def a(self, row: Parcel, ctx: Context) -> None: ...

    async with definition_of(X).lifespan() as pipeline:
        assert isinstance(pipeline, X)


def test_steps_of_base_classes_come_first_and_an_override_keeps_its_place():
    class Base(Pipeline[Parcel]):
        @step
        def first(self, row: Parcel, ctx: Context) -> None: ...
        @step
        def second(self, row: Parcel, ctx: Context) -> None: ...

    @operation("child")
    class Child(Base):
        @step
        def third(self, row: Parcel, ctx: Context) -> None: ...
        @step(retries=4)
        def first(self, row: Parcel, ctx: Context) -> None: ...

        second = Base.second.with_options(retries=1)

    steps = definition_of(Child).steps
    assert [plan.attribute for plan in steps] == ["first", "second", "third"]
    assert [plan.options.retries for plan in steps] == [4, 1, 0]
    assert definition_of(Child).plan_of(Base.first) is steps[0]


def test_a_subclass_may_override_a_check_by_its_name():
    class Base(Pipeline[Parcel]):
        @step.poll(every=1, timeout=2)
        def push(self, row: Parcel, ctx: Context) -> None: ...
        @push.check
        def is_pushed(self, row: Parcel, ctx: Context) -> bool:
            return False

    @operation("child")
    class Child(Base):
        def is_pushed(self, row: Parcel, ctx: Context) -> bool:
            return True

    check = definition_of(Child).steps[0].bind(Child()).check
    assert check is not None
    assert check(Parcel(id=1), context(definition_of(Child))) is True


def test_types_are_found_through_generic_bases():
    row = TypeVar("row")

    class Base(Pipeline[row, Order], Generic[row]):
        @step
        def only(self, row: Any, ctx: Context[Order]) -> None: ...

    @operation("child")
    class Child(Base[Parcel]): ...

    definition = definition_of(Child)
    assert (definition.row.model, definition.meta.model) == (Parcel, Order)


@pytest.mark.covers("SM-015")
async def test_an_operation_may_be_a_plain_function():
    @operation("greet")
    async def greet(row: Parcel, ctx: Context[Order]) -> str:
        """Say hello."""
        return f"{ctx.meta.carrier} {row.id}"

    definition = definition_of(greet)
    assert (definition.row.model, definition.meta.model, definition.description) == (Parcel, Order, "Say hello.")
    async with definition.lifespan() as holder:
        bound = definition.steps[0].bind(holder)
    ctx = context(definition, Order(carrier="acme"))
    assert await bound.call(Parcel(id=1), ctx) == "acme 1"
    assert await greet(Parcel(id=1), ctx) == "acme 1"


def test_a_function_takes_step_options_from_a_step_below_the_mark():
    @operation("greet")
    @step(retries=3, name="Say hello")
    def greet(row: Parcel, ctx: Context) -> None: ...

    plan = definition_of(greet).steps[0]
    assert (plan.name, plan.attribute, plan.options.retries) == ("Say hello", "greet", 3)


def test_a_step_object_serves_two_pipelines_with_options_of_their_own():
    shared = Submit("u")

    @operation("one")
    class One(Pipeline[Parcel, Order]):
        submit = shared

    @operation("two")
    class Two(Pipeline[Parcel, Order]):
        send = shared.with_options(retries=5, name="Send it")

    assert definition_of(One).steps[0].options.retries == 0
    plan = definition_of(Two).steps[0]
    assert (plan.name, plan.attribute, plan.options.retries) == ("Send it", "send", 5)


def test_the_mark_is_not_inherited():
    class Special(Shipping): ...

    with pytest.raises(DeclarationError, match="is not an operation; mark it with"):
        definition_of(Special)


def test_a_definition_is_its_own_definition():
    changed = Shipping.with_options(max_errors=5)
    assert definition_of(changed) is changed
    assert changed.options.max_errors == 5
    assert definition_of(Shipping).options.max_errors is None


@pytest.mark.parametrize(
    "attribute, output",
    [("label", Label), ("submit", Label), ("push", int | None), ("approve", Any), ("book", Label), ("paid", Any)],
)
def test_an_output_type_is_what_the_step_is_declared_to_return(attribute: str, output: object):
    plan = definition_of(Shipping).find_step(attribute)
    assert plan is not None
    assert plan.output.annotation == output
