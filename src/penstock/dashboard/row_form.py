"""A form that corrects a row: what its fields show, and what was changed when it comes back. Pure.

Browsers change what they send: line breaks become CR LF, in names too, and a null character becomes a replacement.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.dashboard.forms import json_of

__all__ = ["changed_fields", "field_text"]


def field_text(value: Any) -> str:
    """A value of a row as its field shows it: text as it is, nothing for null, JSON for all else."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def changed_fields(data: Mapping[str, Any], sent: Mapping[str, str]) -> dict[str, Any]:
    """The fields whose text is not the one that was shown, with their new values."""
    names = {_normal(name): name for name in data}
    given = {names.get(_normal(name), name): _normal(text) for name, text in sent.items()}
    return {
        name: _value(text, before=data.get(name))
        for name, text in given.items()
        if text != _normal(field_text(data.get(name)))
    }


def _value(text: str, *, before: Any) -> Any:
    """What was filled in: JSON where the field held a value other than text; the model judges what is no JSON."""
    if before is None or isinstance(before, str):
        return text
    try:
        return json_of(text) if text.strip() else None
    except ValueError:
        return text


def _normal(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\N{REPLACEMENT CHARACTER}")
