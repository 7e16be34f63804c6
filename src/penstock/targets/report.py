"""What went wrong in a run, as a document to keep or to send on.

It holds no records, and remotes like to quote the values they refuse: so of a message only the pattern is kept, with
numbers, ids, addresses and quoted text taken out. Codes and fields stand beside it, and ids, which may be values
themselves, only when that is asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.targets.diagnostics.causes import SUGGESTIONS, Cause, cause_of
from penstock.targets.model import TargetError
from penstock.targets.results import BulkError, BulkResult

__all__ = ["ErrorReport", "ReportedError", "TableSummary", "pattern"]

TOP_MAX = 3
QUOTED = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|“[^”]*”|‘[^’]*’""")
KEY_VALUES = re.compile(r"\)=\(.*?\)(?= |$)")
ID = re.compile(r"\{?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\}?", re.IGNORECASE)
ADDRESS = re.compile(r"[\w.+-]+@[\w.-]+")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d.,:]*(?!\w)")


def pattern(message: str, field: str | None = None) -> str:
    """A message without the values in it, so that equal mistakes read equal; the name of the field stays."""

    def hidden(found: re.Match[str]) -> str:
        return found[0] if found[0][1:-1] == field else "‹…›"

    text = ID.sub("‹id›", KEY_VALUES.sub(")=(‹…›)", message))
    return NUMBER.sub("‹n›", ADDRESS.sub("‹…›", QUOTED.sub(hidden, text)))


@dataclass(frozen=True, kw_only=True)
class ReportedError:
    """One record that did not succeed."""

    table: str
    index: int
    outcome: str
    kind: str
    message: str
    code: str | None = None
    id: Any = None
    field: str | None = None
    causes: Sequence[Cause] = ()
    suggestions: Sequence[str] = ()

    @classmethod
    def of(cls, table: str, error: BulkError, *, with_id: bool) -> ReportedError:
        """What may be told of an error."""
        found = [diagnostic.code for diagnostic in error.diagnostics]
        guess = cause_of(TargetError(error.message, kind=error.kind, code=error.code))
        causes = tuple(dict.fromkeys(found or ([guess] if guess else [])))
        return cls(
            table=table,
            index=error.index,
            outcome=error.outcome.value,
            kind=error.kind.value,
            message=pattern(error.message, error.field),
            code=error.code,
            id=error.id if with_id else None,
            field=error.field,
            causes=causes,
            suggestions=tuple(SUGGESTIONS[cause] for cause in causes),
        )


@dataclass(frozen=True, kw_only=True)
class TableSummary:
    """What became of one table's records."""

    mode: str
    total: int
    succeeded: int
    failed: int
    unknown: int
    not_run: int
    skipped: int
    duration_s: float
    stopped_reason: str | None
    top: Sequence[tuple[str, int]]
    """The most frequent messages and how often each came."""

    @classmethod
    def of(cls, result: BulkResult, errors: Sequence[ReportedError]) -> TableSummary:
        """Count a result."""
        return cls(
            mode=result.mode.value,
            total=len(result.outcomes),
            succeeded=result.success_count,
            failed=result.failure_count,
            unknown=result.unknown_count,
            not_run=result.not_run_count,
            skipped=result.skipped_count,
            duration_s=round(result.duration_s, 3),
            stopped_reason=result.stopped_reason,
            top=Counter(error.message for error in errors).most_common(TOP_MAX),
        )


@dataclass(frozen=True, kw_only=True)
class ErrorReport:
    """Every error of one or more bulk calls, with counts per table and whatever the caller says of the run."""

    tables: Mapping[str, TableSummary]
    errors: Sequence[ReportedError]
    context: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1

    @classmethod
    def of(cls, results: Mapping[str, BulkResult], *, with_ids: bool = False, **context: Any) -> ErrorReport:
        """Report on results by table; `context` says when, where and by whom, and holds no secrets."""
        told = {
            table: [ReportedError.of(table, error, with_id=with_ids) for error in found.errors]
            for table, found in results.items()
        }
        return cls(
            tables={table: TableSummary.of(result, told[table]) for table, result in results.items()},
            errors=[error for errors in told.values() for error in errors],
            context=context,
        )

    @property
    def summary(self) -> Mapping[str, int]:
        """The counts over all tables."""
        names = ("total", "succeeded", "failed", "unknown", "not_run", "skipped")
        return {name: sum(getattr(table, name) for table in self.tables.values()) for name in names}

    def to_json(self) -> bytes:
        """The report as a document."""
        members = {
            "version": self.version,
            "context": self.context,
            "summary": self.summary,
            "tables": self.tables,
            "errors": self.errors,
        }
        return msgspec.json.format(msgspec.json.encode(members, enc_hook=str), indent=2)

    def save(self, path: Path | str) -> None:
        """Write the document to a file."""
        Path(path).write_bytes(self.to_json())
