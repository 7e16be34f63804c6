"""What a remote must offer to be driven by the executor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.errors import SettingsInvalid
from penstock.targets.model import Answer, Batch, BulkOptions, Capabilities, Mode, Reference, Verdict
from penstock.targets.verdicts import UniformVerdicts

if TYPE_CHECKING:
    from penstock.targets.executor import BulkCall
    from penstock.targets.pool import Pool
    from penstock.targets.progress import Report
    from penstock.targets.results import BulkResult
    from penstock.targets.rules.limits import RateLimit
    from penstock.targets.running.input import Records

__all__ = [
    "Answer",
    "Batch",
    "BulkMethods",
    "Capabilities",
    "RecentBatches",
    "Reference",
    "RequestCounter",
    "Target",
    "UniformVerdicts",
    "count_request",
]


class BulkMethods:
    """Create, update, upsert and delete many records.

    Options are laid over those of the executor: an options object, or single options by name, as `key="id"`.
    """

    start: Callable[..., BulkCall]
    """Start a bulk call and return at once; see `BulkExecutor.start`."""

    async def create_multiple(
        self, table: str, records: Records, options: BulkOptions | None = None, progress: Report = None, **changes: Any
    ) -> BulkResult:
        """Create records; the result has their ids in the order of the input."""
        return await self.start(Mode.CREATE, table, records, options, progress, **changes)

    async def update_multiple(
        self, table: str, records: Records, options: BulkOptions | None = None, progress: Report = None, **changes: Any
    ) -> BulkResult:
        """Change existing records; every record carries its id."""
        return await self.start(Mode.UPDATE, table, records, options, progress, **changes)

    async def upsert_multiple(
        self, table: str, records: Records, options: BulkOptions | None = None, progress: Report = None, **changes: Any
    ) -> BulkResult:
        """Change the records that exist and create the others; the result counts both."""
        return await self.start(Mode.UPSERT, table, records, options, progress, **changes)

    async def delete_multiple(
        self, table: str, ids: Records, options: BulkOptions | None = None, progress: Report = None, **changes: Any
    ) -> BulkResult:
        """Delete the records with these ids."""
        return await self.start(Mode.DELETE, table, ids, options, progress, **changes)


class Target(BulkMethods):
    """A remote that takes batches of records. Only `send` must be written; the rest has sensible answers.

    `async with` closes it. Bulk calls can be made on it directly: all of them share one pool of slots.

    A *source* is whoever a quota is counted for: a user, a credential, a connection. All of a target's sources reach
    the same tables.
    """

    name: str = "target"
    sources: Sequence[str] = ("default",)
    width: int = 4
    """Calls at once per source while the remote has recommended nothing."""
    width_max: int = 52
    quota: str | None = None
    """What counts calls per source; processes that share a Penstock database share it. None when nothing is counted."""
    rate_limit: RateLimit | None = None
    """What the remote is known to permit each source; None learns it from throttles."""
    batch_size: int = 100
    """Records in a batch when a call does not say."""
    options_type: type[BulkOptions] = BulkOptions
    """The options it takes; the general ones are taken everywhere."""
    slot_pool: Pool | None = None
    """What executors of this target share unless they are given a pool of their own."""

    def start(
        self,
        mode: Mode,
        table: str,
        records: Records,
        options: BulkOptions | None = None,
        progress: Report = None,
        **changes: Any,
    ) -> BulkCall:
        """Start a bulk call; see `BulkExecutor.start`."""
        from penstock.targets.executor import BulkExecutor

        return BulkExecutor(self).start(mode, table, records, options, progress, **changes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def send(self, batch: Batch, source: str) -> Answer:
        """Send one batch as one call; raise `TargetError` when it failed as a whole. Never retries."""
        raise NotImplementedError(f"{type(self).__name__} must say how a batch is sent")

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        """How this table behaves; asked once per bulk call. Raise `TargetError` when the table cannot take it."""
        return Capabilities()

    async def reconcile(self, batch: Batch, source: str) -> Sequence[Verdict | None]:
        """Ask what became of a batch whose answer was lost; None for a record that was not applied."""
        raise NotImplementedError(f"{type(self).__name__} says it can reconcile but does not")

    async def send_each(self, batch: Batch, source: str) -> Answer:
        """Send the records of a small batch so that each gets its own verdict; used to isolate bad records."""
        raise NotImplementedError

    @property
    def can_send_each(self) -> bool:
        """Whether `send_each` is worth calling."""
        return type(self).send_each is not Target.send_each

    async def refresh(self, source: str) -> None:
        """Drop the source's token or connections: they were refused or broke."""

    def check_options(self, options: BulkOptions) -> None:
        """Refuse options that mean nothing here."""
        if type(options) not in (BulkOptions, self.options_type):
            taken = " or ".join(dict.fromkeys(("BulkOptions", self.options_type.__name__)))
            raise SettingsInvalid(f"{self.name} takes {taken}, not {type(options).__name__}")

    def identity(self, table: str, mode: Mode, record: Any) -> Hashable | None:
        """What makes two records the same one, so that they are never in flight together; None when nothing does."""
        return None

    def identifier(self, table: str, mode: Mode, options: BulkOptions) -> Callable[[Any], Hashable | None] | None:
        """`identity` for the records of one call, asked after `describe`; None when nothing identifies them.

        A target whose options say what identifies a record has this instead of `identity`. What it returns may have a
        method `of_all`, which gives the keys of many records at once.
        """
        if type(self).identity is Target.identity:
            return None
        return lambda record: self.identity(table, mode, record)

    def references(self, table: str, record: Any, options: BulkOptions) -> Iterable[Reference]:
        """The other records that a record refers to."""
        for field, referred in options.references.items():
            if record.get(field) is not None:
                yield Reference(field, referred, record[field])

    def size(self, record: Any) -> int:
        """Roughly the bytes a record takes on the wire; 0 when it does not matter."""
        return 0

    async def aclose(self) -> None:
        """Let go of connections."""


class RequestCounter:
    """The requests of one bulk call; tasks that are started after `begin` count here."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self) -> None:
        """Count what this task, and those it starts, send."""
        _current.set(self)


_current: ContextVar[RequestCounter | None] = ContextVar("penstock_requests", default=None)


def count_request() -> None:
    """A target is about to send a request, of whatever kind."""
    counter = _current.get()
    if counter is not None:
        counter.count += 1


T = TypeVar("T")


class RecentBatches(dict[str, T]):
    """Something about batches, by their keys; the oldest are forgotten beyond `limit`.

    So many are not in flight at once: the callers of the oldest have given them up.
    """

    def __init__(self, limit: int = 1000) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, batch_key: str, known: T) -> None:
        super().__setitem__(batch_key, known)
        if len(self) > self._limit:
            del self[next(iter(self))]
