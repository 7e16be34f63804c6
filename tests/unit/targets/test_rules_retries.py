"""What becomes of a refused batch, by the class of the error."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.rules.retry import (
    FINITE,
    Act,
    RetryBudget,
    RetryPolicy,
    after_lost_question,
    after_refusal,
)
from penstock.targets.target import Capabilities

POLICY = RetryPolicy()
LOST = {True: Act.ASK, False: Act.LEAVE_UNKNOWN}


def decided(
    kind: ErrorKind, tries: int = 1, *, size: int = 10, lost: bool = False, capabilities: Capabilities | None = None
) -> Act:
    error = TargetError("no", kind=kind, maybe_applied=lost)
    return after_refusal(error, Counter({kind: tries}), capabilities or Capabilities(), size, POLICY).act


# fmt: off
TREATMENT = {
    ErrorKind.THROTTLED:   Act.AGAIN,
    ErrorKind.TOKEN:       Act.AGAIN,
    ErrorKind.CONNECTION:  Act.AGAIN,
    ErrorKind.DEADLOCK:    Act.AGAIN,
    ErrorKind.RACE:        Act.AGAIN,
    ErrorKind.TOO_BIG:     Act.SPLIT,
    ErrorKind.UNSUPPORTED: Act.STOP,
    ErrorKind.PERMISSION:  Act.ISOLATE,
    ErrorKind.BUSINESS:    Act.ISOLATE,
    ErrorKind.DATA:        Act.ISOLATE,
    ErrorKind.OTHER:       Act.ISOLATE,
}
# fmt: on


@pytest.mark.covers("BX-012", "BX-063")
@pytest.mark.parametrize("kind, act", TREATMENT.items())
def test_every_class_of_error_has_its_treatment(kind: ErrorKind, act: Act):
    assert decided(kind) is act


@pytest.mark.covers("BX-020", "BX-063")
@pytest.mark.parametrize("kind", sorted(FINITE))
def test_a_finite_class_is_tried_four_times(kind: ErrorKind):
    last = {ErrorKind.DEADLOCK: Act.SPLIT, ErrorKind.SERVER: Act.ISOLATE}.get(kind, Act.FAIL)
    assert [decided(kind, tries) for tries in (1, 2, 3, 4)] == [Act.AGAIN, Act.AGAIN, Act.AGAIN, last]


@pytest.mark.covers("BX-019")
@given(st.integers(1, 10**9))
def test_a_throttle_is_waited_out_however_often_it_came(tries: int):
    assert decided(ErrorKind.THROTTLED, tries) is Act.AGAIN


def test_a_single_record_that_is_too_big_fails():
    assert decided(ErrorKind.TOO_BIG, size=1) is Act.FAIL


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize("kind", list(ErrorKind))
@pytest.mark.parametrize("can_reconcile", [True, False])
def test_a_lost_answer_is_never_followed_by_a_blind_resend(kind: ErrorKind, can_reconcile: bool):
    assert decided(kind, lost=True, capabilities=Capabilities(can_reconcile=can_reconcile)) is LOST[can_reconcile]


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_where_sending_twice_is_like_sending_once_a_lost_answer_is_like_a_refusal(kind: ErrorKind):
    idempotent = Capabilities(is_idempotent=True, can_reconcile=True)
    assert decided(kind, lost=True, capabilities=idempotent) is decided(kind, capabilities=idempotent)


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_a_question_that_is_not_answered_is_asked_again_or_leaves_the_records_unknown(kind: ErrorKind):
    acts = [after_lost_question(TargetError("no", kind=kind), Counter({kind: n}), POLICY).act for n in (1, 3, 4, 99)]
    again, unknown = Act.AGAIN, Act.LEAVE_UNKNOWN
    if kind is ErrorKind.THROTTLED:
        assert acts == [again] * 4
    else:
        assert acts == ([again, again, unknown, unknown] if kind in FINITE else [unknown] * 4)


@pytest.mark.covers("BX-061", "BX-062")
def test_waits_double_from_half_a_second_and_grow_by_a_quarter_at_most():
    class Ends(Random):
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self) -> float:
            return self.value

    assert [POLICY.wait_s(retry, Ends(0.0)) for retry in (1, 2, 3)] == [0.5, 1, 2]
    assert [POLICY.wait_s(retry, Ends(1.0)) for retry in (1, 2, 3)] == [0.625, 1.25, 2.5]


@given(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)))
def test_every_throttle_has_an_end(asked_s: float | None):
    assert 0.1 <= POLICY.throttle_s(asked_s) < float("inf")
    assert RetryPolicy(throttle_max_s=60).throttle_s(asked_s) <= 60


def test_two_good_calls_pay_for_a_retry():
    budget = RetryBudget(2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend()


def test_a_budget_never_holds_more_than_it_began_with():
    budget = RetryBudget(1)
    for _ in range(100):
        budget.earn()
    assert [budget.spend(), budget.spend()] == [True, False]


def test_a_refusal_known_to_have_had_no_effect_is_the_same_but_for_that():
    error = TargetError(
        "slow", kind=ErrorKind.TOO_BIG, code="504", maybe_applied=True, suspects=(1,), field="f", details={"a": 1}
    )
    cleared = error.but(maybe_applied=False)
    assert not cleared.maybe_applied
    names = ("message", "kind", "code", "retry_after_s", "limit", "suspects", "field", "details")
    assert all(getattr(cleared, name) == getattr(error, name) for name in names)


# Throttles


def test_a_wait_that_a_remote_names_is_kept_until_it_proves_too_short_again_and_again():
    policy = RetryPolicy()
    assert [policy.throttle_s(2, in_vain) for in_vain in range(10)] == [2, 2, 2, 2, 2, 2, 4, 6, 8, 10]


def test_a_wait_that_is_too_short_grows_to_that_for_remotes_which_name_none_and_a_long_one_not_at_all():
    policy = RetryPolicy(throttle_default_s=30)
    assert policy.throttle_s(2, 1000) == 30
    assert policy.throttle_s(100, 1000) == 100
    assert policy.throttle_s(None, 1000) == 30


def test_the_longest_wait_that_is_permitted_holds_for_waits_that_grew_too():
    assert RetryPolicy(throttle_max_s=5).throttle_s(2, 1000) == 5


def test_no_pause_of_work_that_got_no_answer_is_longer_than_its_policy_and_the_remote_say():
    assert RetryPolicy().silent_pause_s(None) == 30
    assert RetryPolicy().silent_pause_s(100) == 100
    assert RetryPolicy(wait_first_s=10, retries_max=4, jitter=0.5, breaker_max_s=1).silent_pause_s(None) == 120
