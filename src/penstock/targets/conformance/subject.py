"""A target on trial, and what a check is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeAlias

from penstock.targets.model import BulkOptions, Mode, Outcome, Record, RecordId, Verdict
from penstock.targets.target import Answer, Batch, Capabilities, Target

__all__ = ["CHECKS", "Check", "Loss", "Nonconformity", "Subject", "check", "expect", "outcomes"]


Loss: TypeAlias = Literal["applied", "never", "late"]


class Nonconformity(AssertionError):
    """A target does not do what the contract says."""


@dataclass(frozen=True)
class Subject:
    """A target and an empty table to try it on."""

    target: Target
    table: str
    make_record: Callable[[int], dict[str, Any]]
    """The nth record, key included; other n, other key."""
    change: Callable[[Record], dict[str, Any]]
    """The same record with other contents."""
    id_of: Callable[[Record], RecordId]
    read_back: Callable[[], Awaitable[Mapping[RecordId, Record]]]
    """What the table now holds, by id."""
    spoil: Callable[[Record], dict[str, Any]] | None = None
    """The same record so that the table refuses it."""
    lose: Callable[[Loss], None] | None = None
    """Lose the answer to the next call that writes: it took effect (`applied`), it did not (`never`), or it does so
    when another call has come in (`late`). None where no answer can be lost, or not on purpose."""
    modes: frozenset[Mode] = frozenset(Mode)
    options: BulkOptions = field(default_factory=BulkOptions)
    keys: count[int] = field(default_factory=count)

    def batch(self, mode: Mode, records: Sequence[Any]) -> Batch:
        """A batch of its own."""
        return Batch(self.table, mode, records, self.options, f"conformance-{next(self.keys)}")

    async def capabilities(self, mode: Mode) -> Capabilities:
        """How the table behaves."""
        return await self.target.describe(self.table, mode, self.options, self.target.sources[0])

    async def send(self, mode: Mode, records: Sequence[Any]) -> Answer:
        """Describe and send, as the executor does."""
        await self.capabilities(mode)
        answer = await self.target.send(self.batch(mode, records), self.target.sources[0])
        expect(len(answer.verdicts) == len(records), f"{len(records)} records got {len(answer.verdicts)} verdicts")
        return answer

    def lose_next(self, loss: Loss) -> None:
        """Lose the answer to the next call that writes."""
        assert self.lose is not None
        self.lose(loss)

    def records(self, number: int) -> list[dict[str, Any]]:
        """Records not in key order."""
        return [self.make_record(n) for n in sorted(range(number), key=lambda n: (n * 7) % 10)]

    async def expect_held(self, records: Sequence[Record]) -> None:
        """Compare the whole table with these records."""
        found = await self.read_back()
        expect(set(found) == {self.id_of(r) for r in records}, f"the table holds {sorted(map(str, found))}")
        for record in records:
            held = found[self.id_of(record)]
            wrong = {name: held.get(name) for name, value in record.items() if held.get(name) != value}
            expect(not wrong, f"record {self.id_of(record)!r} was sent as {record} but the table holds {wrong}")


Rule: TypeAlias = Callable[[Subject], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """One rule of the contract."""

    sentence: str
    run: Rule
    modes: frozenset[Mode]
    needs_loss: bool = False

    async def __call__(self, subject: Subject) -> None:
        if self.modes <= subject.modes and (subject.lose is not None or not self.needs_loss):
            await self.run(subject)

    def __str__(self) -> str:
        return self.sentence.replace(" ", "-")


CHECKS: list[Check] = []
"""All of them, in the order in which they are written."""


def check(*modes: Mode, needs_loss: bool = False) -> Callable[[Rule], Rule]:
    """Register a check, named like its function, that needs a target with these modes and perhaps lost answers."""

    def register(run: Rule) -> Rule:
        CHECKS.append(Check(run.__name__.replace("_", " "), run, frozenset(modes), needs_loss))
        return run

    return register


def expect(claim: bool, otherwise: str) -> None:
    """Raise `Nonconformity` unless the claim holds."""
    if not claim:
        raise Nonconformity(otherwise)


def outcomes(verdicts: Sequence[Verdict | None]) -> list[Outcome | None]:
    """Only the outcomes, to compare and to show."""
    return [verdict.outcome if verdict else None for verdict in verdicts]
