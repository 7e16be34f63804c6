"""What a key's entry means to somebody who asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import DeclarationError, InvalidInput
from penstock.idempotency.answers import KeptAnswer
from penstock.idempotency.model import Address, Entry, Seen
from penstock.idempotency.routes import Rule, for_methods, for_paths
from penstock.idempotency.rules import is_kept, judge, retry_after_s, state_at

SECOND = 1_000_000
NOW = 1_000 * SECOND
RUNNING = Entry(
    key="key",
    label="POST /",
    fingerprint="same",
    state="InProgress",
    owner="owner",
    attempt=1,
    created_at=NOW - SECOND,
    lease_until=NOW + 30 * SECOND,
    expires_at=NOW + 3600 * SECOND,
    finished_at=None,
    answer=None,
)
LAPSED = replace(RUNNING, lease_until=NOW)
DONE = replace(RUNNING, state="Completed", finished_at=NOW, answer=b"")
CUT_OFF = replace(LAPSED, state="Indeterminate")


@pytest.mark.parametrize(
    ("entry", "verdict", "verdict_of_take_over"),
    [
        (None, "claim", "claim"),
        (RUNNING, "in_flight", "in_flight"),
        (LAPSED, "indeterminate", "take_over"),
        (CUT_OFF, "indeterminate", "take_over"),
        (DONE, "replay", "replay"),
        (replace(DONE, expires_at=NOW), "claim", "claim"),
        (replace(CUT_OFF, expires_at=NOW), "claim", "claim"),
        (replace(RUNNING, expires_at=NOW), "in_flight", "in_flight"),
        (replace(LAPSED, expires_at=NOW), "claim", "claim"),
    ],
)
@pytest.mark.covers("GR-004", "GR-008", "GR-011")
def test_the_same_request_is_judged_by_the_keys_state(entry: Entry | None, verdict: str, verdict_of_take_over: str):
    assert judge(Seen(entry, NOW), "same", may_take_over=False) == verdict
    assert judge(Seen(entry, NOW), "same", may_take_over=True) == verdict_of_take_over


@pytest.mark.parametrize("entry", [RUNNING, LAPSED, CUT_OFF, DONE])
@pytest.mark.parametrize("may_take_over", [True, False])
def test_another_request_with_the_key_is_refused_in_every_state(entry: Entry, may_take_over: bool):
    assert judge(Seen(entry, NOW), "other", may_take_over=may_take_over) == "mismatch"


@pytest.mark.parametrize(
    ("running_s", "leased_s", "told"),
    [(0, 30, 1), (0.2, 30, 1), (1, 30, 1), (1.1, 30, 2), (4, 30, 4), (90, 30, 5), (9, 2, 2), (9, 0.1, 1)],
)
def test_the_pause_before_asking_again_grows_with_the_time_a_request_takes(
    running_s: float, leased_s: float, told: int
):
    entry = replace(RUNNING, created_at=NOW - round(running_s * SECOND), lease_until=NOW + round(leased_s * SECOND))
    assert retry_after_s(Seen(entry, NOW)) == told


def test_answers_that_ask_to_come_again_are_not_kept():
    assert [status for status in (200, 201, 204, 303, 400, 402, 404, 410, 412, 422) if not is_kept(status)] == []
    assert [status for status in (401, 403, 408, 409, 423, 425, 429, 500, 502, 503, 504) if is_kept(status)] == []


def test_a_key_that_nobody_used_is_absent():
    assert state_at(None, NOW) == "Absent"


def test_callers_have_keys_of_their_own_however_their_names_are_put_together():
    scopes = [(), ("",), ("a",), ("a", ""), ("", "a"), ("ab",), ("a", "b"), ("b", "a")]
    assert len({Address.of("key", scope).id for scope in scopes}) == len(scopes)
    assert Address.of("key", "ana") == Address.of("key", ("ana",))
    assert "ana" not in Address.of("key", ("acme", "ana")).scope


@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb", "a\0b", "\ud800"])
def test_text_that_no_store_could_hold_is_no_key(key: str):
    with pytest.raises(InvalidInput, match="an idempotency key has"):
        Address.of(key)


@pytest.mark.parametrize("body", [None, b"", b"x", b"x" * 100_000, bytes(range(256)) * 50])
def test_an_answer_is_read_as_it_was_written_without_what_belongs_to_one_moment(body: bytes | None):
    headers = ((b"content-type", b"text/plain"), (b"x-many", b"1"), (b"x-many", b"2"), (b"Set-Cookie", b"session=1"))
    again = KeptAnswer.from_bytes(KeptAnswer(201, headers, body).to_bytes())
    assert again == KeptAnswer(201, headers[:-1], body)


def test_rules_by_method_and_path_take_the_first_that_fits():
    pay, orders = Rule(required=True), Rule()
    rules = for_paths({"POST /orders/*/pay": pay, "POST /orders": orders})
    found = {path: rules({"method": "POST", "path": path}) for path in ("/orders", "/orders/7/pay", "/orders/7", "/")}
    assert found == {"/orders": orders, "/orders/7/pay": pay, "/orders/7": None, "/": None}
    assert rules({"method": "PUT", "path": "/orders"}) is None
    assert for_methods("post")({"method": "POST", "path": "/"}) == Rule()


@pytest.mark.parametrize("text", ["/orders", "POST", "POST orders", ""])
def test_a_rule_without_method_or_path_is_refused(text: str):
    with pytest.raises(DeclarationError, match="such as 'POST /orders'"):
        for_paths({text: Rule()})
