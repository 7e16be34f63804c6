"""Python processes that start at once: they are forked from one that has imported Penstock.

Importing is most of what a process of a short test does, and tests start hundreds. Put `*forked.python()` where
`sys.executable` would be; `start` is for those who need the process itself, not one that stands for it. That
`python -m penstock` itself starts is for `test_cli_processes` to show.

Run as a script, this is the server, or the python that asks it. The server forks a watcher for each request, and that
forks the process, so that somebody waits for each and can tell how it ended. A process whose starter is gone is killed.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import IO, Any

__all__ = ["Forked", "python", "start"]

REQUEST_BYTES_MAX = 200_000
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Files = tuple[int, int, int]


class Forked:
    """A process that runs; as far as tests use it, like Popen."""

    def __init__(self, words: Sequence[str], cwd: str, env: Mapping[str, str], files: Files, server: str) -> None:
        self.args = ["python", *words]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(server)
        request = json.dumps({"words": words, "cwd": cwd, "env": dict(env)}).encode()
        assert len(request) <= REQUEST_BYTES_MAX
        socket.send_fds(self._socket, [request], files)
        self.pid = int(self._socket.recv(100))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None as long as it runs."""
        if self.returncode is None and select.select([self._socket], [], [], 0)[0]:
            self.returncode = int(self._socket.recv(100))
            self._socket.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            select.select([self._socket], [], [], left)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def start(
    *words: str, cwd: str | os.PathLike[str], env: Mapping[str, str] | None = None, stdout: IO[str], stderr: IO[str]
) -> Forked:
    """Start `python *words`."""
    with open(os.devnull) as nothing:
        files = (nothing.fileno(), stdout.fileno(), stderr.fileno())
        return Forked(words, os.fspath(cwd), os.environ if env is None else env, files, _server())


def python() -> list[str]:
    """The start of a command line, for a shell or Popen, that does what `python` does."""
    return [sys.executable, "-IS", __file__, _server()]


@cache
def _server() -> str:
    """The address of the server of this process, which ends with it."""
    folder = tempfile.TemporaryDirectory(prefix="fork-")
    address = os.path.join(folder.name, "socket")
    command = [sys.executable, __file__, "--serve", address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # it listens

    def end() -> None:
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    return address


# --- the server's side


def _serve(address: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers leave no zombies
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        print("listening", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _watch(connection)  # leaves by SystemExit or _exit
            connection.close()


def _watch(starter: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, files, _, _ = socket.recv_fds(starter, REQUEST_BYTES_MAX, 3)
    pid = os.fork()
    if pid == 0:
        starter.close()
        _become(json.loads(request), files)
    for file in files:
        os.close(file)
    starter.send(str(pid).encode())
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, starter], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        starter.send(str(code).encode())
    os._exit(0)


def _become(given: Mapping[str, Any], files: Sequence[int]) -> None:
    import runpy

    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(given["env"])
    match given["words"]:
        case ["-m", module, *rest]:
            sys.argv = [module, *rest]
            sys.path[0] = given["cwd"]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *rest]:
            sys.argv = [script, *rest]
            sys.path[0] = os.path.dirname(os.path.abspath(script))
            runpy.run_path(script, run_name="__main__")
    sys.exit()


def _import_all() -> None:
    import asyncmy  # noqa: F401
    import asyncpg  # noqa: F401
    import sqlalchemy.dialects.mysql.asyncmy
    import sqlalchemy.dialects.postgresql.asyncpg
    import sqlalchemy.dialects.sqlite.aiosqlite  # noqa: F401

    import penstock.api
    import penstock.cli.ops
    import penstock.cli.run
    import penstock.engine
    import penstock.operations.worker.worker  # noqa: F401
    from penstock.cli.app import _command

    _command()
    gc.collect()
    gc.freeze()  # nobody looks for garbage among it, which would copy it


# --- the python that asks


def _ask(server: str, words: list[str]) -> int:
    if not words or (words[0].startswith("-") and words[0] != "-m"):
        os.execv(sys.executable, [sys.executable, *words])
    process = Forked(words, os.getcwd(), os.environ, (0, 1, 2), server)
    for number in FORWARDED:
        signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _import_all()
        _serve(sys.argv[2])
    else:
        sys.exit(_ask(sys.argv[1], sys.argv[2:]))
