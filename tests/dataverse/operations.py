"""Which operation a request is, and running it: the part shared by whole requests and parts of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import batch, bulk, metadata, problems, records
from .faults import Call
from .jobs import Jobs
from .odata import Segment, parse_path
from .payload import view
from .problems import Refused, answer_of
from .store import Store
from .tables import Table, stable_id
from .wire import Answer, Request, json_answer
from .writing import Work, check_privilege

__all__ = ["Asked", "Desk", "recognise"]

PREFIX = "Microsoft.Dynamics.CRM."
SEGMENT_LETTERS_MAX = 260


@dataclass(frozen=True)
class Asked:
    """What a request asks for: the action's name, the table, the rows, and its cost in rows and single operations."""

    action: str
    table: Table | None = None
    rows: Sequence[Mapping[str, Any]] = ()
    is_bulk: bool = False
    parts: Sequence[Request] = ()

    def call(self, user: str) -> Call:
        """The request as fault scripts see it."""
        return Call(self.action, self.table.name if self.table else None, user, self.rows)


class Desk:
    """Runs one operation at a time on the store."""

    def __init__(self, store: Store, jobs: Jobs) -> None:
        self._store = store
        self._jobs = jobs

    def operate(self, work: Work) -> Answer:
        """Run an operation and answer it; a refusal is an answer too."""
        try:
            return self._operate(work)
        except Refused as refused:
            return answer_of(work.request, refused.problem)

    def _operate(self, work: Work) -> Answer:
        steps = parse_path(work.request.path)
        if not steps or any(len(part) > SEGMENT_LETTERS_MAX for part in work.request.path.split("/")):
            raise Refused(problems.bad_request("Bad Request - Invalid URL"))
        table = self._store.table_of_set(steps[0].name)
        if table is not None:
            return self._on_table(work, table, steps)
        return self._on_platform(work, steps)

    def _on_platform(self, work: Work, steps: Sequence[Segment]) -> Answer:
        match work.request.method, steps[0].name, len(steps):
            case "POST", "$batch", 1:
                return batch.run_batch(work, self.operate)
            case "GET", "WhoAmI", 1:
                return _who_am_i(work)
            case "GET", "EntityDefinitions", _:
                return metadata.definitions(self._store.tables, work.request, steps)
            case "GET", "sdkmessagefilters", 1:
                return metadata.message_filters(self._store.tables, work.request)
            case "POST", "BulkDelete", 1:
                return self._jobs.ask(work)
            case "GET", "asyncoperations", 1 if steps[0].key:
                return self._jobs.show(steps[0].key.lower())
        raise Refused(problems.unknown_resource(steps[0].name))

    def _on_table(self, work: Work, table: Table, steps: Sequence[Segment]) -> Answer:
        key = steps[0].key
        match work.request.method, len(steps):
            case "GET", 1:
                return records.read(work, table, key) if key else records.read_many(work, table)
            case "POST", 1 if key is None:
                return records.add(work, table)
            case "PATCH", 1 if key:
                return records.patch(work, table, key)
            case "DELETE", 1 if key:
                return records.remove(work, table, key)
            case "POST", 2 if steps[1].name.removeprefix(PREFIX) in bulk.ACTIONS:
                return bulk.act(work, table, steps[1].name.removeprefix(PREFIX))
        raise Refused(problems.unknown_resource(steps[-1].name))


def recognise(store: Store, request: Request) -> Asked:
    """What a request asks for, as far as can be told; it never fails."""
    steps = parse_path(request.path)
    table = store.table_of_set(steps[0].name) if steps else None
    if steps and steps[0].name == "$batch":
        return _recognise_batch(store, request)
    if table is None:
        return Asked(steps[0].name if steps else request.method)
    if len(steps) == 2:
        targets = _body(request).get("Targets")
        rows = [row for row in targets if isinstance(row, dict)] if isinstance(targets, list) else []
        return Asked(steps[1].name.removeprefix(PREFIX), table, [view(table, row) for row in rows], is_bulk=True)
    if request.method == "GET":
        return Asked("GET", table)
    return Asked(request.method, table, [view(table, _body(request), steps[0].key)])


def _recognise_batch(store: Store, request: Request) -> Asked:
    try:
        parts = batch.parts_of(request)
    except Refused:
        return Asked("$batch")
    requests = [one.request for part in parts for one in (part.change_set or [part]) if one.request is not None]
    asked = [recognise(store, inner) for inner in requests]
    tables = {one.table.name: one.table for one in asked if one.table}
    only = next(iter(tables.values())) if len(tables) == 1 else None
    return Asked("$batch", only, [row for one in asked for row in one.rows], parts=requests)


def _body(request: Request) -> dict[str, Any]:
    try:
        body = request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _who_am_i(work: Work) -> Answer:
    check_privilege(work)
    ids = {"BusinessUnitId": "unit", "OrganizationId": "organization"}
    told = {name: stable_id(what) for name, what in ids.items()}
    return json_answer(200, {**told, "UserId": stable_id("user", work.user)})
