"""Records sent one by one inside a `$batch`, so that each gets its own answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.error_mapping import WebApiReply, unbelievable
from penstock.targets.dataverse.multipart import Part
from penstock.targets.dataverse.odata import address
from penstock.targets.model import DONE, ErrorKind, Mode, Outcome, TargetError, Verdict

__all__ = ["part", "verdicts"]

ENTITY_ID = re.compile(r"\(([0-9a-fA-F-]{36})\)\s*$")
TRANSIENT = frozenset({ErrorKind.THROTTLED, ErrorKind.TOKEN, ErrorKind.CONNECTION, ErrorKind.DEADLOCK, ErrorKind.RACE})


def part(call: Call, position: int, root: str) -> Part:
    """The request that does one record's share of a call."""
    table = call.table
    if call.mode is Mode.CREATE:
        return Part("POST", f"{root}{table.entity_set}{call.query()}", call.headers, call.encoded(position))
    key = call.key(position)
    path = root + address(table.entity_set, key)
    match call.mode:
        case Mode.DELETE:
            return Part("DELETE", path + call.query(), call.headers)
        case Mode.UPDATE:
            body = call.encoded(position, (table.id_column,))
            return Part("PATCH", path + call.query(), {**call.headers, "If-Match": "*"}, body)
    named = call.options.alternate_key or ((table.id_column,) if isinstance(key, str) else key)
    body = call.encoded(position, named)
    told = {"Prefer": "return=representation"}  # 201 or 200 then says whether it was created
    return Part("PATCH", path + call.query(f"$select={table.id_column}"), {**call.headers, **told}, body)


def verdicts(
    call: Call,
    outer: WebApiReply,
    replies: Sequence[WebApiReply],
    refused: Callable[[WebApiReply], TargetError],
    *,
    stops_early: bool,
) -> list[Verdict]:
    """What became of every record; when the batch stops early, those after the first failure were not run."""
    if not replies and not outer.is_success:
        raise refused(outer)
    was_stopped = stops_early and not outer.is_success and not replies[-1].is_success
    if len(replies) > len(call) or (len(replies) < len(call) and not was_stopped):
        raise unbelievable(f"told of {len(replies)} records where {len(call)} were sent", outer)
    told = [_verdict(call, position, reply, refused) for position, reply in enumerate(replies)]
    left = range(len(told), len(call))
    last = told[-1].error
    if last is not None and last.kind in TRANSIENT:  # nothing is wrong with the rest: it shares the reason to try again
        return told + [Verdict(Outcome.FAILED, call.id(position), last) for position in left]
    return told + [Verdict(Outcome.NOT_RUN, call.id(position)) for position in left]


def _verdict(call: Call, position: int, reply: WebApiReply, refused: Callable[[WebApiReply], TargetError]) -> Verdict:
    if not reply.is_success:
        return Verdict(Outcome.FAILED, call.id(position), refused(reply))
    if call.mode is Mode.UPSERT:
        outcome = Outcome.CREATED if reply.status == 201 else Outcome.UPDATED
        return Verdict(outcome, reply.json().get(call.table.id_column) or call.id(position))
    return Verdict(DONE[call.mode], call.id(position) or _entity_id(reply))


def _entity_id(reply: WebApiReply) -> str | None:
    found = ENTITY_ID.search(reply.headers.get("odata-entityid", ""))
    return found[1].lower() if found else None
