"""What a bulk call accepts: arguments are checked before anything is sent."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from penstock.errors import Fault
from penstock.targets.ids import EMPTY_GUID
from penstock.targets.model import BadInput, BulkOptions, ErrorKind, Mode, TargetError

if TYPE_CHECKING:
    from penstock.targets.target import Target

__all__ = [
    "Records",
    "checked_options",
    "checked_records",
    "checked_table",
    "faults_in",
    "named_options",
    "refuse_faults",
]

log = logging.getLogger("penstock.targets")

Records: TypeAlias = Iterable[Any] | AsyncIterable[Any]
Options = TypeVar("Options", bound=BulkOptions)

BATCH_SIZE = 100
NAMED_MAX = 20
POLICIES = ("keep-order", "first", "last", "error")


def checked_table(table: Any) -> str:
    """The name of a table, or why it is none."""
    if not isinstance(table, str):
        raise TypeError(f"a table is named by text, not by {type(table).__name__}")
    if not table.strip():
        raise BadInput("the name of the table is empty")
    return table


def checked_records(mode: Mode, records: Any) -> Records:
    """Something to iterate over, or why it is not; one record or id by itself is a common mistake."""
    what = "ids" if mode is Mode.DELETE else "records"
    if records is None:
        raise TypeError(f"{what} must be a list or a stream, not None")
    if isinstance(records, str | bytes | Mapping):
        raise TypeError(f"{what} must be a list or a stream, not one {type(records).__name__}")
    if not isinstance(records, Iterable | AsyncIterable):
        raise TypeError(f"{what} must be a list or a stream, not {type(records).__name__}")
    return records


def named_options(target: Target, given: Mapping[str, Any]) -> BulkOptions:
    """Options that were given by name, as options of the target's own kind."""
    known = [field.name for field in fields(target.options_type)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise BadInput(f"{target.name} has no option {', '.join(unknown)}; it has: {', '.join(known)}")
    return target.options_type(**given)


def checked_options(options: Options, batch_size: int = BATCH_SIZE) -> Options:
    """Options that can be followed; a batch size below one becomes the target's, with a warning."""
    for name in ("batch_size", "batch_size_max", "max_parallel_batches"):
        value = getattr(options, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"{name} must be a whole number, not {value!r}")
        if value is not None and value < 1 and name != "batch_size":
            raise BadInput(f"{name} must be at least 1 or None, not {value}")
    if options.batch_seconds_target <= 0:
        raise BadInput(f"batch_seconds_target must be more than 0, not {options.batch_seconds_target}")
    if options.deadline_s is not None and options.deadline_s <= 0:
        raise BadInput(f"deadline_s must be more than 0 or None, not {options.deadline_s}")
    if options.max_errors is not None and options.max_errors < 0:
        raise BadInput(f"max_errors must be at least 0 or None, not {options.max_errors}")
    if options.duplicates not in POLICIES:
        raise BadInput(f"duplicates must be one of {', '.join(POLICIES)}, not {options.duplicates!r}")
    if options.batch_size is not None and options.batch_size >= 1:
        return options
    if options.batch_size is not None:
        log.warning("batch_size must be at least 1, not %d; %d is used", options.batch_size, batch_size)
    return replace(options, batch_size=batch_size)


def faults_in(mode: Mode, id_field: str | None, records: Sequence[Any]) -> dict[int, TargetError]:
    """The records that cannot be sent, by position: no record at all, or one without the id it needs."""
    if mode is Mode.DELETE:
        return _without_id(records, "the id is missing", None)
    strange = {kind for kind in set(map(type, records)) if not issubclass(kind, Mapping)}
    if strange:
        return {
            position: TargetError(f"a record must be a mapping, not {type(record).__name__}", **_DATA, code="BadRecord")
            for position, record in enumerate(records)
            if type(record) in strange
        }
    if mode is Mode.UPDATE and id_field is not None:
        ids = [record.get(id_field) for record in records]
        return _without_id(ids, f"the record has no {id_field!r}, which says what to update", id_field)
    return {}


_DATA: dict[str, Any] = {"kind": ErrorKind.DATA}


def _without_id(ids: Sequence[Any], message: str, field: str | None) -> dict[int, TargetError]:
    if all(ids) and EMPTY_GUID not in ids:
        return {}
    absent = [position for position, found in enumerate(ids) if found is None or found in ("", EMPTY_GUID)]
    return {position: TargetError(message, **_DATA, code="MissingId", field=field) for position in absent}


def refuse_faults(faults: Mapping[int, TargetError]) -> None:
    """Refuse a list of records, naming every fault found in it."""
    if not faults:
        return
    named = ", ".join(map(str, list(faults)[:NAMED_MAX]))
    more = f" and {len(faults) - NAMED_MAX} more" if len(faults) > NAMED_MAX else ""
    raise BadInput(
        f"nothing was sent; wrong at index {named}{more}: {next(iter(faults.values())).message}",
        [Fault(f"index {position}: {fault.message}", fault.field) for position, fault in faults.items()],
    )
