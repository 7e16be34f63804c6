"""Processes of the command `penstock` that start at once: they are forked from one that has imported it.

Importing is most of what a worker of a short test does, and tests start hundreds. `ForkServer.start` gives what Popen
would; that `python -m penstock` itself starts is for `test_cli_processes` to show.

Run as a script this is the server. For each request it forks a watcher, and that forks the command, so that somebody
waits for each command and can tell how it ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

__all__ = ["ForkServer", "Forked"]

REQUEST_BYTES_MAX = 200_000


class Forked:
    """A command that runs; as far as tests use it, like Popen."""

    def __init__(self, news: IO[str]) -> None:
        self._news = news
        self.pid = int(news.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None as long as it runs."""
        if self.returncode is None and select.select([self._news], [], [], 0)[0]:
            self.returncode = int(self._news.readline())
            self._news.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("penstock", timeout or 0)
            select.select([self._news], [], [], left)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The tests' end of a server that ends when this process does."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def start(self, *words: str, cwd: Path, env: Mapping[str, str], stdout: IO[str], stderr: IO[str]) -> Forked:
        """Start a command."""
        ours, theirs = os.pipe()
        request = json.dumps({"words": words, "cwd": str(cwd), "env": dict(env)}).encode()
        assert len(request) <= REQUEST_BYTES_MAX
        socket.send_fds(self._socket, [request], [stdout.fileno(), stderr.fileno(), theirs])
        os.close(theirs)
        return Forked(os.fdopen(ours, buffering=1))

    def close(self) -> None:
        """End the server; commands that run go on."""
        self._socket.close()
        self._process.wait()


# --- the server's side


def _serve(requests: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers leave no zombies
    while True:
        request, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(request), *files)
            return
        for file in files:
            os.close(file)


def _watch(given: Mapping[str, Any], stdout: int, stderr: int, news: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(news)
        _become(given, stdout, stderr)  # leaves by SystemExit
    os.close(stdout)
    os.close(stderr)
    os.write(news, f"{pid}\n".encode())
    os.write(news, f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
    os._exit(0)


def _become(given: Mapping[str, Any], stdout: int, stderr: int) -> None:
    from penstock.cli import main

    for file, place in ((stdout, 1), (stderr, 2)):
        os.dup2(file, place)
        os.close(file)
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(given["env"])
    sys.argv = ["penstock", *given["words"]]
    sys.exit(main())


def _import_all() -> None:
    import asyncmy  # noqa: F401
    import asyncpg  # noqa: F401
    import sqlalchemy.dialects.mysql.asyncmy
    import sqlalchemy.dialects.postgresql.asyncpg
    import sqlalchemy.dialects.sqlite.aiosqlite  # noqa: F401

    import penstock.cli
    import penstock.engine
    import penstock.operations.worker.worker  # noqa: F401


if __name__ == "__main__":
    _import_all()
    _serve(socket.socket(fileno=int(sys.argv[1])))
