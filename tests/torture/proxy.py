"""A TCP proxy before a database server that breaks connections at COMMIT, or lets it or its answer come late.

A driver sends COMMIT by itself and waits for the answer, so it is the end of what was read from the client.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .journal import Cut, FileJournal, How, Journal

__all__ = ["COMMITS", "HOST", "Proxy", "live"]

HOST = "127.0.0.1"
# A simple query of PostgreSQL, a COM_QUERY of MariaDB.
COMMITS = {"postgresql": b"Q\x00\x00\x00\x0bCOMMIT\x00", "mariadb": b"\x07\x00\x00\x00\x03COMMIT"}
READ_BYTES = 1 << 18
SHARE = 0.15  # of all COMMITs
LATE_S = 3.0
ANSWER_S = 10.0
HOWS: tuple[How, ...] = ("unsent", "unanswered", "late", "late", "late", "slow")


def live(given: Mapping[str, Any]) -> None:
    """The life of a proxy, until SIGTERM: `given` names its journal, its port, and the kind and port of the server."""
    journal = FileJournal(Path(given["folder"]), given["who"])
    proxy = Proxy(journal, COMMITS[given["kind"]], given["server_port"], random.Random(given["seed"]))
    asyncio.run(_serve(proxy, given["port"]))


async def _serve(proxy: Proxy, port: int) -> None:
    await (await proxy.listen(port)).serve_forever()


class Proxy:
    """Takes connections and passes them on, each with its own luck."""

    def __init__(
        self,
        journal: Journal,
        commit: bytes,
        server_port: int,
        rng: random.Random,
        *,
        share: float = SHARE,
        hows: Sequence[How] = HOWS,
    ) -> None:
        self._journal, self._commit, self._server_port, self._rng = journal, commit, server_port, rng
        self._share, self._hows = share, hows

    async def listen(self, port: int) -> asyncio.Server:
        """Begin to take connections."""
        return await asyncio.start_server(self._connect, HOST, port)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs = await asyncio.open_connection(HOST, self._server_port)
        except OSError:  # the server is away, and so are we
            writer.transport.abort()
            return
        may_answer = asyncio.Event()
        may_answer.set()
        answers = asyncio.create_task(_answer(theirs[0], writer, may_answer))
        try:
            while data := await reader.read(READ_BYTES):
                if data.endswith(self._commit) and self._rng.random() < self._share:
                    how = self._rng.choice(self._hows)
                    self._journal.write(Cut(self._journal.moment(), self._journal.who, how))
                    if how != "slow":
                        await self._cut(how, data, answers, writer, theirs[1])
                        return
                    may_answer.clear()
                    asyncio.get_running_loop().call_later(self._late_s(), may_answer.set)
                theirs[1].write(data)
                await theirs[1].drain()
        except OSError:
            pass
        finally:
            answers.cancel()
            theirs[1].transport.abort()
            writer.transport.abort()

    async def _cut(
        self,
        how: How,
        data: bytes,
        answers: asyncio.Task[None],
        client: asyncio.StreamWriter,
        server: asyncio.StreamWriter,
    ) -> None:
        """Leave the client without an answer; unless it was `unsent`, the server gets its COMMIT, now or late."""
        if how == "unsent":
            return
        if how == "unanswered":
            server.write(data)
        client.transport.abort()
        if how == "late":
            await asyncio.sleep(self._late_s())
            server.write(data)
        await server.drain()
        # The answer finds nobody; by then the COMMIT is done.
        await asyncio.wait([answers], timeout=ANSWER_S)

    def _late_s(self) -> float:
        return self._rng.random() * self._rng.choice((0.2, LATE_S))


async def _answer(reader: asyncio.StreamReader, client: asyncio.StreamWriter, may_answer: asyncio.Event) -> None:
    """Pass on what the server says, when it may be heard, until one of them is gone."""
    try:
        while data := await reader.read(READ_BYTES):
            await may_answer.wait()
            if client.is_closing():
                return
            client.write(data)
            await client.drain()
    except OSError:
        pass
    finally:
        client.transport.abort()
