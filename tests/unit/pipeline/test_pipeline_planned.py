"""An operation as it was stored: its options come back as they were, and what cannot be stored is the code's."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel

from penstock.errors import DeclarationError, SettingsInvalid
from penstock.pipeline import (
    Backoff,
    BatchContext,
    Context,
    Definition,
    OperationOptions,
    Pipeline,
    StepOptions,
    definition_of,
    operation,
    step,
)
from penstock.testing import context


class Sim(BaseModel):
    id: int
    imei: str = ""


class Busy(Exception):
    pass


COMMON: dict[str, Any] = {
    "backoff": Backoff(initial=3, factor=4, max=50, jitter=0.25),
    "concurrency": 4,
    "rate": "600/min",
    "allow_operation_retry": False,
    "barrier": True,
    "effect_key": "generation",
}
KINDS = ("plain", "batch", "poll", "signal")
OTHER: dict[str, dict[str, Any]] = {
    "plain": {**COMMON, "retries": 2, "timeout": 60},
    "batch": {**COMMON, "delivery": "at_most_once", "timeout": 70, "size": 5, "isolate": False},
    "poll": {**COMMON, "retries": 1, "timeout": 80, "every": 8},
    "signal": {**COMMON, "retries": 1, "timeout": 90, "key": "old-{row.id}"},
}
USUAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch": {},
    "poll": {"timeout": 1, "every": 1},
    "signal": {"timeout": 1, "key": "new-{row.imei}"},
}


def release(options: dict[str, dict[str, Any]], row_key: str | None = None, **own: Any) -> Definition:
    """The operation with these options of its four steps, which are called by their kind."""

    @operation("sims", row_key=row_key, **own)
    class Sims(Pipeline[Sim]):
        @step(**options["plain"])
        async def plain(self, row: Sim, ctx: Context) -> None: ...

        @step.batch(**options["batch"])
        async def batch(self, rows: list[Sim], ctx: BatchContext) -> None: ...

        @step.poll(**options["poll"])
        async def poll(self, row: Sim, ctx: Context) -> None: ...

        @poll.check
        async def is_done(self, row: Sim, ctx: Context) -> bool:
            return True

        @step.signal(**options["signal"])
        async def signal(self, row: Sim, ctx: Context) -> None: ...

    return definition_of(Sims)


OWN: dict[str, Any] = {
    "description": "as it was",
    "retryable": False,
    "track_row_data": False,
    "max_row_concurrency": 3,
    "max_errors": 5,
    "max_error_rate": 0.5,
    "max_retry_attempts": 7,
    "allow_empty": True,
    "tags": ("phone",),
}


def stored(definition: Definition) -> Any:
    """The plan as it comes back from a database."""
    return json.loads(json.dumps(definition.plan_document()))


def test_every_option_comes_back_as_it_was_stored_whatever_the_code_says_now():
    before, now = release(OTHER, "imei", **OWN), release(USUAL)
    found = now.as_planned(stored(before))
    assert (found.options, found.row_key) == (before.options, "imei")
    assert [plan.options for plan in found.steps] == [plan.options for plan in before.steps]
    assert [plan.key_template for plan in found.steps] == [plan.key_template for plan in before.steps]
    assert stored(found) == stored(before)


def test_no_option_is_left_out_of_these_tests():
    before, now = release(OTHER, **OWN), release(USUAL)
    for field in fields(OperationOptions):
        if field.name == "keep":
            continue  # not part of the plan: how long it is kept may be changed later
        assert getattr(before.options, field.name) != getattr(now.options, field.name), field.name
    for field in fields(StepOptions):
        if field.name != "retry_on":
            pairs = zip(before.steps, now.steps, strict=True)
            assert any(getattr(a.options, field.name) != getattr(b.options, field.name) for a, b in pairs), field.name


def test_functions_and_models_are_those_of_the_code():
    before, now = release(OTHER), release(USUAL)
    found = now.as_planned(stored(before))
    assert found.row is now.row
    assert [plan.functions for plan in found.steps] == [plan.functions for plan in now.steps]


def test_the_classes_of_exceptions_are_those_of_the_code():
    before = release({**USUAL, "plain": {"retry_on": (OSError, KeyError)}})
    now = release({**USUAL, "plain": {"retry_on": Busy}})
    assert now.as_planned(stored(before)).steps[0].options.retry_on == (Busy,)


def written(key: str) -> Definition:
    """A step whose key is a template."""

    @operation("wait")
    class Written(Pipeline[Sim]):
        @step.signal(key=key, timeout=1)
        async def wait(self, row: Sim, ctx: Context) -> None: ...

    return definition_of(Written)


def computed() -> Definition:
    """A step whose key is computed by a method."""

    @operation("wait")
    class Computed(Pipeline[Sim]):
        @step.signal(timeout=1)
        async def wait(self, row: Sim, ctx: Context) -> None: ...

        @wait.key
        def wait_key(self, row: Sim, ctx: Context) -> str:
            return f"computed-{row.id}"

    return definition_of(Computed)


def key_of(definition: Definition) -> str:
    bound = definition.steps[0].bind(object())
    assert bound.key is not None
    return str(bound.key(Sim(id=7), context(definition)))


@pytest.mark.parametrize("now", [computed(), written("new-{row.id}")], ids=["a method", "a template"])
def test_a_stored_key_template_holds_whatever_the_code_has(now: Definition):
    assert key_of(now.as_planned(stored(written("old-{row.id}")))) == "old-7"


@pytest.mark.parametrize("now, key", [(computed(), "computed-7"), (written("new-{row.id}"), "new-7")])
def test_a_key_that_code_computed_is_computed_by_the_code_that_is_there(now: Definition, key: str):
    assert key_of(now.as_planned(stored(computed()))) == key


def test_other_steps_do_not_fit():
    plan = stored(release(USUAL))
    plan["steps"][1]["attribute"] = "book"
    with pytest.raises(DeclarationError, match="step 'book' is gone; step 'batch' is new"):
        release(USUAL).as_planned(plan)
    del plan["steps"][1]
    with pytest.raises(DeclarationError, match="the code does not fit: step 'batch' is new"):
        release(USUAL).as_planned(plan)


def test_all_that_does_not_fit_is_told_at_once():
    plan = stored(release(USUAL))
    plan["row_key"] = "gone"
    plan["options"]["colour"] = "red"
    plan["steps"][0]["options"]["retries"] = -1
    plan["steps"][3]["options"]["key"] = "{row.gone}"
    with pytest.raises(SettingsInvalid) as caught:
        release(USUAL).as_planned(plan)
    assert {fault.field for fault in caught.value.faults} == {"row_key", "colour", "plain.retries", "signal.key"}


def test_an_option_of_a_later_penstock_has_its_default_in_an_older_plan():
    plan = stored(release(OTHER, **OWN))
    del plan["options"]["max_errors"], plan["steps"][0]["options"]["rate"]
    found = release(OTHER, **OWN).as_planned(plan)
    assert (found.options.max_errors, found.steps[0].options.rate) == (None, None)


def test_an_option_that_a_later_penstock_has_no_more_is_left_out_of_an_older_plan():
    definition = release(USUAL)
    plan = stored(definition)
    batch = next(step for step in plan["steps"] if step["kind"] == "batch")
    batch["options"]["wait"] = 1.0
    found = definition.as_planned(plan).steps
    assert [step.options for step in found] == [step.options for step in definition.steps]


def test_options_for_one_run_are_those_that_can_be_stored():
    definition = release(USUAL)
    for_run = definition.for_run({"plain.retries": "3", "plain.backoff": Backoff.constant(5)})
    assert definition.as_planned(stored(for_run)).steps[0].options == for_run.steps[0].options
    with pytest.raises(SettingsInvalid, match=r"plain\.retry_on: holds exception classes.* in code only"):
        definition.for_run({"plain.retry_on": OSError})
    assert definition.with_overrides({"plain.retry_on": OSError}).steps[0].options.retry_on == (OSError,)
