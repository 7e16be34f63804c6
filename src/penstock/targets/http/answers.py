"""What an answer says of each record of a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from penstock.targets.http.endpoint import Body, Endpoint, ItemResults
from penstock.targets.http.error_mapping import LOST, item_error
from penstock.targets.model import DONE, ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.target import Answer, Batch, UniformVerdicts

__all__ = ["at_path", "decoded", "read_answer"]

GONE = frozenset({404, 410})
MULTI_STATUS = 207
FAILED = frozenset({"error", "fail", "failed", "failure", "invalid", "rejected"})
"""What most remotes mean by these words; what others mean, an endpoint declares."""


def decoded(body: bytes) -> Any:
    """A body as JSON, as JSON lines, or as the text it is; None when empty."""
    if not body.strip():
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return msgspec.json.Decoder().decode_lines(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace")


def read_answer(
    batch: Batch,
    endpoint: Endpoint,
    status: int,
    body: Any,
    width_hint: int | None = None,
    *,
    lost_deletes: Collection[int] = frozenset(),
    wait_s: float | None = None,
) -> Answer:
    """The verdicts of a successful answer; raises an ambiguous `TargetError` when they cannot be told.

    Upserts are counted exactly only if each record's status told created from updated. `lost_deletes` are the positions
    of records that an earlier, unanswered call may have deleted: those that are not there count as deleted. `wait_s` is
    for how long the remote asks to be left alone by records that it throttled.
    """
    if endpoint.results is None and status == MULTI_STATUS:
        raise _unreadable(f"of status {status} tells of each record, and the endpoint has no `results` to say where")
    if endpoint.results is None:
        found = at_path(body, endpoint.id_path) if endpoint.is_single else None
        outcome, is_exact = _done(batch.mode, status if endpoint.is_single else None)
        ids = None if found is None else [found]
        return Answer(UniformVerdicts(Verdict(outcome), len(batch), ids), width_hint, is_exact)
    is_lines = endpoint.body is Body.NDJSON and not endpoint.results.path
    items = _placed(batch, endpoint.results, body, is_lines=is_lines)
    read = [
        _verdict(
            batch.mode,
            endpoint,
            endpoint.results,
            item,
            is_gone_done=endpoint.gone_is_deleted or at in lost_deletes,
            wait_s=wait_s,
        )
        for at, item in enumerate(items)
    ]
    return Answer([verdict for verdict, _ in read], width_hint, all(is_exact for _, is_exact in read))


def at_path(body: Any, path: str | None) -> Any:
    """What stands at a dotted path, None when nothing does; an empty path is the whole, None is nowhere."""
    if path is None:
        return None
    for name in path.split(".") if path else ():
        if isinstance(body, Mapping):
            body = body.get(name)
        elif isinstance(body, list) and name.isdigit() and int(name) < len(body):
            body = body[int(name)]
        else:
            return None
    return body


MISSING = object()
"""Stands for an item that the answer leaves out."""


def _placed(batch: Batch, results: ItemResults, body: Any, *, is_lines: bool) -> Sequence[Any]:
    """The items in the order of the records."""
    items = at_path(body, results.path)
    if items is None and results.only_failures:
        items = []
    if isinstance(items, Mapping) and is_lines:
        items = [items]  # JSON lines with one line look like this
    if not isinstance(items, list):
        raise _unreadable(f"has no list of results at {results.path or 'its top'!r}")
    if results.index is None:
        if len(items) != len(batch):
            raise _unreadable(f"lists {len(items)} results for {len(batch)} records")
        return items
    placed = [MISSING] * len(batch)
    for item in items:
        index = at_path(item, results.index)
        if not isinstance(index, int) or not 0 <= index < len(batch) or placed[index] is not MISSING:
            raise _unreadable(f"has a result for record {index!r} of {len(batch)}, or two of them")
        placed[index] = item
    return placed


def _verdict(
    mode: Mode, endpoint: Endpoint, results: ItemResults, item: Any, *, is_gone_done: bool, wait_s: float | None
) -> tuple[Verdict, bool]:
    if item is MISSING and results.only_failures:
        outcome, is_exact = _done(mode, None)
        return Verdict(outcome), is_exact
    if item is MISSING:
        lost = TargetError("the answer does not mention this record", maybe_applied=endpoint.idempotency_header is None)
        return Verdict(Outcome.UNKNOWN, error=lost), True
    status, error, identifier = (at_path(item, path) for path in (results.status, results.error, results.id))
    known = results.outcomes.get(status) if isinstance(status, str | int) else None
    number = _number(status)
    is_bad = _is_bad(status, number, error, results)
    if known is not None:
        is_bad = not known.is_success
    elif mode is Mode.DELETE and is_gone_done and number in GONE:
        is_bad = False
    if not is_bad:
        outcome, is_exact = (known, True) if known else _done(mode, number)
        return Verdict(outcome, identifier), is_exact
    code, field = at_path(item, results.code), at_path(item, results.field)
    failure = item_error(number, error or item, endpoint, code=code, field=field, wait_s=wait_s)
    outcome = Outcome.UNKNOWN if number in LOST else Outcome.FAILED
    return Verdict(known or outcome, identifier, failure), True


def _is_bad(status: Any, number: int | None, error: Any, results: ItemResults) -> bool:
    """Whether an item tells of a failure: its status says so, or it has none and tells of an error."""
    if number is not None:
        return not 200 <= number < 300
    if isinstance(status, bool):
        return not status
    is_word = isinstance(status, str) and status.strip().lower() in FAILED
    return is_word or bool(error) or results.only_failures


def _done(mode: Mode, status: int | None) -> tuple[Outcome, bool]:
    """The outcome of a success, and whether the status made it certain."""
    if mode is not Mode.UPSERT:
        return DONE[mode], True
    if status is None:
        return DONE[mode], False
    return (Outcome.CREATED if status == 201 else Outcome.UPDATED), True


def _number(status: Any) -> int | None:
    if isinstance(status, bool):
        return None
    try:
        return int(status)
    except (TypeError, ValueError):
        return None


def _unreadable(what: str) -> TargetError:
    return TargetError(
        f"the remote says it succeeded, but its answer {what}", kind=ErrorKind.CONNECTION, maybe_applied=True
    )
