"""The rules of deliveries that need no database: verdicts, waits, signatures, who wants which event."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.errors import InvalidInput
from penstock.outbox.events import Event, check_types, may_match, wants
from penstock.outbox.signing import check_secret, new_secret, signature
from penstock.outbox.verdicts import ATTEMPTS_MAX, Answer, Verdict, judge, retry_after_s
from penstock.outbox.wording import sentence, slack_text

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def judged(answer: Answer, attempts: int = 1, chance: float = 0.0) -> Verdict:
    return judge(answer, attempts=attempts, attempts_max=ATTEMPTS_MAX, chance=chance)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_means_that_it_was_taken(status: int):
    assert judged(Answer(status)) == Verdict("processed")


@pytest.mark.parametrize("status", [100, 301, 302, 304, 400, 401, 404, 422, 500, 501, 599])
def test_everything_else_is_tried_again(status: int):
    verdict = judged(Answer(status))
    assert (verdict.event, verdict.wait_s, verdict.holds_s, verdict.ends) == ("postponed", 5, 0, False)


def test_the_waits_grow_to_a_day_and_end_after_ten_attempts():
    waits = [judged(Answer(500), attempts).wait_s for attempts in range(1, ATTEMPTS_MAX)]
    assert [wait / 60 for wait in waits] == [5 / 60, 5, 30, 120, 300, 600, 840, 1200, 1440]
    assert sum(waits) / 3600 == pytest.approx(75.6, abs=0.1)
    assert judged(Answer(500), ATTEMPTS_MAX).event == "failed"
    assert judged(Answer(fault="no answer"), chance=1.0).wait_s == 6


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_who_is_busy_gets_nothing_else_meanwhile(status: int):
    verdict = judged(Answer(status, retry_after_s=90))
    assert (verdict.wait_s, verdict.holds_s) == (90, 90)


def test_who_is_gone_is_told_no_more():
    assert judged(Answer(410)) == Verdict("failed", "the receiver answered 410", ends=True)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), ("", None), ("soon", None), ("0", 0), (" 30 ", 30), ("999999999999", 86400), ("-5", None),
        ("Tue, 01 Jan 2030 00:02:00 GMT", 120), ("Mon, 31 Dec 2029 23:00:00 GMT", 0), ("٣", None),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 86400),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date_and_a_day_at_most(header: str | None, seconds: int | None):
    assert retry_after_s(header, NOW) == seconds


def test_a_message_is_signed_as_standard_webhooks_shows_it():
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    signed = signature([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature([secret, secret], "a", 1, body).count("v1,") == 2


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_%%%"])
def test_a_weak_secret_is_refused_and_not_repeated(secret: str):
    with pytest.raises(InvalidInput) as error:
        check_secret(secret)
    assert not secret or secret == "whsec_" or secret not in str(error.value)


def test_a_new_secret_is_one():
    assert check_secret(new_secret(lambda bits: 2**bits - 1)).startswith("whsec_")


def event(type_: str = "penstock.operation.finished", **given: str) -> Event:
    return Event("id", type_, "op-1", NOW, {}, **{"operation": "pay", **given})


@pytest.mark.parametrize(
    ("is_wanted", "filters"),
    [
        (True, {}),
        (True, {"types": ["penstock.blob.*", "penstock.operation.fin*"]}),
        (False, {"types": ["penstock.blob.*"]}),
        (True, {"operation": "PAY"}),
        (False, {"operation": "other"}),
        (True, {"subject": "op-1"}),
        (False, {"subject": "op-2"}),
        (False, {"tenant": "acme"}),
    ],
)
def test_a_subscription_is_told_what_fits_all_its_filters(is_wanted: bool, filters: dict[str, object]):
    given = {"types": ["penstock.*"], "operation": None, "subject": None, "tenant": "", **filters}
    assert wants(event(), **given) is is_wanted


def test_a_sentence_says_what_happened_in_one_line_and_addresses_nobody_in_a_chat():
    data = {"name": "pay", "status": "Failed", "cause": "<!channel> & more\n" + "x" * 600}
    document = {**event().document("urn:here"), "data": data}
    assert sentence(document).startswith("operation pay op-1: Failed (<!channel> & more xxx")
    assert len(sentence(document)) < 510
    assert "&lt;!channel&gt; &amp; more" in slack_text(document)


def test_an_event_is_a_cloud_event():
    assert event().document("urn:here") == {
        "specversion": "1.0", "id": "id", "source": "urn:here", "type": "penstock.operation.finished",
        "subject": "op-1", "time": "2030-01-01T00:00:00.000000Z", "datacontenttype": "application/json", "data": {},
    }  # fmt: skip


def test_a_pattern_that_no_event_fits_is_refused():
    assert check_types("penstock.*") == ["penstock.*"]
    assert may_match("*", "penstock.lifecycle.")
    assert may_match("penstock.l?fecycle.x", "penstock.lifecycle.")
    assert not may_match("penstock.operation.*", "penstock.lifecycle.")
    for wrong in ([], ["other.*"], [""], ["penstock.\n"], ["penstock.*"] * 51):
        with pytest.raises(InvalidInput):
            check_types(wrong)
