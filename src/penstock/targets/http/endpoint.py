"""How a bulk call is spelled over HTTP, declared rather than programmed."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.errors import SettingsInvalid
from penstock.targets.model import ErrorKind, Mode, Outcome

__all__ = ["Body", "Endpoint", "File", "ItemResults", "PagedLookup"]

URL_FIELDS = frozenset({"table", "id"})
LOOKUP_FIELDS = frozenset({"table", "ids"})
SUCCESSES = frozenset({200, 201, 202, 204, 207})


class Body(StrEnum):
    """The shape of a request's body."""

    ARRAY = "array"  # [record, …]
    WRAPPER = "wrapper"  # {"items": [record, …]}
    NDJSON = "ndjson"  # a record on every line
    SINGLE = "single"  # the record itself; one record a call
    FORM = "form"  # the record as form fields; one record a call
    MULTIPART = "multipart"  # form fields and files (bytes, or a `File`); one record a call
    NONE = "none"  # nothing: the URL says it all; one record a call


SINGLE_BODIES = frozenset({Body.SINGLE, Body.FORM, Body.MULTIPART, Body.NONE})


@dataclass(frozen=True, slots=True)
class File:
    """A file in a multipart record."""

    name: str
    content: bytes = field(repr=False)
    media_type: str = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class ItemResults:
    """Where an answer tells what became of each record.

    Paths are members joined by dots, `error.message`; an empty path is the item itself, None means that it is not told.
    Without `index` the items stand in the order of the records. A status may be an HTTP status, true or false, or a
    word: `error`, `fail`, `failed`, `failure`, `invalid` and `rejected` are failures. Words and numbers that mean
    something else are listed in `outcomes`.
    """

    path: str = ""
    """The list of items in the body; empty when the body itself is the list, or NDJSON."""
    index: str | None = None
    status: str | None = None
    id: str | None = "id"
    error: str | None = "error"
    """An item that has something here has failed, unless a status says otherwise; text, or an object with a message."""
    code: str | None = None
    outcomes: Mapping[Any, Outcome] = field(default_factory=dict)
    field: str | None = None
    only_failures: bool = False
    """The list names only the records that failed, by their index."""

    def __post_init__(self) -> None:
        if self.only_failures and self.index is None:
            raise SettingsInvalid("item results that list only failures must say where the index of a record stands")


@dataclass(frozen=True, kw_only=True)
class PagedLookup:
    """How to ask which of several records exist: `PagedLookup(url="/{table}?ids={ids}", items="data", next="next")`.

    `next` is where the answer tells the next page: its address, or a cursor, which is added to the first address as
    `cursor_parameter`. Without `next` a `Link` header is followed. Addresses of another origin are refused.
    """

    url: str
    items: str = ""
    """Where the list of records stands; empty when the answer is the list."""
    id: str | None = None
    """Where the id of a record stands in it; None is the endpoint's `id_field`."""
    next: str | None = None
    cursor_parameter: str = "cursor"
    ids_max: int = 100
    """Ids in one question."""

    def __post_init__(self) -> None:
        if "{ids}" not in self.url:
            raise SettingsInvalid(f"{self.url!r} must say where the ids go: {{ids}}")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One kind of call: where it goes, what it carries, and how its answer is read."""

    url: str
    """Below the target's base; `{table}` and, for one record a call, `{id}` are filled in: `/api/{table}/{id}`."""
    method: str = "POST"
    body: Body = Body.ARRAY
    wrapper: str = "items"
    results: ItemResults | None = None
    """None when a success means every record, and nothing is told of each."""
    id_path: str | None = "id"
    """Where the answer to a single record tells its id."""
    id_field: str | None = None
    """The field that identifies a record."""
    is_atomic: bool = False
    """A call that failed changed nothing."""
    is_idempotent: bool = False
    """The remote may be sent the same batch twice."""
    idempotency_header: str | None = None
    """The header that carries the batch's key. After a lost answer the same batch is sent under the same key, and the
    remote repeats its answer, or does now what it did not do then."""
    lookup: str | PagedLookup | None = None
    """How to find out what became of a create or delete whose answer was lost: a URL to GET one record by `{id}`, or a
    list of those that exist."""
    success: frozenset[int] = SUCCESSES
    error_kinds: Mapping[int, ErrorKind] = field(default_factory=dict)
    """What a status means here, where it differs from HTTP: `{409: ErrorKind.DEADLOCK}`."""
    gone_is_deleted: bool = False
    """A delete of a record that is not there counts as done."""
    width_header: str | None = None
    """The header by which the remote recommends how many calls to make at once."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    records_max: int | None = None
    bytes_max: int | None = None

    def __post_init__(self) -> None:
        asked = self.lookup if isinstance(self.lookup, str) or self.lookup is None else self.lookup.url
        for template in filter(None, (self.url, asked)):
            fields = URL_FIELDS if template is not asked or asked is self.lookup else LOOKUP_FIELDS
            unknown = {name for _, name, _, _ in string.Formatter().parse(template) if name} - fields
            if unknown or template.startswith(("http:", "https:", "//")):
                raise SettingsInvalid(
                    f"{template!r} must be a path below the target's base, with no fields but {{table}} and {{id}}"
                )
        if "{id}" in self.url and not self.is_single:
            raise SettingsInvalid(f"{self.url!r} names one record, so its body must be single, form, multipart or none")

    @property
    def is_single(self) -> bool:
        """Whether a call carries one record."""
        return self.body in SINGLE_BODIES

    @property
    def is_repeatable(self) -> bool:
        """Whether a call that may have taken effect can be made again."""
        return self.is_idempotent or self.idempotency_header is not None

    @property
    def asked_records_max(self) -> int | None:
        """Records that one request can look up; None where the batch is sent again."""
        if self.lookup is None or self.idempotency_header is not None:
            return None
        return 1 if isinstance(self.lookup, str) else self.lookup.ids_max

    def can_reconcile(self, mode: Mode) -> bool:
        """Whether the remote can tell what became of a batch; a GET of its records cannot tell an update from none."""
        can_look_up = self.lookup is not None and mode in (Mode.CREATE, Mode.DELETE)
        return self.idempotency_header is not None or can_look_up
