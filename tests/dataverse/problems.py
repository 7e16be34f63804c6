"""Every refusal of the remote, with the status, code and wording that clients recognise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .wire import Answer, Request, json_answer

__all__ = ["Problem", "Refused", "answer_of"]

LimitName = Literal["requests", "time", "concurrency"]
LIMITS: dict[LimitName, tuple[str, str]] = {
    "requests": (
        "0x80072322",
        "Number of requests exceeded the limit of {most} over the time window of {window} seconds.",
    ),
    "time": (
        "0x80072321",
        "Combined execution time of incoming requests exceeded limit of {most} milliseconds "
        "over the time window of {window} seconds. Decrease the number of concurrent requests or reduce the duration.",
    ),
    "concurrency": ("0x80072326", "Number of concurrent requests exceeded the limit of {most}."),
}
RACES = {
    3732: "Cannot drop type because it is being referenced by another object.",
    2766: "The definition for user-defined data type has changed.",
    2812: "Could not find stored procedure.",
}
DETAILS = "@Microsoft.PowerApps.CDS.ErrorDetails.Plugin.BulkApiErrorDetails"


@dataclass(frozen=True)
class Problem:
    """One refusal: an HTTP status, the platform's own code, its message; `annotations` are shown when asked for."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, Any] = field(default_factory=dict)
    is_plugin: bool = False
    has_body: bool = True
    is_applied: bool = False
    """The call took effect first: something in between answered."""

    def with_status(self, status: int) -> Problem:
        """The same refusal under another HTTP status."""
        return replace(self, status=status)


class Refused(Exception):
    """Raised inside the remote to answer with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def answer_of(request: Request, problem: Problem) -> Answer:
    """The answer that tells a client of a problem, with the annotations it asked for."""
    if not problem.has_body:
        return Answer(problem.status, problem.headers)
    told = {
        "@Microsoft.PowerApps.CDS.HelpLink": f"http://go.microsoft.com/fwlink/?LinkID=398563&error={problem.code}",
        **problem.annotations,
    }
    asked = {name: value for name, value in told.items() if request.wants_annotation(name)}
    error = {"code": problem.code, "message": problem.message, **asked}
    return json_answer(problem.status, {"error": error}, problem.headers)


def throttled(
    limit: LimitName,
    retry_after_s: int = 1,
    *,
    retry_after: str | None = None,
    most: float = 0,
    window_s: float = 300,
) -> Problem:
    """A 429 by one of the limits; `retry_after` replaces the seconds by any text, such as a date."""
    code, text = LIMITS[limit]
    message = text.format(most=int(most), window=int(window_s))
    return Problem(429, code, message, {"Retry-After": retry_after or str(retry_after_s)})


def token_refused() -> Problem:
    told = 'Bearer error="invalid_token", error_description="The token expired"'
    return Problem(401, "", "", {"WWW-Authenticate": told}, has_body=False)


def privilege_missing(user_id: str, privilege: str) -> Problem:
    message = f"Principal user (Id={user_id}, type=8) is missing {privilege} privilege for this action."
    return Problem(403, "0x80040220", message)


def deadlock() -> Problem:
    message = "Sql error: Generic SQL error. CRM ErrorCode: -2147204784 Sql ErrorCode: -2146232060 Sql Number: 1205"
    return Problem(500, "0x80044150", message)


def race(number: int = 3732) -> Problem:
    message = f"Sql error: {RACES[number]} CRM ErrorCode: -2147204784 Sql ErrorCode: -2146232060 Sql Number: {number}"
    return Problem(500, "0x80044150", message)


def sql_timeout() -> Problem:
    return Problem(500, "0x80044151", "SQL timeout expired. Sql Number: -2")


def too_large() -> Problem:
    return Problem(413, "", "Request Entity Too Large")


def plugin_aborted(message: str = "ISV code aborted the operation.") -> Problem:
    return Problem(400, "0x80040265", message, is_plugin=True)


def bad_request(message: str, code: str = "0x80060888") -> Problem:
    return Problem(400, code, message)


def bad_payload(entity_set: str, what: str) -> Problem:
    message = f"Error identified in Payload provided by the user for Entity :'{entity_set}', {what}"
    return Problem(400, "0x80048d19", message)


def unknown_resource(segment: str) -> Problem:
    return Problem(404, "0x8006088a", f"Resource not found for the segment '{segment}'.")


def unknown_table(name: str) -> Problem:
    return Problem(404, "0x80060888", f"Could not find an entity with name {name} and id in the metadata cache.")


def missing(table: str, ids: Sequence[str]) -> Problem:
    what = f"Id = {ids[0]} Does" if len(ids) == 1 else f"Ids = {', '.join(ids)} Do"
    return Problem(404, "0x80040217", f"Entity '{table}' With {what} Not Exist")


def key_not_found(table: str) -> Problem:
    return Problem(404, "0x80060891", f"A record with the specified key values does not exist in {table} entity")


def duplicate_id() -> Problem:
    return Problem(412, "0x80040237", "A record with matching key values already exists.")


def duplicate_key(key: str, columns: Iterable[str]) -> Problem:
    message = (
        f"Entity Key {key} violated. A record with the same value for {', '.join(columns)} already exists. "
        "A duplicate record cannot be created. Select one or more unique values and try again."
    )
    return Problem(412, "0x80060892", message)


def duplicate_detected() -> Problem:
    message = "A record was not created or updated because a duplicate of the current record already exists."
    return Problem(412, "0x80040333", message)


def version_mismatch() -> Problem:
    return Problem(
        412, "0x80060882", "The version of the existing record doesn't match the RowVersion property provided."
    )


def too_long(table: str, column: str, most: int) -> Problem:
    message = (
        f"A validation error occurred.  The length of the '{column}' attribute of the '{table}' entity "
        f"exceeded the maximum allowed length of '{most}'."
    )
    return Problem(400, "0x80044331", message)


def out_of_range(table: str, column: str, value: int, options: Iterable[int]) -> Problem:
    accepted = ",".join(map(str, options))
    message = (
        f"A validation error occurred. The value {value} of '{column}' on record of type '{table}' is outside "
        f"the valid range. Accepted Values: {accepted}"
    )
    return Problem(400, "0x8004431a", message)


def required(table: str, column: str) -> Problem:
    return Problem(400, "0x80040200", f"The required field '{column}' of the '{table}' entity is missing.")


def not_implemented(action: str) -> Problem:
    return Problem(501, "0x80040216", f"{action} has not yet been implemented.")


def not_enabled(action: str, table: str) -> Problem:
    return Problem(400, "0x80044824", f"The {action} operation is not enabled on the entity '{table}'.")


def partial(failures: Mapping[int, tuple[str, int]], total: int) -> Problem:
    """Some rows of an elastic call failed; `failures` maps positions to (id, status)."""
    rows = [{"RequestIndex": index, "Id": id, "StatusCode": status} for index, (id, status) in sorted(failures.items())]
    message = f"{len(failures)} of {total} operations failed."
    return Problem(400, "0x80040265", message, annotations={DETAILS: json.dumps(rows)})
