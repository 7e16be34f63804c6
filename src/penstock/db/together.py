"""Single statements that come at once share a commit, where a commit costs more than many statements: on SQLite.

Whoever finds the way free takes along all that wait. None pays for another: what the database refuses is refused to its
own caller, and the rest is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sqlalchemy.exc import IntegrityError

from penstock.db.connection import Connection
from penstock.db.prepared import Answer, Statement, Values
from penstock.failpoints import hit

__all__ = ["Together"]

T = TypeVar("T")

STATEMENTS_MAX = 200  # in one transaction


class _Transaction(Protocol):
    async def __call__(self, work: Callable[[Connection], Awaitable[T]], point: str) -> T: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    statement: Statement
    values: Values
    point: str
    answer: Answer | Exception | None = None


class Together:
    """Statements on their way into one database."""

    def __init__(self, transaction: _Transaction) -> None:
        self._transaction = transaction
        self._waiting: list[_Waiting] = []
        self._turn = asyncio.Lock()

    async def send(self, statement: Statement, values: Values, point: str) -> Answer:
        """The answer to a statement, when it is committed.

        A call that is cancelled before anybody has begun with its statement takes it back.
        """
        own = _Waiting(statement, values, point)
        self._waiting.append(own)
        try:
            async with self._turn:
                if own.answer is None:  # nobody took it along
                    await self._commit(own)
        finally:
            if own.answer is None:
                self._waiting = [other for other in self._waiting if other is not own]
        if isinstance(own.answer, Exception):
            raise own.answer
        assert own.answer is not None
        return own.answer

    async def _commit(self, own: _Waiting) -> None:
        """Send our own statement and those that have waited longest, and commit them."""
        others = [other for other in self._waiting if other is not own]
        batch, self._waiting = [own, *others[: STATEMENTS_MAX - 1]], others[STATEMENTS_MAX - 1 :]
        try:
            answers = await self._transaction(lambda tx: _sent(tx, batch), own.point)
        except Exception as error:
            for each in batch:
                each.answer = error
        except BaseException:
            self._waiting[:0] = batch[1:]  # we are cancelled, and nothing has happened: the next takes them along
            raise
        else:
            for each, answer in zip(batch, answers, strict=True):
                each.answer = answer
            for point in {each.point for each in batch[1:]} - {own.point}:
                hit(f"{point}:after")


async def _sent(tx: Connection, batch: list[_Waiting]) -> list[Answer | Exception]:
    answers: list[Answer | Exception] = []
    for each in batch:
        try:
            answers.append(await tx.send(each.statement, each.values))
        except IntegrityError as error:  # SQLite undoes the one statement, not the transaction
            answers.append(error)
    for point in {each.point for each in batch[1:]} - {batch[0].point}:
        hit(f"{point}:before")
    return answers
