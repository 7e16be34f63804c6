"""The pool of connections: what is used again, what is thrown away, and a server with room for few."""

from __future__ import annotations

import asyncio

import pytest
from scripted import in_virtual_time

from penstock.targets.model import ErrorKind, Limit, TargetError
from penstock.targets.sql.connections import RETRY_S, ConnectionPool


class Line:
    """A connection that remembers whether it was dropped."""

    is_open = True

    def drop(self) -> None:
        self.is_open = False


def lines(limit: int) -> tuple[ConnectionPool[Line], list[Line]]:
    made: list[Line] = []

    async def connect() -> Line:
        made.append(Line())
        return made[-1]

    async def close(line: Line) -> None:
        line.drop()

    return ConnectionPool(limit, connect=connect, close=close, drop=Line.drop, is_alive=lambda line: line.is_open), made


async def test_a_connection_is_used_again_after_success_and_after_a_refusal():
    pool, made = lines(2)
    async with pool.take():
        pass
    with pytest.raises(TargetError):
        async with pool.take():
            raise TargetError("no")
    async with pool.take():
        assert len(made) == 1


async def test_a_connection_is_dropped_when_its_use_broke_off():
    pool, made = lines(2)
    with pytest.raises(ZeroDivisionError):
        async with pool.take():
            raise ZeroDivisionError
    async with pool.take() as second:
        assert second is made[1]
    assert [line.is_open for line in made] == [False, True]


async def test_a_discarded_connection_is_not_used_again():
    pool, made = lines(2)
    async with pool.take() as first:
        pool.discard(first)
    async with pool.take() as second:
        assert second is not first
    assert [line.is_open for line in made] == [False, True]


async def test_connections_in_use_when_all_are_dropped_are_dropped_when_given_back():
    pool, made = lines(2)
    async with pool.take() as first:
        pool.drop_all()
        assert first.is_open
    assert not first.is_open
    async with pool.take():
        assert len(made) == 2


async def test_a_connection_the_server_closed_is_replaced():
    pool, made = lines(2)
    async with pool.take() as first:
        pass
    first.is_open = False
    async with pool.take() as second:
        assert second is made[1]


class Server:
    """A server with room for some connections, and a pool that wants more of them."""

    def __init__(self, *, room: int, connections: int) -> None:
        self.room, self.asked, self.most_in_use = room, 0, 0
        self._in_use = 0
        self.open: set[Line] = set()
        self.pool = ConnectionPool(
            connections,
            connect=self._connect,
            close=self._close,
            drop=self.open.discard,
            is_alive=self.open.__contains__,
        )

    async def _connect(self) -> Line:
        await asyncio.sleep(0)
        self.asked += 1
        if len(self.open) >= self.room:
            raise TargetError("no room", kind=ErrorKind.THROTTLED, limit=Limit.CONCURRENCY)
        self.open.add(line := Line())
        return line

    async def _close(self, line: Line) -> None:
        self.open.discard(line)

    async def use(self, seconds: float = 1) -> None:
        """Take a connection for a while."""
        async with self.pool.take():
            self._in_use += 1
            self.most_in_use = max(self.most_in_use, self._in_use)
            await asyncio.sleep(seconds)
            self._in_use -= 1

    async def use_many(self, count: int) -> int:
        """Take as many connections as there are to be had, and say how many were in use at once."""
        self.most_in_use = 0
        await asyncio.gather(*(self.use() for _ in range(count)))
        return self.most_in_use


@in_virtual_time
async def test_as_many_connections_are_used_as_the_server_has_room_for():
    server = Server(room=2, connections=4)
    assert await server.use_many(12) == 2
    assert server.asked == 4
    assert await server.use_many(12) == 2
    assert server.asked == 4, "those that were refused are left alone for now"


@in_virtual_time
async def test_connections_that_were_refused_are_tried_again_one_by_one_after_a_while():
    server = Server(room=1, connections=3)
    await server.use_many(3)
    server.room = 3
    await asyncio.sleep(RETRY_S - 10)
    assert await server.use_many(3) == 1
    await asyncio.sleep(10)
    assert [await server.use_many(2) for _ in range(2)] == [1, 2]
    assert [await server.use_many(9) for _ in range(2)] == [3, 3]


@in_virtual_time
async def test_a_connection_that_was_refused_is_tried_again_once_none_is_left():
    server = Server(room=1, connections=2)
    await server.use_many(2)
    server.room = 2
    async with server.pool.take() as last:
        server.pool.discard(last)
    assert await server.use_many(4) == 2


@in_virtual_time
async def test_a_server_without_room_for_one_connection_says_so_each_time():
    server = Server(room=0, connections=2)
    for _ in range(3):
        with pytest.raises(TargetError, match="no room"):
            await server.use()
    server.room = 2
    assert await server.use_many(4) == 2


@in_virtual_time
async def test_a_call_cancelled_while_the_server_has_no_room_leaves_the_pool_as_wide_as_it_was():
    server = Server(room=1, connections=2)
    first = asyncio.ensure_future(server.use(2 * RETRY_S))
    second = asyncio.ensure_future(server.use())
    await asyncio.sleep(1)
    assert server.asked == 2
    second.cancel()
    await first
    assert second.cancelled()
    server.room = 9
    assert await server.use_many(9) == 2
