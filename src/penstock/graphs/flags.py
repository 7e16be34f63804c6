"""The flags of states and transitions: documented bits, and the words that documents use for them."""

from __future__ import annotations

from enum import IntFlag
from functools import cache
from typing import TypeVar

__all__ = ["StateFlag", "TransitionFlag", "flag_words", "words_of"]

F = TypeVar("F", bound=IntFlag)


class StateFlag(IntFlag):
    """What kind of state it is."""

    NONE = 0
    INITIAL = 1
    FINAL = 2
    SYSTEM = 4
    ERROR = 8


class TransitionFlag(IntFlag):
    """What kind of move it is; Penstock records these and leaves their meaning to the application."""

    NONE = 0
    SYSTEM = 1
    AUTO = 2
    MANUAL = 4
    NEEDS_APPROVAL = 8
    CAN_RETRY = 16
    CRITICAL = 32
    ROLLBACK = 64


@cache
def flag_words(kind: type[F]) -> dict[str, F]:
    """Every flag by its word: NeedsApproval."""
    return {_word(flag.name or ""): flag for flag in kind if flag}


def words_of(flags: IntFlag) -> list[str]:
    """The words of the bits that are set, lowest first."""
    return [word for word, flag in flag_words(type(flags)).items() if flag in flags]


def find_flag(kind: type[F], word: str) -> F | None:
    """The flag meant by a word; case, underscores and a leading "is" do not matter."""
    known = {name.lower(): flag for name, flag in flag_words(kind).items()}
    letters = word.replace("_", "").replace("-", "").replace(" ", "").lower()
    return known.get(letters) or known.get(letters.removeprefix("is"))


def _word(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
