"""Environments and version numbers as documents write them."""

from __future__ import annotations

import re
from typing import Any

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "DEFAULT_NUMBER",
    "environment_code",
    "environment_label",
    "label_number",
    "version_number",
]

DEFAULT_ENVIRONMENT = 0
DEFAULT_NUMBER = 10_000
NUMBER_MAX = 2**31 - 1
LABEL_CHARS_MAX = 40
ENVIRONMENT_MAX = 999

_LABELS = {"development": 0, "dev": 0, "test": 1, "qa": 1, "staging": 1, "production": 2, "prod": 2}
_NAMES = {0: "Development", 1: "Test", 2: "Production"}


def environment_code(given: Any) -> int:
    """The code of a label or number; `ValueError` lists the known labels."""
    if isinstance(given, str) and given.strip().lower() in _LABELS:
        return _LABELS[given.strip().lower()]
    if isinstance(given, str) and re.fullmatch(r"\s*\d{1,3}\s*", given):
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= ENVIRONMENT_MAX:
        return given
    known = "Development (dev), Test (QA, Staging), Production (prod)"
    raise ValueError(f"no environment {given!r}; known are {known} and numbers from 0 to {ENVIRONMENT_MAX}")


def environment_label(code: int) -> str:
    """What an environment is called."""
    return _NAMES.get(code, str(code))


def label_number(label: str) -> int:
    """X.Y.Z as X*10000 + Y*100 + Z; `ValueError` for what is not of that form, or would be another version's number."""
    found = re.fullmatch(r"v?(\d{1,5})(?:\.(\d{1,5}))?(?:\.(\d{1,5}))?", label.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{label!r} is not of the form X.Y.Z; give a version_code beside it")
    major, minor, patch = (int(part or 0) for part in found.groups())
    number = major * 10_000 + minor * 100 + patch
    if minor > 99 or patch > 99:
        twin = f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
        raise ValueError(
            f"{label!r} has the number {number}, which is that of {twin}; minor and patch go up to 99, "
            "or give a version_code"
        )
    return version_number(number)


def version_number(given: Any) -> int:
    """An explicit number; `ValueError` unless it is a positive integer."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= NUMBER_MAX:
        raise ValueError(f"is an integer from 1 to {NUMBER_MAX}; found {given!r}")
    return given
