"""The ways a call reaches Dataverse: as one bulk action, or as single requests inside one `$batch`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import uuid4

from penstock.targets.dataverse import single_requests
from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.error_mapping import WebApiReply, row_error, row_failures, unbelievable
from penstock.targets.dataverse.existence_check import Found
from penstock.targets.dataverse.multipart import pack, unpack
from penstock.targets.dataverse.web_api import WebApi
from penstock.targets.model import DONE, Mode, Outcome, TargetError, Verdict
from penstock.targets.target import Answer, UniformVerdicts

__all__ = ["send_action", "send_singles"]

ACTIONS = {
    Mode.CREATE: "CreateMultiple",
    Mode.UPDATE: "UpdateMultiple",
    Mode.UPSERT: "UpsertMultiple",
    Mode.DELETE: "DeleteMultiple",
}
GUIDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


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
    body = pack((single_requests.part(call, position, api.root) for position in range(len(call))), boundary)
    reply = await api.call(source, "POST", "$batch", headers=headers, body=body)
    replies = unpack(reply.headers.get("content-type", ""), reply.body)
    return Answer(
        single_requests.verdicts(call, reply, replies, refused, stops_early=not continue_on_error), reply.width_hint
    )


def _done(call: Call, reply: WebApiReply, present: Found | None) -> Sequence[Verdict]:
    if call.mode is Mode.UPSERT:
        return [_success(call, position, present) for position in range(len(call))]
    ids = _created_ids(call, reply) if call.mode is Mode.CREATE else [call.id(n) for n in range(len(call))]
    return UniformVerdicts(Verdict(DONE[call.mode]), len(call), ids)


def _created_ids(call: Call, reply: WebApiReply) -> Sequence[str]:
    ids = reply.json().get("Ids")
    if not isinstance(ids, list) or len(ids) != len(call):
        told = len(ids) if isinstance(ids, list) else "no"
        raise unbelievable(f"told {told} ids where {len(call)} records were sent", reply)
    return [str(id) for id in ids]


def _success(call: Call, position: int, present: Found | None) -> Verdict:
    if call.mode is not Mode.UPSERT:
        return Verdict(DONE[call.mode], call.id(position))
    if present is None:
        return Verdict(Outcome.UPSERTED, call.id(position))
    was_there = present[position]
    return Verdict(Outcome.UPDATED if was_there else Outcome.CREATED, was_there or call.id(position))


def _suspects(call: Call, message: str) -> tuple[int, ...]:
    """The records that hold an id the message names."""
    named = {found.lower() for found in GUIDS.findall(message)}
    if not named:
        return ()
    return tuple(
        position
        for position, record in enumerate(call.records)
        if any(found.lower() in named for found in GUIDS.findall(str(record)))
    )
