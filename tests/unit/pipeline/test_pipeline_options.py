"""Options of operations and steps: defaults, shorthands, overrides and their stored form."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import timedelta
from random import Random
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
    StepPlan,
    definition_of,
    operation,
    step,
)
from penstock.pipeline.options import OPERATION_RULES, STEP_RULES


class Sim(BaseModel):
    id: int
    imei: str = ""


class NoChance(Random):
    def random(self) -> float:
        return 0.0


class FullChance(Random):
    def random(self) -> float:
        return 1.0


@operation("sims", tags=["phone"], row_key="id")
class Sims(Pipeline[Sim]):
    """Switch them on."""

    @step(
        name="Activate SIM",
        retries=2,
        backoff=timedelta(seconds=3),
        timeout=timedelta(minutes=1),
        retry_on=OSError,
        rate="600/min",
    )
    def activate_sim(self, row: Sim, ctx: Context) -> None: ...

    @step.batch(size=5, isolate=False)
    def book(self, rows: list[Sim], ctx: BatchContext) -> None: ...

    @step.signal(key="sim-{row.id}", timeout=45)
    def approve(self, row: Sim, ctx: Context) -> None: ...

    @step.signal(timeout=45)
    def pay(self, row: Sim, ctx: Context) -> None: ...

    @pay.key
    def pay_key(self, row: Sim, ctx: Context) -> str:
        return "x"


def plan(definition: Definition, name: str) -> StepPlan:
    found = definition.find_step(name)
    assert found is not None
    return found


def changed(**overrides: Any) -> Definition:
    return definition_of(Sims).with_overrides(overrides)


@pytest.mark.covers("SM-056", "SM-017", "SM-069", "SM-039", "SG-052")
def test_the_defaults_are_those_of_the_contract():
    found = plan(definition_of(Sims), "book").options
    assert found == StepOptions(size=5, isolate=False)
    assert (found.retries, found.timeout, found.retry_on, found.delivery) == (0, None, (Exception,), "at_least_once")
    assert (found.allow_operation_retry, found.concurrency, found.rate) == (True, None, None)
    options = definition_of(Sims).options
    assert (options.retryable, options.track_row_data, options.max_row_concurrency) == (True, True, 10)
    assert (options.max_errors, options.max_error_rate, options.max_retry_attempts) == (None, None, 10)


@pytest.mark.covers("SG-049")
def test_durations_rates_and_shorthands_become_seconds():
    found = plan(definition_of(Sims), "activate_sim").options
    assert found.timeout == 60
    assert found.rate == 10
    assert found.backoff == Backoff(initial=3)
    assert found.retry_on == (OSError,)


@pytest.mark.parametrize(
    "rate, per_second",
    [("100/s", 100), ("600/min", 10), ("5/h", 5 / 3600), (2.5, 2.5), ("7", 7), ("1 / day", 1 / 86400)],
)
def test_a_rate_is_calls_per_second(rate: object, per_second: float):
    assert plan(changed(steps={"book": {"rate": rate}}), "book").options.rate == per_second


@pytest.mark.covers("SM-029")
def test_backoff_doubles_from_one_second_to_thirty():
    assert [Backoff().delay(n, NoChance()) for n in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


def test_backoff_adds_up_to_half_as_jitter():
    assert [Backoff().delay(n, FullChance()) for n in (1, 2, 6)] == [1.5, 3, 45]


def test_backoff_stays_at_its_maximum_however_often_it_is_asked():
    assert Backoff(initial=1, factor=1e9).delay(10_000, NoChance()) == 30


def test_a_constant_backoff_is_constant():
    assert [Backoff.constant(timedelta(seconds=5)).delay(n, FullChance()) for n in (1, 9)] == [5, 5]


def test_a_first_wait_above_the_usual_maximum_raises_it():
    assert Backoff(initial=60).max == 60


@pytest.mark.parametrize("wrong", [{"initial": -1}, {"initial": 5, "max": 1}, {"factor": 0.5}, {"jitter": 2}])
def test_a_backoff_that_cannot_work_is_refused(wrong: dict[str, Any]):
    with pytest.raises(DeclarationError, match="cannot work: it needs 0 <= initial <= max"):
        Backoff(**wrong)


def test_every_option_can_be_overridden():
    assert set(OPERATION_RULES) == {field.name for field in fields(OperationOptions)}
    assert set().union(*STEP_RULES.values()) == {field.name for field in fields(StepOptions)}


def test_overrides_set_options_of_operation_and_steps():
    definition = changed(
        max_errors=5, steps={"activate_sim": {"retries": 7}}, **{"book.size": 9, "steps.approve.timeout": 1}
    )
    assert definition.options.max_errors == 5
    assert plan(definition, "activate_sim").options.retries == 7
    assert plan(definition, "book").options.size == 9
    assert plan(definition, "approve").options.timeout == 1
    assert plan(definition, "activate_sim").options.rate == 10


def test_overrides_leave_the_declaration_as_it_is():
    changed(max_errors=5, steps={"book": {"size": 9}})
    assert definition_of(Sims).options.max_errors is None
    assert plan(definition_of(Sims), "book").options.size == 5


def test_a_step_is_found_by_attribute_or_display_name_ignoring_case():
    assert plan(changed(**{"Activate SIM.retries": 4}), "ACTIVATE_SIM").options.retries == 4


@pytest.mark.parametrize(
    "option, written, meant",
    [
        ("retries", "5", 5),
        ("timeout", "2.5", 2.5),
        ("timeout", "none", None),
        ("allow_operation_retry", "no", False),
        ("barrier", "TRUE", True),
        ("backoff", "2", Backoff(initial=2)),
        ("backoff", {"initial": 2, "max": 9}, Backoff(initial=2, max=9)),
        ("delivery", "at_least_once", "at_least_once"),
    ],
)
def test_text_from_a_command_line_becomes_the_value_it_spells(option: str, written: object, meant: object):
    definition = changed(**{f"activate_sim.{option}": written})
    assert getattr(plan(definition, "activate_sim").options, option) == meant


@pytest.mark.parametrize(
    "option, written, meant",
    [
        ("max_error_rate", "0.25", 0.25),
        ("max_errors", "null", None),
        ("retryable", "false", False),
        ("tags", "a, b", ("a", "b")),
        ("description", "New", "New"),
    ],
)
def test_text_works_for_options_of_the_operation(option: str, written: str, meant: object):
    assert getattr(changed(**{option: written}).options, option) == meant


def test_the_row_key_can_be_set():
    assert changed(row_key="imei").row_key == "imei"
    assert definition_of(Sims).row_key == "id"


def test_all_faulty_overrides_are_told_at_once_with_what_is_known():
    with pytest.raises(SettingsInvalid, match="operation 'sims' cannot take these options") as caught:
        changed(
            colour="red",
            max_errors="many",
            row_key="nope",
            steps={"nosuch": {"retries": 1}, "book": {"every": 3}},
            **{"activate_sim.retries": "x", "activate_sim.retry_on": "OSError"},
        )
    faults = {fault.field: fault.message for fault in caught.value.faults}
    assert set(faults) == {
        "colour",
        "max_errors",
        "row_key",
        "nosuch",
        "book.every",
        "activate_sim.retries",
        "activate_sim.retry_on",
    }
    assert faults["colour"].startswith("there is no such option; known: allow_empty, description, keep, max_error_rate")
    assert faults["nosuch"] == "there is no such step; known: activate_sim, book, approve, pay"
    assert faults["max_errors"] == "must be a whole number, 0 or more; found 'many'"
    assert "can be set in code only" in faults["activate_sim.retry_on"]


def test_an_override_cannot_make_an_at_most_once_step_retry():
    with pytest.raises(SettingsInvalid, match=r"activate_sim\.retries: must be 0 with delivery 'at_most_once'"):
        changed(**{"activate_sim.delivery": "at_most_once"})


def test_a_key_template_can_be_changed_and_is_checked_again():
    template = plan(changed(**{"approve.key": "s-{row.imei}"}), "approve").key_template
    assert template is not None
    assert template.text == "s-{row.imei}"
    with pytest.raises(SettingsInvalid, match=r"approve\.key: has \{row\.no\}"):
        changed(**{"approve.key": "{row.no}"})
    with pytest.raises(SettingsInvalid, match=r"pay\.key: cannot be changed"):
        changed(**{"pay.key": "x"})


def test_steps_must_be_a_mapping():
    with pytest.raises(SettingsInvalid, match="steps: must be a mapping from steps to their options"):
        changed(steps=["book"])


def test_the_plan_document_is_json_and_tells_what_was_decided():
    document = json.loads(json.dumps(changed(max_errors=3).plan_document()))
    assert (document["operation"], document["row_key"], document["options"]["max_errors"]) == ("sims", "id", 3)
    assert document["options"]["tags"] == ["phone"]
    first, book, approve, _ = document["steps"]
    assert (first["index"], first["name"], first["attribute"], first["kind"]) == (
        0,
        "Activate SIM",
        "activate_sim",
        "plain",
    )
    assert first["options"]["retry_on"] == ["OSError"]
    assert first["options"]["backoff"] == {"initial": 3.0, "factor": 2.0, "max": 30.0, "jitter": 0.5}
    assert (book["options"]["size"], approve["options"]["key"]) == (5, "sim-{row.id}")
    assert "size" not in first["options"]
