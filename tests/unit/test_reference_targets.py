"""The reference page of targets says what the code says: options, fields, outcomes, kinds of error, causes."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, get_args

import pytest
from test_reference_documents import DOCS, page, section, table

from penstock.targets import (
    BulkError,
    BulkOptions,
    BulkResult,
    Capabilities,
    DataverseOptions,
    Endpoint,
    ErrorKind,
    Outcome,
    Phase,
    Progress,
    RetryPolicy,
    SqlOptions,
    Target,
    TargetError,
)
from penstock.targets.diagnostics.causes import SUGGESTIONS
from penstock.targets.http.error_mapping import LOST, STATUS_KINDS
from penstock.targets.model import Mode
from penstock.targets.results import StoppedReason
from penstock.targets.rules.pace import COSTLY, CYCLE_MAX_S
from penstock.targets.rules.retry import Act, after_refusal

PAGE = page("targets.md")
NAME = re.compile(r"`(\w+)")


def spelled(value: Any) -> str:
    """A default as the tables of this page spell it."""
    if isinstance(value, frozenset):
        return f"`{', '.join(map(str, sorted(value)))}`"
    return f'`"{value}"`' if type(value) is str else f"`{value}`"


def defaults(kind: Any, *, without: Any = None) -> dict[str, str]:
    """The fields of a dataclass with their defaults, without those of another."""
    known = {field.name for field in dataclasses.fields(without)} if without else set()
    found = {}
    for field in dataclasses.fields(kind):
        value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if field.name not in known:
            found[field.name] = "required" if value is dataclasses.MISSING else spelled(value)
    return found


def listed(*head: str) -> dict[str, str]:
    """The names in the first column of a table, each with its second column."""
    return {name: row[1] for row in table(PAGE, *head) for name in NAME.findall(row[0])}


@pytest.mark.covers("BX-042", "BX-092", "BX-093", "BX-094", "BX-095", "BX-096", "BX-097", "BX-098", "BX-099")
@pytest.mark.parametrize(
    "head, kind, without",
    [
        ("option", BulkOptions, None),
        ("platform option", DataverseOptions, BulkOptions),
        ("table option", SqlOptions, BulkOptions),
        ("field of `Endpoint`", Endpoint, None),
    ],
)
def test_every_option_is_listed_with_its_default(head: str, kind: Any, without: Any):
    shown = listed(head, "default", "meaning")
    expected = defaults(kind, without=without)
    assert {name: value.replace("Body.ARRAY", "array") for name, value in shown.items()} == expected


@pytest.mark.parametrize("kind", [BulkResult, BulkError, Progress])
def test_every_field_of_what_comes_back_is_listed(kind: type):
    shown = set(listed(f"field of `{kind.__name__}`", "meaning"))
    fields = {field.name for field in dataclasses.fields(kind)}
    offered = {name for name in vars(kind) if not name.startswith("_")}
    if kind is Progress:
        shown |= set(NAME.findall("`processed` `percent_complete`"))
    assert shown == fields | offered


def test_every_outcome_and_every_reason_to_stop_is_listed():
    assert [row[0] for row in table(PAGE, "outcome", "meaning")] == [f"`{outcome}`" for outcome in Outcome]
    reasons = {row[0] for row in table(PAGE, "stopped reason", "meaning")}
    assert reasons == {f"`{reason}`" for reason in get_args(StoppedReason)}


@pytest.mark.covers("BX-012", "BX-063")
def test_every_kind_of_error_is_listed_with_its_retries():
    rows = table(PAGE, "kind", "retries", "what is done")
    assert [row[0] for row in rows] == [f"`{kind}`" for kind in ErrorKind]
    assert [row[1] for row in rows] == [_retries(kind) for kind in ErrorKind]


def _retries(kind: ErrorKind) -> str:
    """How often a batch is sent again, by asking the rule."""
    policy, error = RetryPolicy(), TargetError("no", kind=kind)
    for refusals in range(1, 10):
        if after_refusal(error, {kind: refusals}, Capabilities(), 10, policy).act is not Act.AGAIN:
            return str(refusals - 1)
    return "no limit"


def test_the_numbers_of_the_retry_policy_are_the_ones_in_the_text():
    policy, text = RetryPolicy(), " ".join(section(PAGE, "Kinds of error").split())
    assert [policy.wait_first_s * 2**n for n in range(policy.retries_max)] == [0.5, 1, 2]
    assert (policy.retries_max, policy.jitter, policy.throttle_default_s) == (3, 0.25, 30)
    assert (policy.acquire_timeout_s, policy.breaker_failures) == (120, 5)
    assert (policy.breaker_first_s, policy.breaker_max_s, policy.grace_s) == (1, 30, 5)
    assert (CYCLE_MAX_S, COSTLY) == (60, 1 / 20)
    assert "pauses of 0.5, 1 and 2 s and up to a quarter more" in text
    assert "five times in a row is left alone for 1 to 30 s" in text
    assert "within a minute and cost more than a twentieth of the time" in text


def test_every_phase_of_progress_is_named():
    assert set(re.findall(r"`(\w+)`", listed("field of `Progress`", "meaning")["phase"])) == {
        phase.value for phase in Phase
    }


def test_the_statuses_of_http_mean_what_the_page_says():
    shown = {int(number): row[1] for row in table(PAGE, "status", "kind of error") for number in row[0].split(", ")}
    assert {status: NAME.findall(text)[0] for status, text in shown.items() if status != 413} == {
        status: kind.value for status, kind in STATUS_KINDS.items() if status != 413
    }
    assert shown[413] == f"`{STATUS_KINDS[413]}`"
    assert {status for status, text in shown.items() if "may have taken effect" in text} == LOST


@pytest.mark.covers("BX-071")
def test_every_cause_is_listed_with_its_suggestion():
    assert table(PAGE, "cause", "suggestion") == [[f"`{cause}`", text] for cause, text in SUGGESTIONS.items()]


@pytest.mark.covers("BX-040")
def test_every_bulk_call_is_listed():
    shown = {row[0].strip("`") for row in table(PAGE, "method", "takes", "gives")}
    assert shown == {*(f"{mode}_multiple" for mode in Mode), "start"}


def test_the_page_on_targets_names_everything_that_a_target_can_tell():
    text = (DOCS / "how-to" / "write-a-target.md").read_text()
    can_tell = {name for name in vars(Target) if not name.startswith("_")}
    later = {
        "start",
        "slot_pool",
        "name",
        "identifier",
        "refresh",
        "check_options",
        "aclose",
        "describe",
        "width_max",
        "can_send_each",
    }
    assert can_tell - later <= set(re.findall(r"\w+", text))


@pytest.mark.covers("BX-004")
def test_the_non_goals_of_the_document_are_stated():
    text = " ".join(section(PAGE, "Limits and non-goals").split())
    for non_goal in ("no silent change to single requests", "No transactions across", "No cascades"):
        assert non_goal in text
