"""Error reports without record values, and manifests that can be fed back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.diagnostics.analysis import Diagnostic
from penstock.targets.diagnostics.causes import Cause
from penstock.targets.manifest import RetryManifest
from penstock.targets.model import BadInput, ErrorKind, Mode, Outcome
from penstock.targets.report import ErrorReport, pattern
from penstock.targets.results import CODES, BulkError, BulkResult, Outcomes

SHORT = {
    "c": Outcome.CREATED,
    "u": Outcome.UPDATED,
    "f": Outcome.FAILED,
    "?": Outcome.UNKNOWN,
    "-": Outcome.NOT_RUN,
    "s": Outcome.SKIPPED,
}


def result(outcomes: str, *errors: BulkError, mode: Mode = Mode.CREATE, **facts: Any) -> BulkResult:
    codes = bytes(CODES[SHORT[letter]] for letter in outcomes)
    return BulkResult(mode=mode, outcomes=Outcomes(codes), errors=errors, **facts)


def error(index: int, message: str = "no", **facts: Any) -> BulkError:
    return BulkError(index=index, message=message, **facts)


@pytest.mark.parametrize(
    "message, kept",
    [
        ("Key (email)=(ann@example.org) already exists.", "Key (email)=(‹…›) already exists."),
        ("Key (name)=(Ann Smith) already exists.", "Key (name)=(‹…›) already exists."),
        ('invalid input syntax for type integer: "four"', "invalid input syntax for type integer: ‹…›"),
        ("With Ids = 7c0e0000-0000-0000-0000-000000000001 Do Not Exist", "With Ids = ‹id› Do Not Exist"),
        ("balance -12.50 is below 0", "balance ‹n› is below ‹n›"),
        ("mail to ann@example.org bounced", "mail to ‹…› bounced"),
        ("Sql1205 stays", "Sql1205 stays"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_values_are_taken_out_of_messages(message: str, kept: str):
    assert pattern(message) == kept


def test_the_name_of_the_field_stays_in_its_message():
    assert pattern("the field 'age' has the value 'old'", "age") == "the field 'age' has the value ‹…›"


def test_the_report_counts_per_table_and_over_all():
    report = ErrorReport.of({"account": result("ccf", error(2)), "contact": result("c?-s", error(1))})
    assert report.summary == {"total": 7, "succeeded": 3, "failed": 1, "unknown": 1, "not_run": 1, "skipped": 1}
    assert (report.tables["account"].failed, report.tables["contact"].not_run) == (1, 1)


def test_the_most_frequent_messages_of_a_table_come_first():
    errors = [error(n, f"value '{n}' is wrong") for n in range(3)] + [error(3, "other"), error(4, "third")]
    errors += [error(5, "fourth")]
    top = ErrorReport.of({"t": result("ffffff", *errors)}).tables["t"].top
    assert top[0] == ("value ‹…› is wrong", 3)
    assert len(top) == 3


def test_every_error_is_listed_with_its_cause_and_a_suggestion():
    told = error(1, "Key (town)=(9) is not present in table", kind=ErrorKind.DATA, code="23503", id=7)
    listed = ErrorReport.of({"t": result("cf", told)}).errors[0]
    assert (listed.table, listed.index, listed.id, listed.code, listed.kind) == ("t", 1, None, "23503", "data")
    assert listed.causes == (Cause.MISSING_REFERENCE,)
    assert "create the referenced record first" in listed.suggestions[0]


def test_diagnostics_are_believed_over_a_guess():
    told = error(0, "value too long", diagnostics=(Diagnostic(Cause.PARENT_FAILED, 0),))
    assert ErrorReport.of({"t": result("f", told)}).errors[0].causes == (Cause.PARENT_FAILED,)


def test_the_document_holds_the_context_and_everything_else(tmp_path: Path):
    told = error(0, "no", id=UUID(int=5), field="age")
    report = ErrorReport.of({"t": result("fc", told, duration_s=1.23456)}, with_ids=True, target="crm", run=7)
    report.save(tmp_path / "report.json")
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["version"] == 1
    assert document["context"] == {"target": "crm", "run": 7}
    assert document["summary"]["failed"] == 1
    assert document["tables"]["t"]["duration_s"] == 1.235
    assert document["errors"][0] == {
        "table": "t",
        "index": 0,
        "outcome": "failed",
        "kind": "other",
        "message": "no",
        "code": None,
        "id": str(UUID(int=5)),
        "field": "age",
        "causes": [],
        "suggestions": [],
    }


def test_no_value_of_a_record_is_in_the_document():
    told = error(0, "Duplicate entry 'secret-value' for key 'name' near 'secret-value'; got \"secret-value\"")
    assert b"secret-value" not in ErrorReport.of({"t": result("f", told)}).to_json()


def test_a_manifest_selects_what_failed_or_was_not_run():
    manifest = RetryManifest.of({"t": result("cf-cs")})
    assert list(manifest.select("abcde")) == ["b", "c"]


def test_a_create_that_may_have_happened_is_not_sent_again_unless_told():
    manifest = RetryManifest.of({"t": result("f?", mode=Mode.CREATE)})
    assert list(manifest.select("ab")) == ["a"]
    assert list(manifest.select("ab", unknown=True)) == ["a", "b"]


@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT, Mode.DELETE])
def test_other_modes_are_sent_again_when_unknown(mode: Mode):
    manifest = RetryManifest.of({"t": result("f?", mode=mode)})
    assert list(manifest.select("ab")) == ["a", "b"]
    assert list(manifest.select("ab", unknown=False)) == ["a"]


def test_a_manifest_survives_its_file(tmp_path: Path):
    results = {
        "a": result("cf?-", error(1, id="x"), error(2, id=9), mode=Mode.UPSERT),
        "b": result("f", error(0, id=UUID(int=1))),
        "fine": result("cc"),
    }
    manifest = RetryManifest.of(results)
    manifest.save(tmp_path / "retry.json")
    loaded = RetryManifest.load(tmp_path / "retry.json")
    assert set(loaded.tables) == {"a", "b"}
    assert list(loaded.select("wxyz", table="a")) == ["x", "y", "z"]
    assert loaded.tables["a"].ids == {1: "x", 2: 9}
    assert loaded.tables["b"].ids == {0: str(UUID(int=1))}


def test_a_file_that_is_no_manifest_says_so(tmp_path: Path):
    (tmp_path / "x.json").write_text('{"tables": 5}')
    with pytest.raises(BadInput, match=r"x\.json is no retry manifest"):
        RetryManifest.load(tmp_path / "x.json")


@pytest.mark.parametrize("records", ["ab", "abcd"])
@pytest.mark.parametrize("form", [str, iter])
def test_another_input_than_the_first_is_refused(records: str, form: Any):
    manifest = RetryManifest.of({"t": result("ccf")})
    with pytest.raises(BadInput, match=f"3 records and this input has {len(records)}"):
        list(manifest.select(form(records)))


def test_a_table_must_be_named_when_there_are_several():
    manifest = RetryManifest.of({"a": result("f"), "b": result("f")})
    with pytest.raises(BadInput, match="it knows a, b"):
        manifest.select("x")


@given(st.text("cuf?-s", max_size=50))
def test_lists_and_streams_select_the_same(outcomes: str):
    results = {"t": result(outcomes, mode=Mode.UPSERT)}
    manifest = RetryManifest.of(results)
    wanted = [n for n, letter in enumerate(outcomes) if letter in "f?-"]
    if wanted:
        assert list(manifest.select(range(len(outcomes)))) == wanted
        assert list(manifest.select(iter(range(len(outcomes))))) == wanted
    else:
        assert manifest.tables == {}


def test_ids_are_told_only_when_asked_for():
    error = BulkError(
        index=0,
        message="no",
        kind=ErrorKind.DATA,
        code=None,
        id="ana@example.org",
        field=None,
        outcome=Outcome.FAILED,
        diagnostics=(),
    )
    result = BulkResult(mode=Mode.UPSERT, outcomes=Outcomes(b"\x04"), errors=[error], duration_s=1)
    assert b"ana@" not in ErrorReport.of({"t": result}).to_json()
    assert b"ana@" in ErrorReport.of({"t": result}, with_ids=True).to_json()
