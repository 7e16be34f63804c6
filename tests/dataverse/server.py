"""A remote that speaks the Dataverse Web API on the loopback address, over http and https."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType

import h11

from penstock.clock import Clock, SystemClock

from .certificate import server_context
from .credentials import AsyncCredential, Credential
from .faults import Faults
from .ledger import Ledger
from .limits import Pace, Quota
from .service import Service
from .store import Row
from .tables import Table
from .wire import HEADERS_BYTES_MAX, Lost, receive, send

__all__ = ["DataverseServer"]

BODY_BYTES_MAX = 128 * 1024 * 1024
HANG_UP_S = 1
HARD_CLOSE = struct.pack("ii", 1, 0)


class DataverseServer:
    """The remote; enter it to start it, leave it to stop it.

    `users` are the application users and their quotas. Time comes from `clock`, so that windows and tokens can be
    moved through by hand. `pace` says what work costs; it is counted against the execution time, and waited for only
    when `sleep` is given. An error of the server's own surfaces when it is left.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        users: Mapping[str, Quota] | None = None,
        *,
        port: int = 0,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
        pace: Pace | None = None,
        web_servers: int = 1,
        token_life_s: float = 3600,
        body_bytes_max: int = BODY_BYTES_MAX,
        runs_jobs_at_once: bool = True,
    ) -> None:
        self._service = Service(
            tables,
            users or {"app-1": Quota()},
            clock=clock or SystemClock(),
            sleep=sleep,
            pace=pace or Pace(),
            web_servers=web_servers,
            token_life_s=token_life_s,
            body_bytes_max=body_bytes_max,
            runs_jobs_at_once=runs_jobs_at_once,
        )
        self._port = port
        self._exits = AsyncExitStack()
        self._connections: set[asyncio.Task[None]] = set()
        self._crashes: list[Exception] = []
        self.url = ""
        self.secure_url = ""
        self.certificate = Path()
        """The file to trust for `secure_url`, as REQUESTS_CA_BUNDLE or to an ssl context."""

    @property
    def ledger(self) -> Ledger:
        """What really happened."""
        return self._service.ledger

    @property
    def faults(self) -> Faults:
        """The script of what goes wrong."""
        return self._service.faults

    @property
    def dop_hints(self) -> dict[str, int]:
        """The parallelism recommended to each user; change it at will."""
        return self._service.dop_hints

    @property
    def tables(self) -> list[Table]:
        """The tables it was made with."""
        return self._service.store.tables

    def rows(self, table: str) -> list[Row]:
        """The rows of a table, in the order they were made."""
        return list(self._service.store.rows(table).values())

    def credential(self, user: str = "app-1") -> Credential:
        """What a synchronous client logs in with."""
        return Credential(self._service.tokens, user)

    def async_credential(self, user: str = "app-1") -> AsyncCredential:
        """What an asynchronous client logs in with."""
        return AsyncCredential(self._service.tokens, user)

    def expire_tokens(self, user: str | None = None) -> None:
        """Make the tokens given out so far invalid."""
        self._service.tokens.expire(user)

    def revoke(self, user: str, privilege: str) -> None:
        """Take a privilege away: `prvBypassCustomBusinessLogic`, `prvCreateaccount`, `prvDeleteaccount`, …"""
        self._service.denied[user].add(privilege)

    def run_jobs(self) -> None:
        """Run the jobs that wait, when they do not run at once."""
        self._service.jobs.run()

    async def __aenter__(self) -> DataverseServer:
        folder = Path(self._exits.enter_context(tempfile.TemporaryDirectory(prefix="penstock-remote-")))
        context, self.certificate = server_context(folder)
        plain = await asyncio.start_server(lambda r, w: self._connect(r, w, self.url), "127.0.0.1", self._port)
        secure = await asyncio.start_server(lambda r, w: self._connect(r, w, self.secure_url), "127.0.0.1", ssl=context)
        self._exits.push_async_callback(self._shut, plain, secure)
        self.url = f"http://127.0.0.1:{plain.sockets[0].getsockname()[1]}"
        self.secure_url = f"https://127.0.0.1:{secure.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()
        if self._crashes and error is None:
            raise ExceptionGroup("the remote itself failed", self._crashes)

    def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, base: str) -> None:
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer, base))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _shut(self, *listeners: asyncio.Server) -> None:
        for listener in listeners:
            listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for listener in listeners:
            await listener.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, base: str) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADERS_BYTES_MAX)
        try:
            while request := await receive(connection, reader, base, lambda: self._service.body_bytes_max):
                await send(connection, writer, await self._service.answer(request))
                if connection.our_state is h11.MUST_CLOSE:
                    break
                connection.start_next_cycle()
            await _hang_up(writer)
        except Lost as lost:
            if lost.is_reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HARD_CLOSE)
            else:
                await _hang_up(writer)
        except (ConnectionError, h11.RemoteProtocolError):
            pass  # the client went away or does not speak HTTP; that is its own affair
        except Exception as error:
            self._crashes.append(error)
        finally:
            writer.transport.abort()


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Close after what was written has left."""
    writer.close()
    with suppress(TimeoutError, ConnectionError, ssl.SSLError):
        async with asyncio.timeout(HANG_UP_S):
            await writer.wait_closed()
