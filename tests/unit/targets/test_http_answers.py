"""What goes into a request, and what an answer says of each record."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SettingsInvalid
from penstock.targets.http import Body, Endpoint, ItemResults
from penstock.targets.http.answers import decoded, read_answer
from penstock.targets.http.request_body import encoded, filled
from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome, TargetError
from penstock.targets.target import Answer, Batch


def batch_of(*records: Any, mode: Mode = Mode.CREATE) -> Batch:
    return Batch("thing", mode, records, BulkOptions(), "key")


def listed(**where: Any) -> Endpoint:
    return Endpoint(url="/bulk", results=ItemResults(**where))


def read(endpoint: Endpoint, body: Any, *, records: int = 2, mode: Mode = Mode.CREATE, status: int = 200) -> Answer:
    return read_answer(batch_of(*({} for _ in range(records)), mode=mode), endpoint, status, body)


def outcomes(answer: Answer) -> list[Outcome]:
    return [verdict.outcome for verdict in answer.verdicts]


@pytest.mark.parametrize(
    "body, bytes_sent",
    [
        (Body.ARRAY, b'[{"a":1},{"a":2}]'),
        (Body.WRAPPER, b'{"items":[{"a":1},{"a":2}]}'),
        (Body.NDJSON, b'{"a":1}\n{"a":2}\n'),
        (Body.NONE, None),
    ],
)
def test_a_batch_takes_the_declared_shape(body: Body, bytes_sent: bytes | None):
    assert encoded(batch_of({"a": 1}, {"a": 2}), Endpoint(url="/x", body=body)) == bytes_sent


def test_a_single_shape_carries_the_record_itself():
    endpoint = Endpoint(url="/x", body=Body.SINGLE)
    assert encoded(batch_of({"a": 1}), endpoint) == b'{"a":1}'


def test_a_record_that_json_cannot_hold_is_wrong_data():
    with pytest.raises(TargetError, match="JSON") as caught:
        encoded(batch_of({"a": object()}), Endpoint(url="/x"))
    assert (caught.value.kind, caught.value.maybe_applied) == (ErrorKind.DATA, False)


def test_fields_of_a_url_cannot_leave_their_place():
    assert filled("/t/{table}/{id}", "a b", "../x?y#z") == "/t/a%20b/..%2Fx%3Fy%23z"


@pytest.mark.parametrize("identifier", [None, "", "..", "."])
def test_an_id_that_would_change_the_path_is_refused(identifier: Any):
    with pytest.raises(TargetError, match="id"):
        filled("/t/{table}/{id}", "a", identifier)


@pytest.mark.parametrize("url", ["https://elsewhere/x", "//elsewhere/x", "/x/{name}"])
def test_an_endpoint_stays_below_its_base_and_knows_its_fields(url: str):
    with pytest.raises(SettingsInvalid, match="below the target's base"):
        Endpoint(url=url)


def test_an_endpoint_of_one_record_cannot_carry_many():
    with pytest.raises(SettingsInvalid, match="names one record"):
        Endpoint(url="/x/{id}")


def test_a_list_of_failures_needs_an_index():
    with pytest.raises(SettingsInvalid, match="index"):
        ItemResults(only_failures=True)


def test_without_item_results_a_success_is_one_for_every_record():
    assert outcomes(read(Endpoint(url="/bulk"), None)) == [Outcome.CREATED] * 2


@pytest.mark.parametrize(
    "mode, outcome", [(Mode.CREATE, "created"), (Mode.UPDATE, "updated"), (Mode.DELETE, "deleted")]
)
def test_a_success_means_what_was_asked_for(mode: Mode, outcome: str):
    assert outcomes(read(listed(status="s"), [{"s": 200}, {"s": 201}], mode=mode)) == [outcome] * 2


def test_items_in_order_are_read_in_order():
    answer = read(listed(path="data.rows", status="s"), {"data": {"rows": [{"s": 201, "id": 5}, {"s": 400}]}})
    assert outcomes(answer) == [Outcome.CREATED, Outcome.FAILED]
    assert answer.verdicts[0].id == 5


def test_items_with_an_index_may_come_in_any_order():
    answer = read(listed(index="at", status="s"), [{"at": 1, "s": 400}, {"at": 0, "s": 200}])
    assert outcomes(answer) == [Outcome.CREATED, Outcome.FAILED]


def test_an_upsert_tells_created_from_updated_by_status():
    answer = read(listed(status="s"), [{"s": 201}, {"s": 200}], mode=Mode.UPSERT)
    assert (outcomes(answer), answer.counts_exact) == ([Outcome.CREATED, Outcome.UPDATED], True)


def test_an_upsert_that_is_not_told_apart_says_so():
    assert not read(Endpoint(url="/bulk"), None, mode=Mode.UPSERT).counts_exact
    assert not read(listed(), [{}, {}], mode=Mode.UPSERT).counts_exact


def test_words_are_understood_as_declared():
    endpoint = listed(status="s", outcomes={"new": Outcome.CREATED, "same": Outcome.UNCHANGED, "no": Outcome.FAILED})
    answer = read(endpoint, [{"s": "new"}, {"s": "same"}, {"s": "no", "error": "why"}], records=3, mode=Mode.UPSERT)
    assert outcomes(answer) == [Outcome.CREATED, Outcome.UNCHANGED, Outcome.FAILED]
    assert answer.verdicts[2].error is not None
    assert answer.verdicts[2].error.message == "why"


def test_an_item_with_an_error_has_failed():
    answer = read(
        listed(code="error.no", field="error.at"), [{"id": 1}, {"error": {"message": "m", "no": 9, "at": "f"}}]
    )
    error = answer.verdicts[1].error
    assert error is not None
    assert (error.message, error.code, error.field, error.kind) == ("m", "9", "f", ErrorKind.DATA)


@pytest.mark.parametrize(
    "good, bad",
    [
        ({"s": True, "error": "it is done"}, {"s": False}),
        ({"s": "ok"}, {"s": "Error", "message": "why"}),
        ({"s": "fine"}, {"s": "failed"}),
    ],
)
def test_a_status_that_is_no_number_says_what_it_says(good: dict[str, Any], bad: dict[str, Any]):
    answer = read(listed(status="s"), [good, bad])
    assert outcomes(answer) == [Outcome.CREATED, Outcome.FAILED]
    assert answer.verdicts[1].error is not None
    assert ("why" in answer.verdicts[1].error.message) == ("message" in bad)


def test_what_is_listed_among_failures_has_failed_whatever_it_says():
    answer = read(listed(path="failures", index="i", only_failures=True), {"failures": [{"i": 1, "reason": "why"}]})
    assert outcomes(answer) == [Outcome.CREATED, Outcome.FAILED]
    assert answer.verdicts[1].error is not None
    assert answer.verdicts[1].error.message == "why"


@pytest.mark.parametrize("body", list(Body))
def test_an_answer_that_tells_of_each_record_is_not_taken_for_a_success_of_all(body: Body):
    records = 1 if Endpoint(url="/x", body=body).is_single else 2
    with pytest.raises(TargetError, match="the endpoint has no `results`") as caught:
        read(Endpoint(url="/x", body=body), [{"status": 201}, {"status": 422}], records=records, status=207)
    assert caught.value.maybe_applied


def test_a_throttled_item_is_a_throttle():
    error = read(listed(status="s"), [{"s": 200}, {"s": 429}]).verdicts[1].error
    assert error is not None
    assert error.kind is ErrorKind.THROTTLED


def test_a_list_of_failures_leaves_the_others_done():
    endpoint = listed(path="failures", index="i", status="s", only_failures=True)
    assert outcomes(read(endpoint, {"failures": [{"i": 1, "s": 422}]})) == [Outcome.CREATED, Outcome.FAILED]
    assert outcomes(read(endpoint, {})) == [Outcome.CREATED] * 2


@pytest.mark.parametrize("header, is_open", [(None, True), ("Idempotency-Key", False)])
def test_a_record_whose_own_answer_was_lost_is_unknown(header: str | None, is_open: bool):
    endpoint = Endpoint(url="/x", results=ItemResults(status="s"), idempotency_header=header)
    verdict = read(endpoint, [{"s": 200}, {"s": 504}]).verdicts[1]
    assert verdict.error is not None
    assert (verdict.outcome, verdict.error.maybe_applied) == (Outcome.UNKNOWN, is_open)


def test_a_record_that_the_answer_forgets_is_unknown():
    answer = read(listed(index="i", status="s"), [{"i": 0, "s": 200}])
    assert outcomes(answer) == [Outcome.CREATED, Outcome.UNKNOWN]


@pytest.mark.parametrize("body", [None, {"rows": 7}, "oops", [{"s": 200}], [{"s": 200}] * 3])
def test_an_answer_that_cannot_be_matched_to_the_records_is_ambiguous(body: Any):
    with pytest.raises(TargetError) as caught:
        read(listed(status="s"), body)
    assert (caught.value.kind, caught.value.maybe_applied) == (ErrorKind.CONNECTION, True)


@pytest.mark.parametrize("indexes", [(0, 0), (0, 2), (0, -1), (0, "1"), (0, None)])
def test_an_index_that_names_no_record_or_one_twice_is_ambiguous(indexes: tuple[Any, Any]):
    with pytest.raises(TargetError) as caught:
        read(listed(index="i", status="s"), [{"i": index, "s": 200} for index in indexes])
    assert caught.value.maybe_applied


def test_a_deleted_record_that_was_not_there_counts_as_done_if_declared():
    body = [{"s": 404}, {"s": 410}]
    strict, lenient = listed(status="s"), Endpoint(url="/x", results=ItemResults(status="s"), gone_is_deleted=True)
    assert outcomes(read(strict, body, mode=Mode.DELETE)) == [Outcome.FAILED] * 2
    assert outcomes(read(lenient, body, mode=Mode.DELETE)) == [Outcome.DELETED] * 2


@pytest.mark.parametrize(
    "body, value",
    [
        (b"", None),
        (b" \n", None),
        (b'{"a":1}', {"a": 1}),
        (b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        (b"<html>", "<html>"),
        (b"\xff", "�"),
    ],
)
def test_a_body_is_json_or_json_lines_or_text(body: bytes, value: Any):
    assert decoded(body) == value


def test_json_lines_of_one_record_are_a_list_of_one():
    lines = Endpoint(url="/x", body=Body.NDJSON, results=ItemResults(status="s"))
    assert outcomes(read(lines, decoded(b'{"s": 201}\n'), records=1)) == [Outcome.CREATED]


def test_an_object_where_a_list_should_be_proves_nothing():
    with pytest.raises(TargetError) as caught:
        read(listed(id="", error=None), {"results": []}, records=1)
    assert caught.value.maybe_applied
