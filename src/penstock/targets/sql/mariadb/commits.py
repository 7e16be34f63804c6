"""Batches whose commit was never answered: MariaDB cannot be asked about them, so the rows themselves are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.targets.model import ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.sql.commits import Pending
from penstock.targets.sql.mariadb.writing import found_in, parts
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.target import TableBatch

__all__ = ["is_done"]


async def is_done(cursor: Any, pending: Pending) -> bool:
    """Whether the table is as the batch would have left it. Locks wait for a transaction that is still ending.

    It is compared by each key's last row, since earlier ones were written over.
    """
    seen: set[Any] = set()
    for group, verdicts in zip(reversed(pending.groups), reversed(pending.verdicts), strict=True):
        written, keys = _with_keys(pending.work, group, verdicts)
        fresh = [n for n, key in enumerate(keys) if key not in seen and not seen.add(key)]  # type: ignore[func-returns-value]
        for part in parts(written.pick(fresh)) if fresh else ():
            if not await _holds(cursor, pending.work, part):
                return False
    return True


async def _holds(cursor: Any, work: TableBatch, part: RowGroup) -> bool:
    if work.mode is Mode.DELETE:
        return not await found_in(cursor, work, part, compare=False)
    found = await found_in(cursor, work, part, compare=work.mode is not Mode.CREATE)
    return len(found) == len(part) and not any(found.values())


def _with_keys(work: TableBatch, group: RowGroup, verdicts: Sequence[Verdict]) -> tuple[RowGroup, list[Any]]:
    """The rows that were written, with the keys the database made for them."""
    written = [n for n, verdict in enumerate(verdicts) if verdict.outcome is not Outcome.FAILED]
    if work.mode is not Mode.CREATE:
        kept = group.pick(written)
        return kept, list(zip(*(kept.column(name) for name in work.key), strict=True))
    if not work.key:
        raise TargetError(
            f"table {work.table} has no key to look for the records by", kind=ErrorKind.CONNECTION, maybe_applied=True
        )
    ids = [verdicts[n].id for n in written]
    keys = [(one,) for one in ids] if len(work.key) == 1 else ids
    return RowGroup(work.key, keys, [group.positions[n] for n in written]), keys
