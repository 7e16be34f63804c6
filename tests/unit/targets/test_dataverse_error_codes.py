"""What kind of error a refusal of Dataverse is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.dataverse.error_mapping import classify, limit_hit, row_error_kind, sql_numbers
from penstock.targets.model import ErrorKind, Limit

SQL_ERROR = "0x80044150"


@pytest.mark.covers("BX-012", "BX-057")
@pytest.mark.parametrize(
    "code, limit",
    [("0x80072322", Limit.REQUESTS), ("0x80072321", Limit.TIME), ("0x80072326", Limit.CONCURRENCY)],
)
def test_a_service_protection_limit_is_a_throttle_that_says_which_limit_it_was(code: str, limit: Limit):
    assert classify(429, code, "slow down") is ErrorKind.THROTTLED
    assert classify(500, code.upper().replace("0X", "0x"), "slow down") is ErrorKind.THROTTLED
    assert limit_hit(code) is limit


@pytest.mark.parametrize("code", ["0x80072327", "0x80072329", "0x80048544"])
def test_a_soft_throttle_is_a_throttle_without_a_limit_of_ours(code: str):
    assert classify(400, code, "") is ErrorKind.THROTTLED
    assert limit_hit(code) is None


def test_an_unavailable_service_that_says_when_to_come_back_is_a_throttle():
    assert classify(503, None, "", has_retry_after=True) is ErrorKind.THROTTLED
    assert classify(503, None, "") is ErrorKind.CONNECTION


@pytest.mark.covers("BX-012", "BX-020")
@pytest.mark.parametrize(
    "status, code, trouble",
    [
        (401, None, ErrorKind.TOKEN),
        (500, "0x8004A101", ErrorKind.TOKEN),
        (403, None, ErrorKind.PERMISSION),
        (403, "0x80040220", ErrorKind.PERMISSION),
        (400, "0x80048306", ErrorKind.PERMISSION),
        (502, None, ErrorKind.CONNECTION),
        (504, None, ErrorKind.CONNECTION),
        (408, None, ErrorKind.CONNECTION),
        (500, "0x80040255", ErrorKind.DEADLOCK),
        (500, "0x80044151", ErrorKind.TOO_BIG),
        (413, None, ErrorKind.TOO_BIG),
        (400, "0x80040265", ErrorKind.BUSINESS),
        (412, "0x80040237", ErrorKind.DATA),
        (500, "0x80040333", ErrorKind.DATA),
        (404, "0x80040217", ErrorKind.DATA),
        (400, "0x80048d19", ErrorKind.DATA),
        (400, None, ErrorKind.DATA),
        (400, "0x80044824", ErrorKind.UNSUPPORTED),
        (501, None, ErrorKind.UNSUPPORTED),
        (500, None, ErrorKind.OTHER),
        (500, "0x80049999", ErrorKind.OTHER),
    ],
)
def test_codes_say_more_than_statuses(status: int, code: str | None, trouble: ErrorKind):
    assert classify(status, code, "something went wrong") is trouble


@pytest.mark.covers("BX-061", "BX-062")
@pytest.mark.parametrize(
    "message, trouble",
    [
        ("Sql error. Sql ErrorCode: -2146232060 Sql Number: 1205", ErrorKind.DEADLOCK),
        ("Sql error. Sql Number: 3732", ErrorKind.RACE),
        ("Sql error. Sql Number: 2766", ErrorKind.RACE),
        ("Sql error. sql number = 2812", ErrorKind.RACE),
        ("Transaction was deadlocked on lock resources", ErrorKind.DEADLOCK),
        ("Could not find stored procedure 'p_x'", ErrorKind.RACE),
        ("Sql error. Sql Number: 12050", ErrorKind.OTHER),
        ("Sql error on order 1205 with amount 3732", ErrorKind.OTHER),
        ("Sql Number: 2627, id 1205", ErrorKind.OTHER),
    ],
)
def test_sql_numbers_count_only_as_whole_words_next_to_their_label(message: str, trouble: ErrorKind):
    assert classify(500, SQL_ERROR, message) is trouble


def test_a_sql_number_under_another_code_says_nothing():
    assert classify(400, "0x80040265", "the plug-in wrote: Sql Number: 1205") is ErrorKind.BUSINESS


@given(st.integers(0, 99_999), st.text(alphabet="ab 0123456789-", max_size=12))
def test_a_number_is_found_exactly_when_it_is_labelled(number: int, noise: str):
    assert sql_numbers(f"{noise} Sql Number: {number} {noise}") == [number]
    assert sql_numbers(f"{noise} {number} {noise}") == []


@pytest.mark.covers("BX-089")
@pytest.mark.parametrize(
    "message",
    [
        "DeleteMultiple has not yet been implemented.",
        "The CreateMultiple operation is not enabled on the entity 'x'.",
        "The message does not support entities of type 'x'.",
    ],
)
def test_a_table_that_does_not_take_a_call_is_recognised_by_the_words_for_it(message: str):
    assert classify(400, "0x80040216", message) is ErrorKind.UNSUPPORTED


@pytest.mark.covers("BX-036")
@pytest.mark.parametrize(
    "status, trouble",
    [
        (429, ErrorKind.THROTTLED),
        (449, ErrorKind.THROTTLED),
        (503, ErrorKind.THROTTLED),
        (400, ErrorKind.DATA),
        (404, ErrorKind.DATA),
        (403, ErrorKind.PERMISSION),
        (413, ErrorKind.TOO_BIG),
        (500, ErrorKind.OTHER),
    ],
)
def test_a_row_of_an_elastic_table_that_was_only_too_early_can_be_sent_again(status: int, trouble: ErrorKind):
    assert row_error_kind(status) is trouble
