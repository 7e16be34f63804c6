"""`BulkDelete`: deleting later, as a job of the remote."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from . import problems
from .payload import read_object
from .problems import Refused
from .store import Store
from .tables import Table
from .wire import Answer, json_answer
from .writing import Work, check_privilege

__all__ = ["Jobs"]

WAITING, DONE = (0, 0), (3, 30)


class Jobs:
    """The jobs asked for; they run at once after the answer is made, or when told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, tuple[Table, list[str]]] = {}
        self._known: dict[str, tuple[int, int]] = {}

    def ask(self, work: Work) -> Answer:
        """Take a job and answer with its id."""
        queries = read_object(work.request).get("QuerySet")
        if not isinstance(queries, list) or len(queries) != 1:
            raise Refused(problems.bad_request("BulkDelete takes one query here."))
        table = next((table for table in self._store.tables if table.name == queries[0].get("EntityName")), None)
        if table is None:
            raise Refused(problems.unknown_table(str(queries[0].get("EntityName"))))
        check_privilege(work, "prvBulkDelete", f"prvDelete{table.name}")
        job = str(uuid.uuid4())
        self._waiting[job] = (table, _ids(table, queries[0]))
        self._known[job] = WAITING
        context = f"{work.request.base}/api/data/v9.2/$metadata#Microsoft.Dynamics.CRM.BulkDeleteResponse"
        return json_answer(200, {"@odata.context": context, "JobId": job})

    def run(self) -> None:
        """Do all jobs that wait; records that are gone already are passed over."""
        for job, (table, ids) in self._waiting.items():
            for id in ids:
                if id in self._store.rows(table.name):
                    with self._store.unit():
                        self._store.delete(table, id)
            self._known[job] = DONE
        self._waiting.clear()

    def show(self, job: str) -> Answer:
        """GET `asyncoperations(id)`."""
        if job not in self._known:
            raise Refused(problems.missing("asyncoperation", [job]))
        state, status = self._known[job]
        return json_answer(200, {"asyncoperationid": job, "statecode": state, "statuscode": status})


def _ids(table: Table, query: Mapping[str, Any]) -> list[str]:
    conditions = query.get("Criteria", {}).get("Conditions", [])
    if len(conditions) != 1 or conditions[0].get("AttributeName") != table.primary_id:
        raise Refused(problems.bad_request(f"BulkDelete takes one condition on {table.primary_id} here."))
    return [str(value["Value"]).lower() for value in conditions[0].get("Values", [])]
