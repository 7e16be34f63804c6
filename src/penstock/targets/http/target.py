"""A remote behind a plain HTTP interface, described by its endpoints."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin

from penstock.clock import Clock, SystemClock, from_micros
from penstock.errors import SettingsInvalid
from penstock.targets.http.answers import GONE, at_path, decoded, read_answer
from penstock.targets.http.auth import Auth, StaticHeaders
from penstock.targets.http.client import HttpClient, checked_base, new_client
from penstock.targets.http.endpoint import Endpoint, PagedLookup
from penstock.targets.http.error_mapping import Reply, refusal, width_hint
from penstock.targets.http.open_calls import OpenCalls
from penstock.targets.http.rate_limits import retry_after_s
from penstock.targets.http.request_body import ENCODER, content_type, encoded, filled, id_of
from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.rules.limits import RateLimit
from penstock.targets.target import Answer, Batch, Capabilities, Target

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpTarget"]

TIMEOUT_S = 120.0
CONFLICT = 409
PAGES_MAX = 1000
ADDRESS = re.compile(r"https?:|/|\?")
NEXT_LINK = re.compile(r'<([^>]+)>\s*;[^,]*\brel="?next\b')


class HttpTarget(Target):
    """Sends batches to the endpoints of an HTTP interface.

    `endpoints` maps a mode, or a table and a mode, to an `Endpoint`; the more specific one wins. `auth` is one
    credential or one for each source. Redirects are followed only within the base's origin, cookies are dropped, and
    credentials appear in no error.
    """

    def __init__(
        self,
        base_url: str,
        endpoints: Mapping[Mode | tuple[str, Mode], Endpoint],
        *,
        auth: Auth | Mapping[str, Auth] | None = None,
        name: str = "http",
        width: int = 4,
        width_max: int = 52,
        rate_limit: RateLimit | None = None,
        timeout_s: float = TIMEOUT_S,
        allow_plain_http: bool = False,
        clock: Clock | None = None,
        client: Callable[[], httpx.AsyncClient] | None = None,
    ) -> None:
        auths = auth if isinstance(auth, Mapping) else {"default": auth or StaticHeaders({})}
        if not auths or not endpoints:
            raise SettingsInvalid("an HTTP target needs at least one endpoint and, if it names sources, one of them")
        for key, endpoint in endpoints.items():
            if endpoint.lookup and not endpoint.id_field and (key[1] if isinstance(key, tuple) else key) == Mode.CREATE:
                raise SettingsInvalid(f"{endpoint.url!r} must say by which id_field created records are looked up")
        self.name = name
        self.sources = tuple(auths)
        self.width, self.width_max, self.rate_limit = width, width_max, rate_limit
        self._auths = auths
        self._endpoints = endpoints
        self._open = OpenCalls()
        self._clock = clock or SystemClock()
        base = checked_base(base_url, has_credentials=auth is not None, allow_plain_http=allow_plain_http)
        self.quota = base
        self._http = HttpClient(base, self._proof, timeout_s=timeout_s, client=client or new_client)

    async def send(self, batch: Batch, source: str) -> Answer:
        try:
            answer = await self._send(batch, source)
        except BaseException as error:
            self._open.failed(batch, error)
            raise
        self._open.answered(batch, answer)
        return answer

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        endpoint = self._endpoint(table, mode)
        return Capabilities(
            is_atomic=endpoint.is_atomic,
            is_idempotent=endpoint.is_idempotent,
            can_reconcile=endpoint.can_reconcile(mode),
            asked_records_max=endpoint.asked_records_max,
            records_max=1 if endpoint.is_single else endpoint.records_max,
            bytes_max=endpoint.bytes_max,
            id_field=endpoint.id_field,
        )

    async def reconcile(self, batch: Batch, source: str) -> Sequence[Verdict | None]:
        """Ask what became of a batch: by sending it again under its key, or by looking its records up."""
        endpoint = self._endpoint(batch.table, batch.mode)
        if endpoint.idempotency_header is None:
            return await self._looked_up(batch, endpoint, source)
        if batch not in self._open:
            return [None] * len(batch)
        try:
            return (await self.send(batch, source)).verdicts
        except TargetError as error:
            # What the remote judges and refuses as a whole, it did not do before.
            if endpoint.is_atomic and error.kind is ErrorKind.DATA:
                return [None] * len(batch)
            raise

    async def refresh(self, source: str) -> None:
        self._auths[source].refuse()

    def identity(self, table: str, mode: Mode, record: Any) -> Hashable | None:
        endpoint = self._declared(table, mode)
        found = record if mode is Mode.DELETE else endpoint and id_of(record, mode, endpoint)
        return found if isinstance(found, Hashable) else repr(found)

    def size(self, record: Any) -> int:
        try:
            return len(ENCODER.encode(record)) + 1
        except (TypeError, ValueError, OverflowError):
            return 0  # sending it will say what is wrong

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _proof(self, source: str, client: httpx.AsyncClient) -> Mapping[str, str]:
        return await self._auths[source].headers(client, self._clock)

    def _declared(self, table: str, mode: Mode) -> Endpoint | None:
        return self._endpoints.get((table, mode)) or self._endpoints.get(mode)

    def _endpoint(self, table: str, mode: Mode) -> Endpoint:
        found = self._declared(table, mode)
        if found is None:
            raise TargetError(f"{self.name} has no endpoint to {mode} records of {table!r}", kind=ErrorKind.UNSUPPORTED)
        return found

    async def _send(self, batch: Batch, source: str) -> Answer:
        endpoint = self._endpoint(batch.table, batch.mode)
        if endpoint.is_single and len(batch) > 1:
            call = _shown(endpoint.method, endpoint.url)
            raise TargetError(f"{call} takes one record a call, not {len(batch)}", kind=ErrorKind.TOO_BIG)
        path = filled(endpoint.url, batch.table, id_of(batch.records[0], batch.mode, endpoint))
        content = encoded(batch, endpoint)
        headers = {"Accept": "application/json", **endpoint.headers}
        if content is not None:
            headers["Content-Type"] = content_type(batch, endpoint)
        if endpoint.idempotency_header:
            headers[endpoint.idempotency_header] = batch.key
        reply = _read(await self._http.call(source, endpoint.method, path, content=content, headers=headers))
        call = _shown(endpoint.method, path)
        wait_s = retry_after_s(reply.headers, self._now()) if "retry-after" in reply.headers else None
        # Under its key a call is answered as if it were the first.
        lost_deletes = frozenset[int]() if endpoint.idempotency_header else self._open.lost_deletes(batch)
        is_delete = batch.mode is Mode.DELETE and endpoint.is_single
        if is_delete and (endpoint.gone_is_deleted or lost_deletes) and reply.status in GONE:
            return Answer([Verdict(Outcome.DELETED)])
        if reply.status == CONFLICT and batch in self._open and endpoint.idempotency_header:
            raise TargetError(
                f"{call} answered {CONFLICT}: it still works on the first call with this key",
                kind=ErrorKind.CONNECTION,
                code=str(CONFLICT),
                retry_after_s=wait_s,
                maybe_applied=True,
            )
        if reply.status not in endpoint.success:
            raise refusal(reply, endpoint, call=call, now=self._now(), records=len(batch))
        hint = width_hint(reply.headers, endpoint.width_header)
        return read_answer(batch, endpoint, reply.status, reply.body, hint, lost_deletes=lost_deletes, wait_s=wait_s)

    async def _looked_up(self, batch: Batch, endpoint: Endpoint, source: str) -> Sequence[Verdict | None]:
        """What the records that exist prove: created ones are among them, deleted ones are not.

        A record that is there although the remote refused its call may be older, and is unknown.
        """
        ids = [id_of(record, batch.mode, endpoint) for record in batch.records]
        if isinstance(endpoint.lookup, PagedLookup):
            if None in ids:
                raise TargetError("a record without an id cannot be looked up", kind=ErrorKind.DATA, code="MissingId")
            path = self._http.address(filled(endpoint.lookup.url, batch.table))
            path = path.replace("{ids}", ",".join(quote(str(one), safe="") for one in ids))
            lookup = replace(endpoint.lookup, id=endpoint.lookup.id or endpoint.id_field or "id")
            there = await _all_pages(lookup, path, lambda page: self._got(page, endpoint, source))
            is_there = [str(one) in there for one in ids]
        else:
            assert endpoint.lookup is not None
            paths = [filled(endpoint.lookup, batch.table, one) for one in ids]
            is_there = [200 <= (await self._got(path, endpoint, source, GONE)).status < 300 for path in paths]
        if batch.mode is Mode.DELETE:
            return [None if there else Verdict(Outcome.DELETED, one) for one, there in zip(ids, is_there, strict=True)]
        self._open.absent(batch, [at for at, there in enumerate(is_there) if not there])
        return [self._found(batch, at, ids[at]) if there else None for at, there in enumerate(is_there)]

    def _found(self, batch: Batch, position: int, identifier: Any) -> Verdict:
        """What it says of a record that was to be created that it is there."""
        refusal = self._open.doubt(batch, position)
        if refusal is None:
            return Verdict(Outcome.CREATED, identifier)
        message = f"{refusal.message}; a record of this id is there, perhaps from before"
        return Verdict(Outcome.UNKNOWN, error=refusal.but(message=message))

    async def _got(self, path: str, endpoint: Endpoint, source: str, also: frozenset[int] = frozenset()) -> Reply:
        """What a GET was answered, if with success or one of `also`."""
        headers = {"Accept": "application/json", **endpoint.headers}
        reply = _read(await self._http.call(source, "GET", path, headers=headers, is_write=False))
        if not 200 <= reply.status < 300 and reply.status not in also:
            raise refusal(reply, endpoint, call=_shown("GET", path), now=self._now(), is_write=False)
        return reply

    def _now(self) -> datetime:
        return from_micros(self._clock.now_us())


def _read(response: httpx.Response) -> Reply:
    return Reply(response.status_code, response.headers, decoded(response.content))


def _shown(method: str, path: str) -> str:
    """A call without its query, which may hold a key."""
    return f"{method} {path.partition('?')[0]}"


async def _all_pages(lookup: PagedLookup, first: str, get: Callable[[str], Awaitable[Reply]]) -> set[str]:
    found: set[str] = set()
    path, read = first, {first}
    for _ in range(PAGES_MAX):
        reply = await get(path)
        items = at_path(reply.body, lookup.items)
        if not isinstance(items, list):
            raise TargetError("the question which records exist was answered without a list", kind=ErrorKind.CONNECTION)
        told = [at_path(item, lookup.id) for item in items]
        if None in told:
            raise TargetError(f"the question which records exist was answered with records without {lookup.id!r}")
        found |= set(map(str, told))
        following = _next_page(lookup, first, path, reply)
        if following is None:
            return found
        if following in read:
            raise TargetError(f"{_shown('GET', path)} names a next page that was already read")
        read.add(following)
        path = following
    raise TargetError(f"the question which records exist has more than {PAGES_MAX} pages", kind=ErrorKind.OTHER)


def _next_page(lookup: PagedLookup, first: str, path: str, reply: Reply) -> str | None:
    if lookup.next is None:
        link = NEXT_LINK.search(reply.headers.get("link", ""))
        return urljoin(path, link[1]) if link else None
    told = at_path(reply.body, lookup.next)
    if not told:
        return None
    if ADDRESS.match(str(told)):
        return urljoin(path, str(told))
    mark = "&" if "?" in first else "?"
    return f"{first}{mark}{lookup.cursor_parameter}={quote(str(told), safe='')}"
