"""What an answer of Dataverse stands for."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from penstock.targets.dataverse.error_mapping import RowFailure, WebApiReply, refusal, row_error, row_failures
from penstock.targets.model import ErrorKind, Limit, TargetError

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DETAILS = "@Microsoft.PowerApps.CDS.ErrorDetails.Plugin.BulkApiErrorDetails"


def reply(
    status: int, code: str = "", message: str = "", headers: dict[str, str] | None = None, **more: object
) -> WebApiReply:
    body = {"error": {"code": code, "message": message, **more}}
    return WebApiReply(status, headers or {}, json.dumps(body).encode())


def test_a_throttle_until_a_date_is_measured_by_the_clock_of_the_platform():
    headers = {"retry-after": "Tue, 01 Jan 2030 00:02:00 GMT", "date": "Tue, 01 Jan 2030 00:01:30 GMT"}
    assert refusal(reply(429, headers=headers), NOW, is_write=True).retry_after_s == 30


@pytest.mark.covers("BX-057")
def test_a_throttle_carries_its_wait_and_its_limit():
    error = refusal(reply(429, "0x80072326", "too many", {"retry-after": "7"}), NOW, is_write=True)
    assert (error.kind, error.retry_after_s, error.limit) == (ErrorKind.THROTTLED, 7.0, Limit.CONCURRENCY)
    assert not error.maybe_applied


def test_the_code_the_words_the_field_and_the_request_id_are_kept():
    headers = {"x-ms-service-request-id": "r-1"}
    error = refusal(reply(400, "0x80044331", "The length of the 'name' attribute …", headers), NOW, is_write=True)
    assert (error.code, error.field, error.details["request_id"]) == ("0x80044331", "name", "r-1")
    assert error.message.startswith("The length")


def test_an_inner_message_is_used_when_there_is_no_other():
    error = refusal(reply(400, "", "", innererror={"message": "inside"}), NOW, is_write=True)
    assert (error.message, error.code) == ("inside", "400")


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize(
    "answer, is_doubtful",
    [
        (WebApiReply(502, {}, b"<html>bad gateway</html>"), True),
        (WebApiReply(504, {}, b""), True),
        (WebApiReply(500, {}, b"<html>"), True),
        (WebApiReply(503, {}, b""), True),
        (reply(503, "0x0", "unavailable"), True),
        (WebApiReply(503, {"retry-after": "5"}, b""), True),
        (reply(503, "0x0", "unavailable", {"retry-after": "5"}), True),
        (reply(503, "0x80072322", "too many", {"retry-after": "5"}), False),
        (WebApiReply(408, {}, b""), True),
        (reply(500, "0x80044150", "Sql Number: 1205"), False),
        (WebApiReply(400, {}, b""), False),
    ],
)
def test_a_write_that_something_else_answered_may_have_taken_effect(answer: WebApiReply, is_doubtful: bool):
    assert refusal(answer, NOW, is_write=True).maybe_applied is is_doubtful
    assert not refusal(answer, NOW, is_write=False).maybe_applied
    if is_doubtful:
        kind = ErrorKind.THROTTLED if "retry-after" in answer.headers else ErrorKind.CONNECTION
        assert refusal(answer, NOW, is_write=True).kind is kind


@pytest.mark.covers("BX-036")
def test_the_rows_of_a_partly_failed_call_are_read_from_their_list():
    listed = [{"RequestIndex": 1, "Id": "a", "StatusCode": 429}, {"RequestIndex": 3, "StatusCode": 400}]
    for name in (DETAILS, "@Other.Prefix.BulkApiErrorDetails"):
        rows = row_failures(reply(400, "0x80040265", "2 of 4", **{name: json.dumps(listed)}), 4)
        assert [(row.index, row.id, row.status) for row in rows] == [(1, "a", 429), (3, None, 400)]


def test_rows_that_are_listed_but_went_well_did_not_fail():
    listed = json.dumps([{"RequestIndex": n, "StatusCode": 400 if n == 2 else 201} for n in range(4)])
    assert [row.index for row in row_failures(reply(400, "x", "y", **{DETAILS: listed}), 4)] == [2]


def test_a_row_whose_outcome_the_store_does_not_know_may_have_been_written():
    statuses = (400, 408, 429, 449, 503)
    errors = {status: row_error(RowFailure(0, status, None), TargetError("x")) for status in statuses}
    assert [status for status, error in errors.items() if error.maybe_applied] == [408, 503]
    assert errors[503].kind is ErrorKind.THROTTLED


def test_rows_that_were_never_sent_are_not_believed():
    listed = json.dumps([{"RequestIndex": 9, "StatusCode": 400}, {"RequestIndex": -1, "StatusCode": 400}])
    assert row_failures(reply(400, "x", "y", **{DETAILS: listed}), 4) == []


@pytest.mark.parametrize("listed", ["no json", "{}", "[1]", '[{"RequestIndex": "x", "StatusCode": 1}]', 7, None])
def test_a_list_that_cannot_be_read_is_no_list(listed: object):
    assert row_failures(reply(400, "x", "y", **{DETAILS: listed}), 4) == []


def test_a_row_says_its_status_and_what_was_said_of_the_call():
    (row,) = row_failures(reply(400, "x", "y", **{DETAILS: '[{"RequestIndex": 0, "StatusCode": 449}]'}), 1)
    error = row_error(row, TargetError("1 of 1 failed"))
    assert (error.kind, error.code, error.retry_after_s) == (ErrorKind.THROTTLED, "449", 1.0)
    assert "1 of 1 failed" in error.message


@pytest.mark.parametrize("hint, width", [("5", 5), ("0", None), ("-1", None), ("many", None), ("", None)])
def test_the_recommended_width_is_a_positive_number_or_nothing(hint: str, width: int | None):
    assert WebApiReply(204, {"x-ms-dop-hint": hint}, b"").width_hint == width
