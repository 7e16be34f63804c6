"""What a remote must offer to be driven by the executor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from penstock.errors import SettingsInvalid
from penstock.targets.model import BulkOptions, Mode, RecordId, Verdict

__all__ = ["Answer", "Batch", "Capabilities", "Reference", "Target", "UniformVerdicts"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One call to a remote; `records` are ids when the mode is delete.

    `key` is the same for every try of the same records, so that a remote can recognise a resend.
    """

    table: str
    mode: Mode
    records: Sequence[Any]
    options: BulkOptions
    key: str
    call_id: str = ""
    indexes: Sequence[int] = ()
    """The places of the records in the input of the bulk call."""

    def __len__(self) -> int:
        return len(self.records)

    def record_key(self, position: int) -> str:
        """A key of one record: the same in every batch that carries it, unlike that of any other record."""
        return f"{self.call_id}/{self.indexes[position]}" if self.indexes else f"{self.key}/{position}"


@dataclass(frozen=True, slots=True)
class UniformVerdicts(Sequence[Verdict]):
    """One outcome for every record of a batch, told once; `ids` are the records' own, when they have any.

    A list of verdicts says the same; this costs nothing per record.
    """

    verdict: Verdict
    length: int
    ids: Sequence[RecordId] | None = None

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, position: int) -> Verdict: ...
    @overload
    def __getitem__(self, position: slice) -> UniformVerdicts: ...
    def __getitem__(self, position: int | slice) -> Verdict | UniformVerdicts:
        found = range(self.length)[position]
        ids = self.ids[position] if self.ids is not None else None
        if isinstance(found, range):
            return UniformVerdicts(self.verdict, len(found), ids)
        return self.verdict if ids is None else Verdict(self.verdict.outcome, ids, self.verdict.error)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a remote said to a batch: a verdict for every record, in the batch's order."""

    verdicts: Sequence[Verdict]
    width_hint: int | None = None
    """How many calls at once the remote now recommends for this source."""
    counts_exact: bool = True
    """Whether `created` and `updated` are what the remote said, not what was there shortly before."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """How a table behaves under one mode."""

    is_atomic: bool = True
    """A failed batch changed nothing; False when the remote answers record by record."""
    is_idempotent: bool = False
    """Sending a batch again after a lost answer leaves the remote as one sending would, and answers the same."""
    can_reconcile: bool = False
    """`reconcile` can say what became of a batch whose answer was lost."""
    records_max: int | None = None
    bytes_max: int | None = None
    id_field: str | None = None
    """The column that identifies a record, required in every record of an update."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A field of a record that refers to another record."""

    field: str
    table: str
    id: RecordId


class Target:
    """A remote that takes batches of records. Only `send` must be written; the rest has sensible answers.

    A *source* is whoever a quota is counted for: a user, a credential, a connection. All of a target's sources reach
    the same tables.
    """

    name: str = "target"
    sources: Sequence[str] = ("default",)
    width: int = 4
    """Calls at once per source while the remote has recommended nothing."""
    width_max: int = 52

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
        if type(options) is not BulkOptions:
            raise SettingsInvalid(f"{self.name} takes BulkOptions, not {type(options).__name__}")

    def identity(self, table: str, mode: Mode, record: Any) -> Hashable | None:
        """What makes two records the same one, so that they are never in flight together; None when nothing does."""
        return None

    def identifier(self, table: str, mode: Mode, options: BulkOptions) -> Callable[[Any], Hashable | None] | None:
        """`identity` for the records of one call, asked after `describe`; None when nothing identifies them."""
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
