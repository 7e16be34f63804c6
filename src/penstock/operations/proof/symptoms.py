"""What is wrong with an installation: each check is a pure function from facts to symptoms; `doctor` gets the facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.outbox.model import OutboxHealth
from penstock.services import Symptom

if TYPE_CHECKING:
    from penstock.db.safety import Finding

__all__ = ["CHECKS", "Diagnosis", "Facts", "Health", "OpenOperation", "Symptom", "WorkerFacts", "examine"]

WAL_RESET_FIXED = (3, 51, 3)
WAL_RESET_FIXED_EARLIER = ((3, 44, 6), (3, 50, 7))  # older branches that were mended too
SKEW_MAX_S = 2.0
NAMED_MAX = 5
STUCK = {
    "email": "those that run have no smtp_url",
    "handler": "those that run do not have the handler; remove its subscription if the code is gone for good",
}

Health = Literal["live", "lagging", "dead"]


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker by its record; `lagging` has missed heartbeats, `dead` has lost its lease or its process is gone."""

    id: str
    host: str
    process: int
    state: Health


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """An operation that is not settled, and what of it is stuck."""

    id: str
    name: str
    state: str
    has_file: bool = True
    lost_chunks: int = 0  # owned by a worker that is dead; 1 for a file that was being read
    overdue_chunks: int = 0  # owned by no live worker, and due for a while
    overdue_signals: int = 0  # rows that wait although their signal is here
    overdue_waits: int = 0  # rows that wait although their deadline has passed
    trouble: str | None = None  # why the worker that tried last could not go on
    misfits: tuple[str, ...] = ()  # live workers with other code, and what differs
    is_fitted: bool = False  # a live worker has the code it was planned for
    file_trouble: str | None = None  # why a file that may be there cannot be read here


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the checks look at."""

    database: str = ""
    trouble: str | None = None  # why the database cannot be used at all
    damage: str | None = None  # the same, when that is for good
    version: str = ""
    settings: tuple[Finding, ...] = ()
    revision: str | None = None
    revision_needed: str | None = None
    is_newer: bool = False  # the schema belongs to a later release
    clock_ahead_us: int = 0
    workers: tuple[WorkerFacts, ...] = ()
    locked: tuple[str, ...] = ()  # operations whose secrets this process cannot decrypt
    locked_why: str = ""
    busy_workers: int = 0
    keep: str = ""  # how long what is kept, by the deployment's policy
    held: int = 0  # operations of which nothing may be removed
    overdue_removals: int = 0  # operations of which more is stored than policies say
    operations: tuple[OpenOperation, ...] = ()
    others: tuple[Symptom, ...] = ()  # what other capabilities find by themselves
    outbox: OutboxHealth = field(default_factory=OutboxHealth)
    storage: str = ""
    crowded: tuple[tuple[str, int], ...] = ()  # folders with little room, and the bytes that are free
    storage_fault: str | None = None  # why there is none
    storage_trouble: str | None = None
    late_uploads: int = 0  # not finished in time, and not expired for a while
    left_bytes: int = 0  # blobs that are over for a while, and whose bytes may still be there

    @property
    def has_workers(self) -> bool:
        """Whether a live worker is there."""
        return any(worker.state != "dead" for worker in self.workers)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The facts and every symptom found in them."""

    facts: Facts
    symptoms: tuple[Symptom, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing needs to be done."""
        return not any(symptom.is_problem for symptom in self.symptoms)


class Found(NamedTuple):
    """What a check has found: a symptom but for the name, which is the check's."""

    what: str
    why: str
    remedy: str
    is_problem: bool = True


def examine(facts: Facts) -> Diagnosis:
    """Apply every check."""
    own = (Symptom(check.__name__, *found) for check in CHECKS for found in check(facts))
    return Diagnosis(facts, (*own, *facts.others))


# --- the checks


def database_is_reachable(facts: Facts) -> Iterator[Found]:
    """The database answers."""
    if facts.trouble is not None:
        yield Found(
            facts.trouble, "nothing works without the database",
            "start it, or name another with --db or PENSTOCK_DATABASE_URL",
        )  # fmt: skip


def database_is_intact(facts: Facts) -> Iterator[Found]:
    """The database can be read."""
    if facts.damage is not None:
        yield Found(
            facts.damage, "nothing can be trusted that is read from it, and writing makes it worse",
            "do what the message says; `penstock db check` lists the damage, `penstock verify` judges what was saved",
        )  # fmt: skip


def database_is_durable(facts: Facts) -> Iterator[Found]:
    """The database's version and settings keep what it has confirmed."""
    for finding in facts.settings:
        if not finding.is_ok:
            yield Found(
                str(finding), "the database could lose data that it has committed",
                f"upgrade the database to {finding.right}" if finding.setting == "version"
                else f"set {finding.setting} to {finding.right}",
            )  # fmt: skip


def schema_is_current(facts: Facts) -> Iterator[Found]:
    """The schema is this release's."""
    if facts.revision != facts.revision_needed:
        found = "missing" if facts.revision is None else f"at {facts.revision}"
        yield Found(
            f"the schema is {found}; this release needs {facts.revision_needed}",
            "workers and services of this release refuse to start",
            "upgrade Penstock on this machine" if facts.is_newer else "run `penstock db upgrade`",
        )  # fmt: skip


def has_wal_reset_fault(version: str) -> bool:
    """Whether a release of SQLite can lose commits when a log begins anew during a checkpoint."""
    release = tuple(map(int, re.findall(r"\d+", version)[:3]))
    is_mended = any(release[:2] == branch[:2] and release >= branch for branch in WAL_RESET_FIXED_EARLIER)
    return bool(release) and release < WAL_RESET_FIXED and not is_mended


def sqlite_has_no_known_fault(facts: Facts) -> Iterator[Found]:
    """SQLite has no known fault that several processes could meet."""
    if facts.database == "sqlite" and has_wal_reset_fault(facts.version):
        fixed = ".".join(map(str, WAL_RESET_FIXED))
        yield Found(
            f"this is SQLite {facts.version}, which has the WAL-reset bug (fixed in {fixed})",
            "another program that writes to this file could, very rarely, corrupt it; Penstock's own processes cannot, "
            "because they checkpoint only while they hold the write lock",
            "let only Penstock write to the file, or use a Python with a newer SQLite",
            is_problem=False,
        )


def clocks_agree(facts: Facts) -> Iterator[Found]:
    """This machine's clock and the database's agree."""
    ahead_s = facts.clock_ahead_us / 1e6
    if abs(ahead_s) > SKEW_MAX_S:
        remedy = "synchronise both clocks (NTP)"
        if facts.database == "sqlite":  # its clock is in the file, and only moved forward
            remedy += "; the file's is set forward when it is opened while no worker runs and no operation is open"
        yield Found(
            f"the database's clock is {abs(ahead_s):,.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's",
            "times that are stored and shown are the database's; leases and deadlines are not affected",
            remedy,
        )


def workers_renew_their_leases(facts: Facts) -> Iterator[Found]:
    """Workers renew their leases in time."""
    lagging = [worker for worker in facts.workers if worker.state == "lagging"]
    if lagging:
        yield Found(
            f"{_count(lagging, 'worker')} missed heartbeats: {_named(w.id for w in lagging)}",
            "a worker whose lease runs out loses its rows to another",
            "look at its machine and its connection to the database: overloaded, suspended or cut off",
        )  # fmt: skip
    dead = [worker for worker in facts.workers if worker.state == "dead"]
    if dead:
        yield Found(
            f"{_count(dead, 'worker')} ended without signing off: {_named(w.id for w in dead)}",
            "it was killed, or its machine was; what it held is taken over by any live worker",
            "nothing, if this was expected; live workers remove its record", is_problem=False,
        )  # fmt: skip


def open_operations_have_workers(facts: Facts) -> Iterator[Found]:
    """Where there is work, there is a live worker."""
    waiting = [operation for operation in facts.operations if operation.state != "Paused"]
    if waiting and not facts.has_workers:
        yield Found(
            f"{_count(waiting, 'operation')} with open work, and no live worker: {_ids(waiting)}",
            "these operations make no progress, and their deadlines are not enforced",
            "start one: `penstock worker --app MODULE`",
        )  # fmt: skip


def workers_have_the_code(facts: Facts) -> Iterator[Found]:
    """Live workers know the operations there are."""
    unknown = [each for each in facts.operations if each.overdue_chunks and each.trouble is None and not each.misfits]
    if unknown and facts.has_workers and not facts.busy_workers:
        names = ", ".join(sorted({operation.name for operation in unknown}))
        yield Found(
            f"work of {names} is due, but the live workers are idle: {_ids(unknown)}",
            "no live worker has the code of these operations, so they do not go on",
            "start a worker whose --app holds them",
        )  # fmt: skip


def code_fits_operations(facts: Facts) -> Iterator[Found]:
    """Live workers have the code that operations were planned for."""
    found = [operation for operation in facts.operations if operation.misfits]
    for is_fitted in (False, True):
        if some := [operation for operation in found if operation.is_fitted is is_fitted]:
            listed = _named(dict.fromkeys(text for operation in some for text in operation.misfits))
            yield Found(
                f"{_count(some, 'operation')} left alone by workers with other code: {_ids(some)}: {listed}",
                "other live workers have the code that fits, and go on with it; so it is during a deployment"
                if is_fitted else "no live worker has the code that fits, so nothing of it goes on",
                "keep a worker with the code that fits until these operations have ended, or migrate them: "
                "`penstock ops migrate ID --app MODULE`",
                is_problem=not is_fitted,
            )  # fmt: skip


def no_operation_is_set_aside(facts: Facts) -> Iterator[Found]:
    """Workers can go on with the operations they know."""
    for trouble, found in _grouped(facts.operations, lambda each: None if each.misfits else each.trouble).items():
        yield Found(
            f"{_count(found, 'operation')} set aside by a worker: {trouble}: {_ids(found)}",
            "that worker cannot go on with it and tries again within a minute; no other has gone on with it since",
            "fix what the message names; nothing has to be restarted, unless a worker needs other code",
        )  # fmt: skip


def _grouped(
    found: Iterable[OpenOperation], text_of: Callable[[OpenOperation], str | None]
) -> dict[str, list[OpenOperation]]:
    """Operations by a text about them; those without one are left out."""
    groups: dict[str, list[OpenOperation]] = {}
    for operation in found:
        if (text := text_of(operation)) is not None:
            groups.setdefault(text, []).append(operation)
    return groups


def chunks_have_live_owners(facts: Facts) -> Iterator[Found]:
    """No chunk is owned by a dead worker."""
    lost = [operation for operation in facts.operations if operation.lost_chunks and operation.state != "Paused"]
    if lost:
        number = sum(operation.lost_chunks for operation in lost)
        yield Found(
            f"{number:,} {'chunk is' if number == 1 else 'chunks are'} held by workers that are dead: {_ids(lost)}",
            "their rows make no progress until a live worker takes them over, which takes seconds",
            "run this again in a moment" if facts.has_workers else "start a worker: `penstock worker --app MODULE`",
        )


def signals_are_applied(facts: Facts) -> Iterator[Found]:
    """No row waits for a signal that is here."""
    overdue = [operation for operation in facts.operations if operation.overdue_signals]
    if overdue:
        number = sum(operation.overdue_signals for operation in overdue)
        yield Found(
            f"{number:,} {'row waits' if number == 1 else 'rows wait'} beside a stored signal: {_ids(overdue)}",
            "the signal was accepted but its row does not go on",
            "start a worker that has these operations; it looks for such rows every few seconds",
        )


def waits_end_at_their_deadlines(facts: Facts) -> Iterator[Found]:
    """No row waits past its deadline."""
    late = [operation for operation in facts.operations if operation.overdue_waits]
    if late:
        number = sum(operation.overdue_waits for operation in late)
        yield Found(
            f"{number:,} {'row waits' if number == 1 else 'rows wait'} past the deadline: {_ids(late)}",
            "these rows should have timed out, and their operations cannot end",
            "start a worker that has these operations",
        )


def policies_are_applied(facts: Facts) -> Iterator[Found]:
    """Nothing is stored for longer than policies say."""
    if facts.overdue_removals:
        many = facts.overdue_removals
        yield Found(
            f"{many:,} {'operation is' if many == 1 else 'operations are'} kept for longer than the policies say",
            "workers remove what is due, a little every few seconds; none does, or more is due than they can remove",
            "start a worker, look in its log for why it fails, or run `penstock ops prune`",
        )


def secrets_are_readable(facts: Facts) -> Iterator[Found]:
    """This process has the keys to the secrets that are stored."""
    if facts.locked:
        yield Found(
            f"the secrets of {_count(facts.locked, 'operation')} cannot be decrypted here: {_named(facts.locked)}",
            "a worker with these settings sets such an operation aside, and its failed rows cannot be retried",
            facts.locked_why,
        )


def events_are_told(facts: Facts) -> Iterator[Found]:
    """Webhooks, handlers and e-mails reach who they are for."""
    outbox = facts.outbox
    if outbox.failed:
        yield Found(
            f"{outbox.failed:,} {'delivery was' if outbox.failed == 1 else 'deliveries were'} given up",
            "their receivers were not told of these events",
            "`penstock deliveries list --state Failed` says why; `penstock deliveries resend --failed` tries again",
        )  # fmt: skip
    for channel, number in outbox.stuck:
        yield Found(
            f"{number:,} {'delivery' if number == 1 else 'deliveries'} by {channel} should be sent, and nobody does it",
            "no live worker sends them: " + STUCK.get(channel, "none runs, or httpx is not installed there"),
            "start a worker that can",
        )
    if outbox.disabled:
        yield Found(
            f"{_count(outbox.disabled, 'webhook')} disabled: {_named(outbox.disabled)}",
            "it is told of nothing",
            "`penstock webhooks enable ID` when its receiver is there again, or `penstock webhooks remove ID`",
            is_problem=False,
        )  # fmt: skip
    if outbox.locked:
        yield Found(
            f"the secrets of {_count(outbox.locked, 'webhook')} cannot be decrypted here: "
            f"{_named(outbox.locked)}",
            "a worker with these settings cannot send to it",
            "set PENSTOCK_SECRET_KEY to the key of the process that added it",
        )  # fmt: skip


def storage_is_named(facts: Facts) -> Iterator[Found]:
    """All processes look for files in the same folder."""
    if facts.storage_fault is not None:
        yield Found(
            facts.storage_fault,
            "another process would not find the file that one takes in; so none is taken in, and no worker starts",
            "set PENSTOCK_STORAGE_URL, in every process the same",
        )  # fmt: skip


def storage_is_writable(facts: Facts) -> Iterator[Found]:
    """New files can be stored."""
    if facts.storage_trouble is not None:
        yield Found(
            f"the storage {facts.storage} cannot be written: {facts.storage_trouble}",
            "new files cannot be stored on this machine",
            "make it writable, or name another with PENSTOCK_STORAGE_URL",
        )  # fmt: skip


def disks_have_space(facts: Facts) -> Iterator[Found]:
    """What is written finds room."""
    for folder, free in facts.crowded:
        yield Found(
            f"the disk of {folder} is full, or nearly so: {free:,} bytes are free",
            "nothing is lost, but nothing goes on while it is full",
            "make room; workers go on by themselves",
        )  # fmt: skip


def files_are_there(facts: Facts) -> Iterator[Found]:
    """The files of open operations are where workers look for them."""
    missing = [operation for operation in facts.operations if not operation.has_file]
    if missing:
        yield Found(
            f"{_count(missing, 'open operation')} without a file in {facts.storage}: {_ids(missing)}",
            "a worker that uses this folder fails operations whose files are missing from it",
            "restore the file, or cancel the operation and hand the file in again",
        )  # fmt: skip
    for trouble, found in _grouped(facts.operations, lambda each: each.file_trouble).items():
        yield Found(
            f"the file of {_count(found, 'open operation')} cannot be read here: {trouble}: {_ids(found)}",
            "a worker that uses this folder sets such an operation aside until it can read the file",
            "let all processes share one folder (PENSTOCK_STORAGE_URL), or run this command from where the workers run",
        )  # fmt: skip


def blobs_are_swept(facts: Facts) -> Iterator[Found]:
    """Uploads that nobody finishes expire, and what is over leaves no bytes."""
    if facts.late_uploads:
        yield Found(
            f"{_number(facts.late_uploads, 'upload')} should have expired, and did not",
            "workers expire what nobody finishes; so none has been there for a while",
            "start a worker, or run `penstock blobs sweep`", is_problem=False,
        )  # fmt: skip
    if facts.left_bytes:
        yield Found(
            f"the bytes of {_number(facts.left_bytes, 'rejected or deleted file')} may still be stored",
            "what was deleted must be gone, and could not be removed when that was tried",
            "run `penstock blobs sweep`, and look at what it says",
        )  # fmt: skip


CHECKS: tuple[Callable[[Facts], Iterable[Found]], ...] = (
    database_is_reachable,
    database_is_intact,
    database_is_durable,
    schema_is_current,
    sqlite_has_no_known_fault,
    clocks_agree,
    workers_renew_their_leases,
    open_operations_have_workers,
    workers_have_the_code,
    code_fits_operations,
    no_operation_is_set_aside,
    chunks_have_live_owners,
    signals_are_applied,
    waits_end_at_their_deadlines,
    policies_are_applied,
    secrets_are_readable,
    events_are_told,
    storage_is_named,
    storage_is_writable,
    disks_have_space,
    files_are_there,
    blobs_are_swept,
)


def _count(found: Sequence[object], noun: str) -> str:
    return _number(len(found), noun)


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _ids(found: Sequence[OpenOperation]) -> str:
    return _named(operation.id for operation in found)


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    rest = f" and {len(listed) - NAMED_MAX:,} more" if len(listed) > NAMED_MAX else ""
    return ", ".join(listed[:NAMED_MAX]) + rest
