"""The ways a call reaches Dataverse: as one bulk action, or as single requests inside one `$batch`.

Which records are there is asked before an upsert, to label it, and after a lost answer, to learn what became of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import quote
from uuid import UUID, uuid4

from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.error_mapping import WebApiReply, row_error, row_failures, unbelievable
from penstock.targets.dataverse.odata import address, comparable, filters
from penstock.targets.dataverse.table_metadata import Table
from penstock.targets.dataverse.web_api import WebApi
from penstock.targets.diagnostics.error_parsing import guids_in
from penstock.targets.model import DONE, TRANSIENT, Mode, Outcome, TargetError, Verdict
from penstock.targets.target import Answer, UniformVerdicts

__all__ = [
    "PARTS_MAX",
    "Found",
    "Part",
    "find_present",
    "pack",
    "send_action",
    "send_singles",
    "single_request",
    "single_verdicts",
    "unpack",
]

Found: TypeAlias = Sequence[str | None]
"""For every record of a call the id under which it is there, or None."""
ACTIONS = {
    Mode.CREATE: "CreateMultiple",
    Mode.UPDATE: "UpdateMultiple",
    Mode.UPSERT: "UpsertMultiple",
    Mode.DELETE: "DeleteMultiple",
}
ENTITY_ID = re.compile(r"\(([0-9a-fA-F-]{36})\)\s*$")
PARTS_MAX = 1000
BOUNDARY = re.compile(r'boundary="?([^";,]+)"?', re.IGNORECASE)
STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})")
PART_HEAD = b"Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Part:
    """One request inside a `$batch`; `path` is absolute, without the host."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


async def send_action(api: WebApi, call: Call, source: str, present: Found | None = None) -> Answer:
    """Send a call as one bulk action; `present` are the records of an upsert that were there before."""
    path = f"{call.table.entity_set}/Microsoft.Dynamics.CRM.{ACTIONS[call.mode]}{call.query()}"
    # Without the annotations a partly failed call on an elastic table would not say which rows failed.
    headers = {**call.headers, "Content-Type": "application/json", "Prefer": 'odata.include-annotations="*"'}
    reply = await api.call(source, "POST", path, headers=headers, body=call.body())
    is_exact = call.mode is not Mode.UPSERT
    if reply.is_success:
        return Answer(_done(call, reply, present), reply.width_hint, is_exact)
    failures = {row.index: row for row in row_failures(reply, len(call))}
    error = call.explained(api.refusal(reply, is_write=True))
    if not failures:
        error.suspects = _suspects(call, error.message)
        raise error
    verdicts = [
        Verdict(Outcome.FAILED, call.id(position), row_error(failures[position], error))
        if position in failures
        else _success(call, position, present)
        for position in range(len(call))
    ]
    return Answer(verdicts, reply.width_hint, is_exact)


async def send_singles(api: WebApi, call: Call, source: str, *, continue_on_error: bool) -> Answer:
    """Send every record of a call as a request of its own, all inside one `$batch`."""

    def refused(part: WebApiReply) -> TargetError:
        return call.explained(api.refusal(part, is_write=True))

    boundary = f"batch_{uuid4().hex}"
    headers = {"Content-Type": f'multipart/mixed; boundary="{boundary}"'}
    if continue_on_error:
        headers["Prefer"] = "odata.continue-on-error"
    body = pack((single_request(call, position, api.root) for position in range(len(call))), boundary)
    reply = await api.call(source, "POST", "$batch", headers=headers, body=body)
    replies = unpack(reply.headers.get("content-type", ""), reply.body)
    verdicts = single_verdicts(call, reply, replies, refused, stops_early=not continue_on_error)
    return Answer(verdicts, reply.width_hint)


def _done(call: Call, reply: WebApiReply, present: Found | None) -> Sequence[Verdict]:
    if call.mode is Mode.UPSERT:
        return [_success(call, position, present) for position in range(len(call))]
    if call.mode is not Mode.CREATE:
        return UniformVerdicts(Verdict(DONE[call.mode]), len(call), [call.id(n) for n in range(len(call))])
    ids = reply.json().get("Ids")
    if not isinstance(ids, list) or len(ids) != len(call):
        told = len(ids) if isinstance(ids, list) else "no"
        raise unbelievable(f"told {told} ids where {len(call)} records were sent", reply)
    return UniformVerdicts(Verdict(Outcome.CREATED), len(call), [str(id) for id in ids])


def _success(call: Call, position: int, present: Found | None) -> Verdict:
    if call.mode is not Mode.UPSERT:
        return Verdict(DONE[call.mode], call.id(position))
    if present is None:
        return Verdict(Outcome.UPSERTED, call.id(position))
    was_there = present[position]
    return Verdict(Outcome.UPDATED if was_there else Outcome.CREATED, was_there or call.id(position))


def _suspects(call: Call, message: str) -> tuple[int, ...]:
    """The records that hold an id the message names."""
    named = guids_in(message)
    return tuple(at for at, record in enumerate(call.records) if named and named & guids_in(str(record)))


def single_request(call: Call, position: int, root: str) -> Part:
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


def single_verdicts(
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
    made = ENTITY_ID.search(reply.headers.get("odata-entityid", ""))
    return Verdict(DONE[call.mode], call.id(position) or (made[1].lower() if made else None))


async def find_present(api: WebApi, call: Call, source: str) -> Found:
    """Look for the records of a call by what identifies them."""
    found = [call.key(position) for position in range(len(call))]
    keys = [{call.table.id_column: UUID(key)} if isinstance(key, str) else key for key in found]
    there: dict[tuple[str, ...], str] = {}
    for columns in {tuple(key) for key in keys}:
        wanted = [tuple(key.values()) for key in keys if tuple(key) == columns]
        there |= await _read(api, call.table, columns, wanted, source)
    return [there.get(_comparable(key)) for key in keys]


async def _read(
    api: WebApi, table: Table, columns: Sequence[str], keys: Sequence[Sequence[Any]], source: str
) -> dict[tuple[str, ...], str]:
    select = ",".join(dict.fromkeys((table.id_column, *columns)))
    found = {}
    for test in filters(columns, keys, are_ids=tuple(columns) == (table.id_column,)):
        for row in await api.read_rows(source, f"{table.entity_set}?$select={select}&$filter={quote(test)}"):
            found[_comparable({column: row.get(column) for column in columns})] = str(row[table.id_column])
    return found


def _comparable(key: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple("" if value is None else f"{column}={comparable(value)}" for column, value in key.items())


def pack(parts: Iterable[Part], boundary: str) -> bytes:
    """The body of a `$batch` request."""
    lines = bytearray()
    for part in parts:
        lines += f"--{boundary}\r\n".encode() + PART_HEAD
        lines += f"{part.method} {part.path} HTTP/1.1\r\n".encode()
        for name, value in part.headers.items():
            lines += f"{name}: {value}\r\n".encode()
        if part.body:
            lines += b"Content-Type: application/json\r\n"
        lines += b"\r\n" + part.body + b"\r\n"
    return bytes(lines + f"--{boundary}--\r\n".encode())


def unpack(content_type: str, body: bytes) -> Sequence[WebApiReply]:
    """The answers inside a `$batch` answer, in order; empty when it holds none.

    A part that is cut off before its status line is left out, so the caller compares the number of parts.
    """
    found = BOUNDARY.search(content_type)
    if not found:
        return []
    mark = b"--" + found[1].strip().encode()
    pieces = re.split(rb"(?:\r?\n|^)" + re.escape(mark), body)[1:]
    return [reply for reply in map(_reply, pieces) if reply is not None]


def _reply(piece: bytes) -> WebApiReply | None:
    _, _, answer = piece.lstrip(b"\r\n").partition(b"\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    status, _, lines = head.partition(b"\r\n")
    found = STATUS_LINE.match(status)
    pairs = (line.partition(":") for line in lines.decode("latin-1").split("\r\n") if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return WebApiReply(int(found[1]), headers, body) if found else None
