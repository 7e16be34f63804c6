"""What a database must be and be set to, so that a commit it confirms cannot be lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import DatabaseUnsafe

__all__ = ["Finding", "Requirement", "at_least", "judge", "one_of", "refuse_unsafe"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A setting, what it should be, and a test of what was found."""

    setting: str
    right: str
    accepts: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one setting."""

    setting: str
    found: str
    right: str
    is_ok: bool

    def __str__(self) -> str:
        return f"{self.setting} is {self.found}" + ("" if self.is_ok else f"; it must be {self.right}")


def one_of(*values: str) -> Callable[[str], bool]:
    """A test for one of the values."""
    return lambda found: found in values


def at_least(*version: int, containing: str = "") -> Callable[[str], bool]:
    """A test for a version number at the beginning of a text that must contain a word."""
    return lambda found: containing in found and tuple(map(int, re.findall(r"\d+", found)))[: len(version)] >= version


def judge(requirements: Sequence[Requirement], facts: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The verdict on every setting."""
    found = {rule.setting: str(facts[rule.setting]) for rule in requirements}
    return tuple(
        Finding(rule.setting, found[rule.setting], rule.right, rule.accepts(found[rule.setting]))
        for rule in requirements
    )


def refuse_unsafe(name: str, findings: Sequence[Finding]) -> None:
    """Raise `DatabaseUnsafe` naming every setting that is wrong."""
    wrong = [str(finding) for finding in findings if not finding.is_ok]
    if wrong:
        raise DatabaseUnsafe(f"{name} could lose what Penstock promises to keep: {'; '.join(wrong)}")
