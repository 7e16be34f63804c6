"""Throwaway PostgreSQL, MariaDB and Redis servers, as durable as real ones, for tests.

`shared(kind, owner)` gives the URL of a server that all processes of one test run share: the first that asks starts
it, and a keeper process stops it when the run's main process is gone, however that ended. Crash tests make a
`Server` of their own and may kill it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_S = 300  # ends a hang only
ENVIRONMENT = {
    "postgresql": "PENSTOCK_TEST_POSTGRES_URL",
    "mariadb": "PENSTOCK_TEST_MARIADB_URL",
    "redis": "PENSTOCK_TEST_REDIS_URL",
}


class Server(ABC):
    """One server with its data in `folder`; the data outlives stop and kill."""

    package: str
    scheme: str
    user: str
    binaries: tuple[str, ...]

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of a database that exists from the start."""
        return f"{self.scheme}://penstock:penstock@127.0.0.1:{self.port}/penstock"

    def start(self) -> None:
        """Start the server, making its data first if there is none; return when it answers."""
        install(self.package, *self.binaries)
        is_new = not (self.folder / "data").exists()
        if is_new:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "tmp").mkdir()
            self._own(self.folder)
            self._own(self.folder / "tmp")
            self._create()
        end = time.monotonic() + START_S
        while not self._try_start(end):
            time.sleep(0.1)
        if is_new:
            self._create_database()

    def _try_start(self, end: float) -> bool:
        """Start the process and wait until it answers; False when children of a killed one are not gone yet."""
        with (self.folder / "log").open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, user=self._user(), cwd=self.folder, start_new_session=True
            )
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                words = (self.folder / "log").read_bytes()[before:].decode(errors="replace")
                if "is still in use" in words and time.monotonic() < end:
                    return False
                raise RuntimeError(f"{self.package} did not start:\n{words[-4000:]}")
            time.sleep(0.05)
        return True

    def stop(self) -> None:
        """Shut down in good order."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Shut down as a power cut would: no process of the server does anything after this."""
        children = [] if self._process is None else _children(self._process.pid)
        self._end(signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start on the same port."""
        self.stop()
        self.start()

    stop_signal = signal.SIGTERM

    @abstractmethod
    def _create(self) -> None: ...

    @abstractmethod
    def _create_database(self) -> None: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait(timeout=START_S)
        self._process = None

    def _user(self) -> str | None:
        # Both servers refuse to run as root.
        return self.user if os.geteuid() == 0 else None

    def _own(self, folder: Path) -> None:
        if os.geteuid() == 0:
            owner = pwd.getpwnam(self.user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)

    def _run(self, *command: str, text: str | None = None) -> None:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, user=self._user(), cwd=self.folder, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


class PostgresqlServer(Server):
    """A PostgreSQL server whose default order of text is a human one, so that only our own collation is bytewise."""

    package = "postgresql"
    scheme = "postgresql"
    user = "postgres"
    binaries = ("initdb", "postgres", "psql")
    stop_signal = signal.SIGINT  # fast: does not wait for clients

    def _create(self) -> None:
        version = subprocess.run([_path("initdb"), "--version"], capture_output=True, text=True, check=True).stdout
        is_icu = int(version.split()[2].split(".")[0]) >= 15
        locale = ["--locale-provider=icu", "--icu-locale=en", "--locale=C.UTF-8"] if is_icu else ["--locale=C.UTF-8"]
        initdb = [_path("initdb"), "-D", str(self.folder / "data"), "-U", "penstock", "-E", "UTF8", "--auth=trust"]
        self._run(*initdb, *locale)

    def _create_database(self) -> None:
        self._run(*self._psql(), "-c", "CREATE DATABASE penstock")

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "shared_buffers": "32MB",
            "max_connections": 200,  # of five processes of tests, and of those they start
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [_path("postgres"), "-D", str(self.folder / "data"), *given, *self.options]

    def _psql(self) -> tuple[str, ...]:
        return (_path("psql"), "-h", str(self.folder), "-p", str(self.port), "-U", "penstock", "-d", "postgres", "-qX")

    def _answers(self) -> bool:
        done = subprocess.run([*self._psql(), "-c", "SELECT 1"], capture_output=True, user=self._user(), check=False)
        return done.returncode == 0


class MariadbServer(Server):
    """A MariaDB server with its usual, case-ignoring collation.

    Its temporary tables lie in its own folder: a server that starts removes all it finds in a shared one, and a server
    that misses one of its own dies.
    """

    package = "mariadb-server"
    scheme = "mariadb"
    user = "mysql"
    binaries = ("mariadb-install-db", "mariadbd", "mariadb")

    def _create(self) -> None:
        self._run(
            _path("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *([f"--user={self.user}"] if self._user() else []),
        )

    def _create_database(self) -> None:
        self._run(
            *self._client(),
            text="CREATE DATABASE penstock; CREATE USER penstock@'%' IDENTIFIED BY 'penstock';"
            "CREATE USER penstock@localhost IDENTIFIED BY 'penstock';"
            "GRANT ALL ON *.* TO penstock@'%'; GRANT ALL ON *.* TO penstock@localhost;",
        )

    def _command(self) -> list[str]:
        return [
            _path("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--tmpdir={self.folder / 'tmp'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=32M",
            *self.options,
        ]

    def _client(self) -> tuple[str, ...]:
        return (_path("mariadb"), "--no-defaults", f"--socket={self.folder / 'socket'}", "-uroot")

    def _answers(self) -> bool:
        done = subprocess.run([*self._client(), "-e", "SELECT 1"], capture_output=True, user=self._user(), check=False)
        return done.returncode == 0


class RedisServer(Server):
    """A Redis server that writes each command to its disk before it answers."""

    package = "redis-server"
    scheme = "redis"
    user = "redis"
    binaries = ("redis-server", "redis-cli")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _create(self) -> None:
        (self.folder / "data").mkdir()
        self._own(self.folder / "data")

    def _create_database(self) -> None:
        """There is one from the start."""

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.folder / "data",
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        given = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return [_path("redis-server"), *given, *self.options]

    def _answers(self) -> bool:
        done = subprocess.run([_path("redis-cli"), "-p", str(self.port), "PING"], capture_output=True, check=False)
        return done.stdout.strip() == b"PONG"


# The databases that Penstock works on, and what else tests need.
KINDS: dict[str, type[Server]] = {"postgresql": PostgresqlServer, "mariadb": MariadbServer}
OTHERS: dict[str, type[Server]] = {"redis": RedisServer}


def shared(kind: str, owner: int) -> str:
    """The URL of the server shared by the test run whose main process is `owner`; starts it if need be."""
    given = os.environ.get(ENVIRONMENT[kind])
    if given:
        return given
    folder = Path(tempfile.gettempdir()) / f"penstock-{kind}-{owner}"
    with locked(folder.with_suffix(".lock")):
        address = folder / "url"
        if not address.exists():
            keeper = [sys.executable, __file__, kind, str(folder), str(owner)]
            process = subprocess.Popen(keeper, stdout=subprocess.PIPE, text=True, start_new_session=True)
            assert process.stdout is not None
            with process.stdout:
                url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"the {kind} server did not start")
            process.returncode = 0  # the keeper outlives us; do not warn about it
            address.write_text(url)
        return address.read_text()


@contextmanager
def private(kind: str, *options: str) -> Iterator[Server]:
    """A server of one's own, for tests that kill it or set it wrongly."""
    folder = Path(tempfile.mkdtemp(prefix=f"penstock-{kind}-"))
    folder.chmod(0o755)
    server = {**OTHERS, **KINDS}[kind](folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


def install(package: str, *binaries: str) -> None:
    """Install the distribution's package unless its programs are there."""
    with locked(Path(tempfile.gettempdir()) / "penstock-install.lock"):  # apt-get refuses to wait for another
        if any(_find(name) is None for name in binaries):
            for command in (["update", "-q"], ["install", "-qy", package]):
                environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                subprocess.run(["apt-get", *command], stdout=subprocess.DEVNULL, env=environment, check=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock; who asks meanwhile waits."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _find(name: str) -> str | None:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    folders = [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *map(str, versions)]
    return shutil.which(name, path=os.pathsep.join([*map(str, versions), *folders]))


def _children(pid: int) -> list[int]:
    """The processes that a process has started, on Linux."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _path(name: str) -> str:
    found = _find(name)
    assert found is not None, f"{name} is not installed"
    return found


def _keep(kind: str, folder: Path, owner: int) -> None:
    """Run a server until the owner process is gone."""
    server = {**OTHERS, **KINDS}[kind](folder)
    watched = os.pidfd_open(owner)
    try:
        server.start()
        print(server.url, flush=True)
        select.select([watched], [], [])
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".lock").unlink(missing_ok=True)


if __name__ == "__main__":
    _keep(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
