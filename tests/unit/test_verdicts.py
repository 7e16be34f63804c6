"""What becomes of a row after one attempt that raised."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RetryLater, RowInvalid, StepFailed
from penstock.operations.messages import MESSAGE_MAX, cut, error_group
from penstock.operations.rows.verdicts import (
    RETRY_LATER_MAX_S,
    AttemptTimedOut,
    OutputLost,
    Verdict,
    WrongLength,
    error_text,
    judge,
)
from penstock.operations.states import ROW_STEP
from penstock.pipeline import Backoff, StepOptions

STEADY = Backoff.constant(5)


def judged(error: BaseException, *, errors: int = 0, postponed_s: float = 0, **options: object) -> Verdict:
    step = StepOptions(**{"backoff": STEADY, **options})  # type: ignore[arg-type]
    return judge(error, step, errors=errors, postponed_s=postponed_s, jitter=random.Random(1))


@pytest.mark.covers("SM-056")
def test_a_step_without_retries_fails_at_once():
    assert judged(OSError("down")) == Verdict("failed", "StepFailure", "OSError: down", spends_retry=True)


@pytest.mark.covers("SM-029")
@pytest.mark.parametrize("errors, event", [(0, "postponed"), (1, "postponed"), (2, "failed"), (3, "failed")])
def test_two_retries_make_three_attempts(errors: int, event: str):
    assert judged(OSError("down"), errors=errors, retries=2).event == event


def test_a_postponed_attempt_waits_as_its_backoff_says():
    backoff = Backoff(initial=1, factor=2, max=30, jitter=0)
    delays = [judged(OSError(), errors=n, retries=9, backoff=backoff).after for n in range(7)]
    assert delays == [1, 2, 4, 8, 16, 30, 30]


def test_jitter_adds_at_most_half_and_never_shortens():
    delays = [
        judge(OSError(), StepOptions(retries=1), errors=0, postponed_s=0, jitter=random.Random(seed)).after
        for seed in range(200)
    ]
    assert min(delays) >= 1
    assert max(delays) <= 1.5
    assert len(set(delays)) > 100


def test_a_step_failed_is_final_whatever_the_retries():
    verdict = judged(StepFailed("no such customer"), retries=5)
    assert (verdict.event, verdict.error_type, verdict.message) == ("failed", "StepFailure", "no such customer")


def test_an_error_outside_retry_on_is_final():
    assert judged(KeyError("x"), retries=5, retry_on=(OSError,)).event == "failed"
    assert judged(ConnectionError("x"), retries=5, retry_on=(OSError,)).event == "postponed"


def test_what_only_ends_a_process_is_not_retried_by_default():
    assert judged(SystemExit(3), retries=5).event == "failed"
    assert judged(KeyboardInterrupt(), retries=5).event == "failed"


@pytest.mark.covers("SM-030")
def test_a_timeout_is_retried_whatever_retry_on_says_and_the_last_one_ends_timed_out():
    error = AttemptTimedOut(2.5)
    first = judged(error, retries=1, retry_on=(KeyError,))
    last = judged(error, errors=1, retries=1)
    assert (first.event, first.error_type, first.spends_retry) == ("postponed", "Timeout", True)
    assert last == Verdict("timed_out", "Timeout", "no answer within 2.5 s", spends_retry=True)


def test_retry_later_waits_as_asked_and_spends_no_retry():
    verdict = judged(RetryLater("busy", after=90), errors=0, retries=0)
    assert verdict == Verdict("postponed", "StepFailure", "busy", after=90, spends_retry=False)


def test_retry_later_is_heard_for_a_day_at_most():
    assert judged(RetryLater(after=60), postponed_s=RETRY_LATER_MAX_S - 60).event == "postponed"
    over = judged(RetryLater("busy", after=61), postponed_s=RETRY_LATER_MAX_S - 60)
    assert (over.event, over.error_type) == ("failed", "Timeout")
    assert "24 h" in over.message


@given(
    st.sampled_from([OSError("x"), StepFailed("x"), RetryLater(after=1), AttemptTimedOut(1), SystemExit()]),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_every_verdict_is_a_move_a_running_step_can_make(error: BaseException, errors: int, retries: int):
    verdict = judged(error, errors=errors, retries=retries)
    assert ROW_STEP.after("Running", verdict.event)
    assert (verdict.event == "postponed") or verdict.after == 0


def test_a_row_is_invalid_by_its_faults():
    error = RowInvalid(faults={"end": "before start", "start": "missing"})
    assert [(f.field, f.message) for f in error.faults] == [("end", "before start"), ("start", "missing")]


def test_the_type_of_a_foreign_error_leads_its_text_and_ours_speak_for_themselves():
    assert error_text(OSError("down")) == "OSError: down"
    assert error_text(OSError()) == "OSError"
    assert error_text(StepFailed("no")) == "no"
    assert error_text(StepFailed()) == "StepFailed"


def test_an_error_whose_own_text_raises_still_has_one():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("cannot say")

    assert "Mute" in error_text(Mute())


@given(st.text(), st.integers(1, 9000))
def test_a_message_is_short_enough_and_safe_for_every_database(text: str, times: int):
    kept = cut(text * times)
    assert len(kept) <= MESSAGE_MAX
    assert "\x00" not in kept
    kept.encode()


def test_a_cut_message_says_how_long_it_was():
    assert cut("x" * 5000).endswith("… (5000 characters)")
    assert cut("x" * MESSAGE_MAX) == "x" * MESSAGE_MAX


def test_lone_surrogates_are_spelled_out():
    assert cut("bad \ud800 text") == "bad \\ud800 text"


def test_messages_that_differ_in_numbers_ids_and_quoted_values_share_a_group():
    same = [
        "no user 'ana' at 0xdeadbeef after 3 tries",
        "no user 'bob' at 0x1f after 12 tries",
    ]
    assert len({error_group(text) for text in same}) == 1
    assert error_group(same[0]) != error_group("no group 'ana' at 0xdeadbeef after 3 tries")
    ids = ["order 6f0e1d2c-0000-4000-8000-000000000001 is gone", "order 01900000-aaaa-7000-8000-00000000000f is gone"]
    assert error_group(ids[0]) == error_group(ids[1])
    keys = [f"duplicate key (Key (mail)=({name}) already exists)" for name in ("ann@x.example", "bob@y.example")]
    assert error_group(keys[0]) == error_group(keys[1])


CUT_OFF = [
    AttemptTimedOut(2),
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    GeneratorExit(),
    BaseExceptionGroup("several", [asyncio.CancelledError()]),
    WrongLength("too few"),
    OutputLost("too long"),
]


@pytest.mark.parametrize("error", CUT_OFF, ids=lambda error: type(error).__name__)
def test_what_may_run_once_is_in_doubt_when_nobody_knows_what_became_of_it(error: BaseException):
    verdict = judged(error, delivery="at_most_once")
    assert (verdict.event, verdict.error_type, verdict.after) == ("left_in_doubt", "InDoubt", 0)
    assert verdict.message.endswith(", so it may or may not have taken effect")
    assert judged(error).error_type != "InDoubt"


RAISED = [OSError(), StepFailed("no"), TimeoutError(), ExceptionGroup("several", [OSError()]), SystemExit()]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_that_it_raised_itself_is_no_doubt(error: BaseException):
    assert judged(error, delivery="at_most_once").event == "failed"


def test_what_may_run_once_may_still_ask_to_be_called_later():
    assert judged(RetryLater(after=5), delivery="at_most_once").event == "postponed"


class NotYet(RetryLater):
    def __init__(self, after: Any = None) -> None:
        if after is not None:
            self.after = after


@pytest.mark.parametrize("after", [None, timedelta(seconds=5), "5", -1, float("nan"), float("inf")], ids=repr)
def test_a_retry_later_of_ones_own_that_does_not_say_when_is_an_error_like_others(after: Any):
    verdict = judged(NotYet(after), retries=0)
    assert (verdict.event, verdict.error_type) == ("failed", "StepFailure")
    assert judged(NotYet(5)).after == 5


def test_a_doubt_is_told_however_long_the_reason_is():
    verdict = judged(WrongLength("x" * 5000), delivery="at_most_once")
    assert len(verdict.message) <= MESSAGE_MAX
    assert verdict.message.endswith("characters), so it may or may not have taken effect")
