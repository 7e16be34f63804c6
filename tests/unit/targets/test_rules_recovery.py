"""How the guilty records of a failed batch are looked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.rules.isolation import Isolation, Search, halves, next_act, suspects_and_rest
from penstock.targets.rules.retry import Act


def chosen(
    size: int,
    *,
    suspects: tuple[int, ...] = (),
    each: bool = False,
    search: Search | None = None,
    isolation: Isolation | None = None,
) -> Act:
    error = TargetError("no", kind=ErrorKind.DATA, suspects=suspects)
    return next_act(size, error, isolation or Isolation(), search or Search(), can_send_each=each, extra_calls_max=100)


@given(st.integers(2, 5000))
def test_halves_are_the_whole_and_differ_by_one_at_most(size: int):
    left, right = halves(size)
    assert [*left, *right] == list(range(size))
    assert 0 <= len(left) - len(right) <= 1


@given(st.integers(1, 50), st.lists(st.integers(-5, 60), max_size=5))
def test_suspects_and_the_rest_are_the_whole_or_nobody_is_suspected(size: int, named: list[int]):
    suspects, rest = suspects_and_rest(size, TargetError("no", suspects=tuple(named)))
    assert not suspects or sorted([*suspects, *rest]) == list(range(size))
    assert not suspects or set(suspects) == set(named)


def test_a_single_record_is_guilty():
    assert chosen(1) is Act.FAIL
    assert chosen(1, each=True, suspects=(0,)) is Act.FAIL


def test_named_records_are_taken_out_and_otherwise_the_batch_is_halved():
    assert chosen(100, suspects=(3,)) is Act.EJECT
    assert chosen(100) is Act.SPLIT
    assert chosen(2, suspects=(0, 1)) is Act.SPLIT


@pytest.mark.parametrize("size, act", [(16, Act.EACH), (17, Act.SPLIT)])
def test_sixteen_records_or_fewer_are_sent_one_by_one(size: int, act: Act):
    assert chosen(size, each=True) is act
    assert chosen(size, each=False) is Act.SPLIT


@pytest.mark.parametrize(
    "sent, failed, size, act",
    [
        (8, 1, 128, Act.EACH),
        (10, 1, 128, Act.SPLIT),
        (7, 7, 128, Act.SPLIT),
        (8, 8, 129, Act.SPLIT),
    ],
)
def test_when_more_than_a_tenth_of_the_pieces_fail_larger_ones_are_sent_one_by_one(
    sent: int, failed: int, size: int, act: Act
):
    assert chosen(size, each=True, search=Search(sent, failed)) is act


def test_a_spent_budget_fails_what_is_left():
    assert chosen(100, isolation=Isolation(calls=99)) is Act.SPLIT
    assert chosen(100, isolation=Isolation(calls=100)) is Act.FAIL


def noted(kind: ErrorKind, *codes: str | None) -> Isolation:
    isolation = Isolation()
    for code in codes:
        isolation.note(TargetError("no", kind=kind, code=code))
    return isolation


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_seven_pieces_that_fail_alike_are_systemic_unless_the_error_is_about_records(kind: ErrorKind):
    is_systemic = kind in (ErrorKind.OTHER, ErrorKind.PERMISSION, ErrorKind.SERVER)
    assert noted(kind, *["42P01"] * 7).is_systemic is is_systemic
    assert not noted(kind, *["42P01"] * 6).is_systemic


def test_one_other_code_or_one_success_shows_that_records_matter():
    assert not noted(ErrorKind.OTHER, *["1"] * 6, "2").is_systemic
    isolation = noted(ErrorKind.OTHER, *["1"] * 7)
    isolation.has_passed = True
    assert not isolation.is_systemic


def test_errors_without_a_code_are_told_apart_by_their_message():
    isolation = Isolation()
    for n in range(7):
        isolation.note(TargetError(f"row {n} is odd", kind=ErrorKind.OTHER))
    assert not isolation.is_systemic


def test_what_is_systemic_stops_even_a_single_record():
    assert chosen(1, isolation=noted(ErrorKind.OTHER, *["1"] * 7)) is Act.STOP
