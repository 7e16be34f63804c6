"""Which records made a batch fail, read from the remote's words and the records themselves."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.diagnostics.analysis import Diagnostic, analyze_batch_failure
from penstock.targets.diagnostics.causes import SUGGESTIONS, Cause, cause_of
from penstock.targets.diagnostics.error_parsing import named_field
from penstock.targets.model import BulkOptions, ErrorKind, Mode, TargetError
from penstock.targets.target import Batch, Reference

ANN = "aaaaaaaa-0000-0000-0000-000000000001"
BOB = "bbbbbbbb-0000-0000-0000-000000000002"
EVE = "eeeeeeee-0000-0000-0000-00000000000e"
LOST = "ffffffff-0000-0000-0000-00000000000f"


def batch_of(*records: Any, mode: Mode = Mode.CREATE, table: str = "contact", **references: str) -> Batch:
    return Batch(table, mode, records, BulkOptions(references=references), "key")


def refused(message: str, code: str | None = None, **facts: Any) -> TargetError:
    return TargetError(message, kind=facts.pop("kind", ErrorKind.DATA), code=code, **facts)


def not_existing(*ids: str) -> TargetError:
    return refused(f"contact With Ids = {', '.join(ids)} Do Not Exist", "0x80040217")


def found(diagnostics: list[Diagnostic]) -> list[tuple[str, int | None, str | None]]:
    return [(diagnostic.code.value, diagnostic.index, diagnostic.field) for diagnostic in diagnostics]


@pytest.mark.covers("BX-067", "BX-068")
def test_a_record_that_refers_to_itself_is_named():
    batch = batch_of({"contactid": ANN, "parent": ANN}, {"contactid": BOB, "parent": None}, parent="contact")
    assert analyze_batch_failure(batch, not_existing(ANN)) == [
        Diagnostic(Cause.SELF_REFERENCE, 0, ANN, "parent", ANN, "contact")
    ]


@pytest.mark.covers("BX-067", "BX-069")
def test_a_record_that_refers_to_another_of_its_batch_is_named():
    batch = batch_of({"contactid": ANN}, {"contactid": BOB, "parent": ANN}, parent="contact")
    assert analyze_batch_failure(batch, not_existing(ANN)) == [
        Diagnostic(Cause.SAME_BATCH_REFERENCE, 1, BOB, "parent", ANN, "contact")
    ]


@pytest.mark.covers("BX-067", "BX-070")
def test_every_record_that_refers_to_the_missing_one_is_named_and_no_other():
    batch = batch_of({"parent": LOST}, {"parent": EVE}, {"parent": LOST}, {"parent": None}, parent="account")
    assert analyze_batch_failure(batch, not_existing(LOST)) == [
        Diagnostic(Cause.MISSING_REFERENCE, 0, None, "parent", LOST, "account"),
        Diagnostic(Cause.MISSING_REFERENCE, 2, None, "parent", LOST, "account"),
    ]


@pytest.mark.covers("BX-071")
@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_comes_with_a_suggestion(cause: Cause):
    assert len(Diagnostic(cause).suggestion) > 10
    assert set(SUGGESTIONS) == set(Cause)


def test_several_missing_records_are_told_apart():
    batch = batch_of({"contactid": ANN, "parent": ANN, "firm": LOST}, {"firm": EVE}, parent="contact", firm="account")
    assert found(analyze_batch_failure(batch, not_existing(ANN, LOST))) == [
        ("SELF_REFERENCE", 0, "parent"),
        ("MISSING_REFERENCE", 0, "firm"),
    ]


def test_ids_are_compared_whatever_their_case_and_type():
    batch = batch_of({"parent": UUID(LOST)}, {"parent": LOST.upper()}, parent="account")
    assert [diagnostic.index for diagnostic in analyze_batch_failure(batch, not_existing(LOST.upper()))] == [0, 1]


def test_references_in_the_way_of_odata_are_seen():
    batch = batch_of({"parentcustomerid_account@odata.bind": f"/accounts({LOST})", "name": "x"}, {"name": "y"})
    assert analyze_batch_failure(batch, not_existing(LOST)) == [
        Diagnostic(Cause.MISSING_REFERENCE, 0, None, "parentcustomerid_account", LOST, "accounts")
    ]


def test_a_target_may_say_what_its_references_are():
    batch = batch_of({"boss": LOST})
    found = analyze_batch_failure(
        batch, not_existing(LOST), references=lambda record: [Reference("boss", "person", record["boss"])]
    )
    assert [(one.field, one.referenced_table) for one in found] == [("boss", "person")]


def test_a_record_to_update_that_does_not_exist_is_no_missing_reference():
    batch = batch_of({"contactid": LOST, "parent": ANN}, mode=Mode.UPDATE, parent="account")
    assert analyze_batch_failure(batch, not_existing(LOST)) == []


def test_a_foreign_key_that_a_database_quotes_names_its_records():
    batch = batch_of({"id": 1, "town": 9}, {"id": 9, "town": 3}, {"id": 3, "town": 9})
    error = refused(
        'insert or update on table "contact" violates foreign key constraint "fk"',
        "23503",
        details={"detail": 'Key (town)=(9) is not present in table "towns".'},
    )
    assert analyze_batch_failure(batch, error) == [
        Diagnostic(Cause.MISSING_REFERENCE, 0, 1, "town", 9, "towns"),
        Diagnostic(Cause.MISSING_REFERENCE, 2, 3, "town", 9, "towns"),
    ]


def test_a_parent_that_is_still_referenced_is_not_missing():
    batch = batch_of(1, 2, mode=Mode.DELETE)
    error = refused("violates foreign key", "23503", details={"detail": "Key (id)=(1) is still referenced from t."})
    assert analyze_batch_failure(batch, error) == []


def test_a_foreign_key_error_without_names_accuses_nobody_in_a_batch():
    batch = batch_of({"town": 1}, {"town": 2}, town="town")
    assert analyze_batch_failure(batch, refused("FOREIGN KEY constraint failed", "787")) == []


def test_a_foreign_key_error_without_names_accuses_the_only_reference_of_a_lone_record():
    batch = batch_of({"town": 1, "name": "x"}, town="town")
    assert analyze_batch_failure(batch, refused("FOREIGN KEY constraint failed", "787")) == [
        Diagnostic(Cause.MISSING_REFERENCE, 0, None, "town", 1, "town")
    ]


def test_a_lone_record_with_several_references_is_named_without_choosing_one():
    batch = batch_of({"town": 1, "firm": 2}, town="town", firm="firm")
    assert found(analyze_batch_failure(batch, refused("FOREIGN KEY constraint failed"))) == [
        ("MISSING_REFERENCE", 0, None)
    ]


def test_a_key_that_the_remote_already_holds_names_the_record_that_carries_it():
    batch = batch_of({"code": "a"}, {"code": "b"})
    error = refused("duplicate key value", "23505", details={"detail": "Key (code)=(b) already exists."})
    assert found(analyze_batch_failure(batch, error)) == [("DUPLICATE_IN_TARGET", 1, "code")]


def test_a_key_that_two_records_of_the_batch_carry_names_the_later_one():
    batch = batch_of({"code": "b"}, {"code": "a"}, {"code": "b"})
    error = refused("duplicate key value", "23505", details={"detail": "Key (code)=(b) already exists."})
    assert found(analyze_batch_failure(batch, error)) == [("DUPLICATE_IN_BATCH", 2, "code")]


def test_a_key_of_several_columns_must_match_in_all_of_them():
    batch = batch_of({"a": 1, "b": 1}, {"a": 1, "b": 2})
    error = refused("duplicate key value", "23505", details={"detail": "Key (a, b)=(1, 2) already exists."})
    assert found(analyze_batch_failure(batch, error)) == [("DUPLICATE_IN_TARGET", 1, None)]


def test_records_of_the_same_identity_are_found_when_the_remote_names_no_key():
    batch = batch_of({"code": "a"}, {"code": "b"}, {"code": "a"}, mode=Mode.UPSERT)
    error = refused("ON CONFLICT DO UPDATE command cannot affect row a second time", "21000")
    diagnostics = analyze_batch_failure(batch, error, identity=lambda record: record["code"])
    assert found(diagnostics) == [("DUPLICATE_IN_BATCH", 2, None)]


def test_a_quoted_entry_that_stands_in_one_place_only_names_its_record():
    error = refused("Duplicate entry 'b' for key 'code'", "1062")
    assert found(analyze_batch_failure(batch_of({"code": "a"}, {"code": "b"}), error)) == [
        ("DUPLICATE_IN_TARGET", 1, None)
    ]
    assert analyze_batch_failure(batch_of({"code": "b", "x": 1}, {"code": "a", "x": "b"}), error) == []


def test_an_empty_required_field_names_the_records_where_it_is_empty():
    batch = batch_of({"name": "x"}, {"name": None}, {"other": 1})
    error = refused('null value in column "name" of relation "contact" violates not-null constraint', "23502")
    assert found(analyze_batch_failure(batch, error)) == [("REQUIRED_MISSING", 1, "name")]


def test_a_required_field_that_nobody_emptied_names_those_who_left_it_out():
    batch = batch_of({"name": "x"}, {"other": 1})
    error = refused("NOT NULL constraint failed: contact.name", "1299")
    assert found(analyze_batch_failure(batch, error)) == [("REQUIRED_MISSING", 1, "name")]


def test_an_update_may_leave_a_required_field_out():
    batch = batch_of({"id": 1, "name": "x"}, {"id": 2}, mode=Mode.UPDATE)
    assert analyze_batch_failure(batch, refused("Column 'name' cannot be null", "1048")) == []


def test_a_value_that_is_too_long_is_measured():
    batch = batch_of({"name": "x" * 5}, {"name": "x" * 6}, {"name": None})
    message = "The length of the 'name' attribute of the 'contact' entity exceeded the maximum allowed length of '5'."
    assert found(analyze_batch_failure(batch, refused(message, "0x80044331"))) == [("TOO_LONG", 1, "name")]


def test_a_length_without_a_field_accuses_nobody_in_a_batch():
    batch = batch_of({"name": "x" * 50}, {"name": "y"})
    assert analyze_batch_failure(batch, refused("value too long for type character varying(10)", "22001")) == []


def test_a_value_of_the_wrong_type_is_found_where_it_stands():
    batch = batch_of({"age": 4}, {"age": "four"})
    error = refused('invalid input syntax for type integer: "four"', "22P02")
    assert found(analyze_batch_failure(batch, error)) == [("BAD_TYPE", 1, "age")]


def test_a_field_that_the_remote_names_decides_between_equal_values():
    batch = batch_of({"age": "four", "note": "four"}, {"age": 4, "note": "four"})
    error = refused("Incorrect integer value: 'four' for column `db`.`contact`.`age` at row 1", "1366")
    assert found(analyze_batch_failure(batch, error)) == [("BAD_TYPE", 0, "age")]


def test_suspects_that_the_remote_named_win_over_guesses():
    batch = batch_of({"name": None}, {"name": None}, {"name": "x"})
    error = refused("Column 'name' cannot be null", "1048", suspects=(1,))
    assert found(analyze_batch_failure(batch, error)) == [("REQUIRED_MISSING", 1, "name")]


@pytest.mark.parametrize(
    "kind, cause",
    [
        (ErrorKind.PERMISSION, Cause.PERMISSION),
        (ErrorKind.BUSINESS, Cause.PLUGIN),
        (ErrorKind.TOO_BIG, Cause.TIMEOUT_SIZE),
    ],
)
def test_what_concerns_the_batch_as_a_whole_names_no_record(kind: ErrorKind, cause: Cause):
    batch = batch_of({"name": "x"}, {"name": "y"})
    assert analyze_batch_failure(batch, refused("no", kind=kind)) == [Diagnostic(cause)]


def test_a_plugin_that_refused_a_lone_record_refused_that_record():
    batch = batch_of({"contactid": ANN})
    error = refused("ISV code aborted", "0x80040265", kind=ErrorKind.BUSINESS)
    assert analyze_batch_failure(batch, error) == [Diagnostic(Cause.PLUGIN, 0, ANN)]


@pytest.mark.parametrize(
    "kind", [ErrorKind.THROTTLED, ErrorKind.TOKEN, ErrorKind.CONNECTION, ErrorKind.DEADLOCK, ErrorKind.RACE]
)
def test_passing_troubles_say_nothing_about_records(kind: ErrorKind):
    assert analyze_batch_failure(batch_of({"parent": LOST}, parent="account"), refused(LOST, kind=kind)) == []


def test_an_error_of_another_library_is_read_by_its_words():
    batch = batch_of({"parent": LOST}, {"parent": None}, parent="account")
    error = RuntimeError(f"Entity 'account' With Id = {LOST} Does Not Exist")
    assert found(analyze_batch_failure(batch, error)) == [("MISSING_REFERENCE", 0, "parent")]


@pytest.mark.parametrize("message", ['relation "contact" does not exist', "the sky fell", "", "Id = 12 Does Not Exist"])
def test_words_that_mean_nothing_here_are_not_interpreted(message: str):
    assert cause_of(refused(message)) is None


def test_code_wins_over_words():
    assert cause_of(refused("value too long, and this already exists", "22001")) is Cause.TOO_LONG


@pytest.mark.parametrize(
    "message, field",
    [
        ("The attribute 'emailaddress1' is unknown", "emailaddress1"),
        ("the field named 'age' is wrong", "age"),
        ("'statuscode' contains an invalid option", "statuscode"),
        ('null value in column "name" of relation "t"', "name"),
        ("NOT NULL constraint failed: t.name", "name"),
        ("UNIQUE constraint failed: t.a, t.b", None),
        ("Data too long for column 'city' at row 1", "city"),
        ("fails (`db`.`c`, CONSTRAINT `f` FOREIGN KEY (`town_id`) REFERENCES `t` (`id`))", "town_id"),
        ("something broke", None),
    ],
)
def test_the_field_that_a_message_is_about_is_read_from_it(message: str, field: str | None):
    assert named_field(message) == field


references = st.sampled_from([None, ANN, BOB, EVE, LOST])


@pytest.mark.covers("BX-068", "BX-069", "BX-070")
@given(st.lists(st.tuples(references, references), min_size=1, max_size=8), st.sampled_from([ANN, BOB, EVE, LOST]))
def test_exactly_the_records_that_refer_to_the_named_id_are_accused(rows: list[tuple[str, str]], named: str):
    batch = batch_of(*({"contactid": own, "parent": other} for own, other in rows), parent="contact")
    guilty = {one.index for one in analyze_batch_failure(batch, not_existing(named))}
    assert guilty == {index for index, (_, other) in enumerate(rows) if other == named}


@given(st.text(max_size=200), st.sampled_from(list(ErrorKind)))
def test_no_text_of_a_remote_breaks_the_analysis(message: str, kind: ErrorKind):
    batch = batch_of({"a": "b", "parent": LOST}, {"a": message}, 5, parent="account")
    for diagnostic in analyze_batch_failure(batch, refused(message, kind=kind)):
        assert diagnostic.index is None or 0 <= diagnostic.index < len(batch)
