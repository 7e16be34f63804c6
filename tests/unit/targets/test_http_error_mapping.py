"""What an HTTP status means for a batch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.http import Body, Endpoint
from penstock.targets.http.error_mapping import MESSAGE_MAX, Reply, is_own_refusal, refusal, said
from penstock.targets.model import ErrorKind, Limit, TargetError

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ATOMIC = Endpoint(url="/bulk/{table}", is_atomic=True)
LOOSE = Endpoint(url="/bulk/{table}")
ONE = Endpoint(url="/rows/{table}/{id}", method="PUT", body=Body.SINGLE)


def refused(
    status: int, headers: dict[str, str] | None = None, body: Any = None, endpoint: Endpoint = ATOMIC, records: int = 2
):
    return refusal(Reply(status, headers or {}, body), endpoint, call="POST /bulk/t", now=NOW, records=records)


@pytest.mark.parametrize(
    "status, kind",
    [
        (302, ErrorKind.OTHER),
        (400, ErrorKind.DATA),
        (401, ErrorKind.TOKEN),
        (403, ErrorKind.PERMISSION),
        (404, ErrorKind.UNSUPPORTED),
        (405, ErrorKind.UNSUPPORTED),
        (408, ErrorKind.CONNECTION),
        (409, ErrorKind.DATA),
        (412, ErrorKind.DATA),
        (413, ErrorKind.TOO_BIG),
        (415, ErrorKind.UNSUPPORTED),
        (422, ErrorKind.DATA),
        (423, ErrorKind.DATA),
        (429, ErrorKind.THROTTLED),
        (500, ErrorKind.OTHER),
        (501, ErrorKind.UNSUPPORTED),
        (502, ErrorKind.CONNECTION),
        (503, ErrorKind.CONNECTION),
        (504, ErrorKind.CONNECTION),
    ],
)
def test_every_status_has_its_class(status: int, kind: ErrorKind):
    assert refused(status).kind is kind


def test_a_record_that_is_not_found_does_not_make_the_call_unsupported():
    assert refused(404, endpoint=ONE).kind is ErrorKind.DATA


def test_an_endpoint_may_give_a_status_another_meaning():
    locked = Endpoint(url="/bulk", error_kinds={409: ErrorKind.DEADLOCK, 423: ErrorKind.RACE})
    assert [refused(status, endpoint=locked).kind for status in (409, 423)] == [ErrorKind.DEADLOCK, ErrorKind.RACE]


@pytest.mark.parametrize("status", [403, 503])
def test_a_refusal_that_says_when_to_come_back_is_a_throttle(status: int):
    error = refused(status, {"retry-after": "7"})
    assert (error.kind, error.retry_after_s) == (ErrorKind.THROTTLED, 7)


@pytest.mark.parametrize("endpoint", [ATOMIC, LOOSE])
def test_a_throttle_that_something_in_between_may_have_told_leaves_open_what_was_applied(endpoint: Endpoint):
    doubtful = {
        status for status in (403, 429, 503) if refused(status, {"retry-after": "7"}, endpoint=endpoint).maybe_applied
    }
    assert doubtful == {503}


@pytest.mark.parametrize("status", [500, 503, 529])
def test_a_status_that_an_endpoint_declares_a_throttle_applied_nothing(status: int):
    busy = Endpoint(url="/bulk/{table}", error_kinds={status: ErrorKind.THROTTLED})
    error = refused(status, endpoint=busy)
    assert (error.kind, error.maybe_applied) == (ErrorKind.THROTTLED, False)


def test_a_forbidden_call_with_a_used_up_quota_is_a_throttle():
    error = refused(403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"})
    assert (error.kind, error.retry_after_s) == (ErrorKind.THROTTLED, 30)


def test_a_throttle_says_how_long_and_which_limit():
    error = refused(429, {"retry-after": "7", "ratelimit-policy": '"p";q=1;qu="concurrent-requests"'})
    assert (error.retry_after_s, error.limit) == (7, Limit.CONCURRENCY)


def test_a_throttle_without_a_time_leaves_it_open():
    assert refused(429).retry_after_s is None


@pytest.mark.parametrize("status", [408, 502, 503, 504])
@pytest.mark.parametrize("endpoint", [ATOMIC, LOOSE])
def test_answers_from_in_between_leave_open_what_was_applied(status: int, endpoint: Endpoint):
    assert refused(status, endpoint=endpoint).maybe_applied


def test_an_answer_from_in_between_is_no_refusal_of_the_remote_itself():
    assert {status for status in (400, 408, 409, 422, 500, 502, 503, 504) if is_own_refusal(refused(status))} == {
        400, 409, 422, 500,
    }  # fmt: skip
    assert not is_own_refusal(TargetError("no answer", kind=ErrorKind.CONNECTION, maybe_applied=True))


def test_a_crash_leaves_open_what_was_applied_unless_calls_are_atomic():
    assert refused(500, endpoint=LOOSE).maybe_applied
    assert not refused(500, endpoint=ATOMIC).maybe_applied


@pytest.mark.parametrize("status", [401, 403, 404, 413, 429, 501])
def test_a_refusal_of_the_call_itself_applied_nothing(status: int):
    assert not refused(status, endpoint=LOOSE).maybe_applied


@pytest.mark.parametrize("status", [302, 400, 409, 422])
def test_a_refusal_for_some_record_leaves_open_what_was_applied_of_the_others(status: int):
    assert refused(status, endpoint=LOOSE).maybe_applied
    assert not refused(status, endpoint=LOOSE, records=1).maybe_applied
    assert not refused(status, endpoint=ATOMIC).maybe_applied
    assert not refused(status, endpoint=Endpoint(url="/bulk/{table}", is_idempotent=True)).maybe_applied


@pytest.mark.parametrize(
    "body, message, code",
    [
        ({"error": {"code": "E7", "message": "no"}}, "no", "E7"),
        ({"error": "no"}, "no", None),
        ({"message": "no", "code": 12}, "no", "12"),
        ({"type": "about:x", "title": "No", "detail": "because"}, "because", "about:x"),
        ({"errors": [{"code": "E1", "message": "first"}, {"message": "second"}]}, "first", "E1"),
        ({"error": "invalid_grant", "error_description": "stale"}, "stale", None),
        ("plain  text\n", "plain text", None),
        (None, "", None),
        ([], "", None),
        (7, "", None),
    ],
)
def test_message_and_code_are_found_wherever_they_stand(body: Any, message: str, code: str | None):
    assert said(body) == (message, code)


def test_the_error_names_the_call_the_status_and_the_reason():
    error = refused(422, body={"error": {"message": "the field 'age' is wrong"}})
    assert str(error) == "POST /bulk/t answered 422: the field 'age' is wrong"
    assert (error.code, error.field) == ("422", "age")


@pytest.mark.parametrize("body", [None, "<html>302 Found</html>"])
def test_a_redirect_that_was_not_followed_says_why(body: str | None):
    assert "same origin" in str(refused(302, {"location": "https://elsewhere"}, body=body))


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_call_that_belongs_elsewhere_changed_nothing(status: int):
    assert not refused(status, {"location": "https://elsewhere"}, endpoint=LOOSE).maybe_applied


@pytest.mark.parametrize("endpoint", [LOOSE, ATOMIC])
@pytest.mark.parametrize("records", [1, 2])
def test_a_call_whose_result_is_shown_elsewhere_may_have_been_applied(endpoint: Endpoint, records: int):
    assert refused(303, {"location": "/jobs/7"}, endpoint=endpoint, records=records).maybe_applied


@pytest.mark.parametrize("endpoint", [LOOSE, ATOMIC])
@pytest.mark.parametrize("records", [1, 2])
def test_a_success_that_the_endpoint_does_not_know_may_have_been_applied(endpoint: Endpoint, records: int):
    error = refused(206, endpoint=endpoint, records=records)
    assert error.maybe_applied
    assert "206 is not among the statuses that the endpoint calls a success" in str(error)


def test_a_page_of_html_is_cut_short():
    assert len(str(refused(500, body="x" * 100_000))) < MESSAGE_MAX + 100


@given(
    st.integers(300, 599),
    st.recursive(st.none() | st.text() | st.integers(), lambda part: st.lists(part) | st.dictionaries(st.text(), part)),
)
def test_any_answer_makes_an_error(status: int, body: Any):
    assert isinstance(refused(status, body=body), TargetError)


def test_headers_of_an_endpoint_are_not_shown():
    assert "s3cret" not in repr(Endpoint(url="/bulk", headers={"X-Api-Key": "s3cret"}))
