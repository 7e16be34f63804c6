"""How long a remote asks to be left alone, in every dialect of limit headers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.http.rate_limits import is_exhausted, limit_hit, retry_after_s
from penstock.targets.model import Limit

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"retry-after": "12"}, 12),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "Tue, 01 Jan 2030 12:00:30 GMT"}, 30),
        ({"retry-after": "Tue, 01 Jan 2030 11:59:00 GMT"}, 0),
        ({"ratelimit": '"default";r=0;t=25'}, 25),
        ({"ratelimit": '"burst";r=0;t=2, "daily";r=5;t=900'}, 900),
        ({"ratelimit": "limit=100, remaining=0, reset=7"}, 7),
        ({"ratelimit-reset": "9"}, 9),
        ({"x-ratelimit-reset": "41"}, 41),
        ({"x-ratelimit-reset": str(int(NOW.timestamp()) + 15)}, 15),
        ({"x-ratelimit-reset": str(int(NOW.timestamp() * 1000) + 2500)}, 2.5),
        ({"retry-after": "3", "x-ratelimit-reset": "99"}, 3),
        ({"retry-after": "soon", "x-ratelimit-reset": "99"}, 99),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_the_time_to_wait_is_read_from_whatever_header_tells_it(headers: dict[str, str], seconds: float | None):
    assert retry_after_s(headers, NOW) == seconds


def test_a_date_is_measured_by_the_clock_of_the_remote():
    headers = {"retry-after": "Tue, 01 Jan 2030 15:00:10 GMT", "date": "Tue, 01 Jan 2030 15:00:00 GMT"}
    assert retry_after_s(headers, NOW) == 10


@pytest.mark.parametrize(
    "headers, is_empty",
    [
        ({"x-ratelimit-remaining": "0"}, True),
        ({"x-ratelimit-remaining": "3"}, False),
        ({"ratelimit": '"default";r=0;t=25'}, True),
        ({"ratelimit": '"default";r=10;t=25'}, False),
        ({}, False),
    ],
)
def test_a_used_up_quota_is_recognised(headers: dict[str, str], is_empty: bool):
    assert is_exhausted(headers) is is_empty


@pytest.mark.parametrize(
    "policy, limit",
    [
        ('"default";q=100;w=60;qu="requests"', Limit.REQUESTS),
        ('"parallel";q=10;qu="concurrent-requests"', Limit.CONCURRENCY),
        ('"a";q=1;qu="requests", "b";q=1;qu="concurrent-requests"', None),
        ('"bytes";q=1000;qu="content-bytes"', None),
        ("", None),
    ],
)
def test_the_limit_is_named_only_when_the_policy_leaves_no_choice(policy: str, limit: Limit | None):
    assert limit_hit({"ratelimit-policy": policy}) is limit


@given(st.dictionaries(st.sampled_from(["retry-after", "ratelimit", "x-ratelimit-reset", "date"]), st.text()))
def test_no_header_breaks_the_reading(headers: dict[str, str]):
    wait = retry_after_s(headers, NOW)
    assert wait is None or wait >= 0
