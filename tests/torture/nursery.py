"""A fork server: it has imported everything and has no loop, no thread and no connection, so a worker starts at once.

It alone knows process ids; signals go through process handles, so a stranger that got a dead worker's id is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Child", "Nursery", "Role"]

Role = Callable[[Mapping[str, Any]], None]


@dataclass
class Child:
    """A process as the campaign sees it; `status` is its wait status once it is dead."""

    who: str
    role: str
    born_at: float
    died_at: float | None = None
    status: int | None = None

    def __post_init__(self) -> None:
        self.dead = asyncio.Event()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, or stands frozen."""
        return self.status is None

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def was_told_too_early(self) -> bool:
        """Whether it was asked to leave before it could listen, or when it listened no more."""
        return self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGTERM

    @property
    def exit_code(self) -> int | None:
        """Its exit code, if it ended by itself."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None


class Nursery:
    """The campaign's end; fork the server before any loop exists, then `connect` inside it."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self.children: dict[str, Child] = {}
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            with contextlib.suppress(OSError, KeyboardInterrupt):
                _Server(theirs, roles).run()
            os._exit(0)
        theirs.close()

    async def connect(self) -> Callable[[], Awaitable[None]]:
        """Begin to listen; returns what to call at the end, which ends every child."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        listening = asyncio.create_task(self._listen(reader))

        async def close() -> None:
            self._writer.close()
            await listening
            await asyncio.to_thread(os.waitpid, self._pid, 0)

        return close

    def spawn(self, who: str, role: str, stderr: Path, **given: Any) -> Child:
        """Start a process in this role."""
        child = self.children[who] = Child(who, role, time.monotonic())
        self._send({"spawn": who, "role": role, "stderr": str(stderr), "given": {"who": who, **given}})
        return child

    def signal(self, child: Child, number: signal.Signals) -> None:
        """Send a signal, if it is still alive."""
        if child.is_alive:
            self._send({"signal": child.who, "number": int(number)})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            news = json.loads(line)
            child = self.children[news["died"]]
            child.status, child.died_at = news["status"], news["t"]
            child.dead.set()


# --- the server's side


class _Server:
    """Forks, signals and buries; ends, with all its children, when the campaign is gone."""

    def __init__(self, sock: socket.socket, roles: Mapping[str, Role]) -> None:
        self.sock, self.roles = sock, roles
        self.handles: dict[str, tuple[int, int]] = {}  # by name: process id, handle
        self.waiting = selectors.DefaultSelector()
        self.waiting.register(sock, selectors.EVENT_READ)
        self.inbox = b""

    def run(self) -> None:
        while True:
            for key, _ in self.waiting.select():
                if key.data is not None:
                    self._bury(key.data)
                elif not self._hear():
                    return

    def _hear(self) -> bool:
        data = self.sock.recv(65536)
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        for message in map(json.loads, lines):
            if "spawn" in message:
                self._spawn(message)
            elif message["signal"] in self.handles:
                signal.pidfd_send_signal(self.handles[message["signal"]][1], message["number"])
        if not data:
            for _, handle in self.handles.values():
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        return bool(data)

    def _spawn(self, message: Mapping[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            self.sock.close()
            _live(self.roles[message["role"]], message)
        handle = os.pidfd_open(pid)
        self.handles[message["spawn"]] = pid, handle
        self.waiting.register(handle, selectors.EVENT_READ, message["spawn"])

    def _bury(self, who: str) -> None:
        pid, handle = self.handles.pop(who)
        self.waiting.unregister(handle)
        os.close(handle)
        news = {"died": who, "status": os.waitpid(pid, 0)[1], "t": time.monotonic()}
        self.sock.sendall(json.dumps(news).encode() + b"\n")


def _live(role: Role, message: Mapping[str, Any]) -> None:
    code = os.EX_OK
    try:
        with open(message["stderr"], "ab", buffering=0) as stderr:
            os.dup2(stderr.fileno(), 2)
        role(message["given"])
    except SystemExit as leave:
        code = int(leave.code or 0)
    except BaseException:
        traceback.print_exc()
        code = os.EX_SOFTWARE
    finally:
        sys.stderr.flush()
        os._exit(code)
