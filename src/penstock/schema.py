"""What a row model expects of a file: the columns it knows, by the names a header may use."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Column", "Schema"]


@dataclass(frozen=True, slots=True)
class Column:
    """One field of the row model."""

    name: str
    headers: tuple[str, ...]
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a row model; `allows_extra` is False for models that forbid unknown fields."""

    columns: tuple[Column, ...]
    allows_extra: bool = True
