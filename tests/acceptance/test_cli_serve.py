"""`penstock serve`: real processes that listen, work, refuse strangers and stop in good order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import httpx
import pytest
from patience import HANG_S

APP = Path(__file__).parents[1] / "api" / "parcel_service.py"
CSV = b"code,weight,value\nP1,1,10\nP2,heavy,10\nP3,-3,10\nP4,4,20\n"
DEAR = b"code,weight,value\nD1,1,5000\n"

pytestmark = pytest.mark.databases("sqlite")


class Server:
    """A process that serves, and a client of it."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*forked.python(), "-m", "penstock", "serve", "--app", str(APP), "--port", "0", *options],
            cwd=folder,
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"serving on (http://\S+)", line):
                self.client = httpx.Client(base_url=found[1], timeout=HANG_S)
                return
        raise AssertionError("".join(self.lines))

    def wait_for(self, words: str) -> None:
        """Read what it says until it says this."""
        assert self.process.stderr is not None
        while not any(words in line for line in self.lines):
            line = self.process.stderr.readline()
            assert line, "".join(self.lines)
            self.lines.append(line)

    def submit(self, file: bytes, **headers: str) -> str:
        answer = self.client.post(
            "/api/bulks",
            files={"file": ("parcels.csv", file)},
            data={"operationName": "parcels"},
            headers=headers,
        )
        assert answer.status_code == 202, answer.text
        return str(answer.headers["location"])

    def end(self) -> int:
        """Stop it as the system would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=HANG_S)
        self.lines.append(rest)
        return self.process.returncode


Start = Callable[..., Server]


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    started: list[Server] = []

    def server(*options: str, **environment: str) -> Server:
        started.append(Server(tmp_path, *options, **{"PENSTOCK_DATABASE_URL": database_url, **environment}))
        return started[-1]

    yield server
    for each in started:
        each.client.close()
        each.process.kill()
        each.process.communicate()


def test_a_server_takes_files_runs_them_and_ends_in_good_order(start: Start):
    server = start("--insecure")
    server.wait_for("everybody who reaches this address")
    place = server.submit(CSV)
    with server.client.stream("GET", f"{place}/stream") as stream:  # until the operation ends
        assert "event: end" in stream.read().decode()
    found = server.client.get(place).json()
    assert (found["status"], found["successfulRows"], found["failedRows"]) == ("CompletedWithErrors", 2, 2)
    assert found["createdBy"] == "anonymous"
    waits = server.submit(DEAR)
    with server.client.stream("GET", f"{waits}/stream") as stream:
        lines = stream.iter_lines()
        while '"waitingRows":1' not in next(lines):
            pass
        assert server.end() == 0  # though somebody still watches
        assert all("end" not in line for line in lines)
    assert "Traceback" not in "".join(server.lines)


def test_a_server_is_closed_to_strangers_and_open_to_keys(start: Start, tmp_path: Path, database_url: str):
    server = start("--no-worker")
    server.wait_for("nobody has access yet: create an API key with `penstock keys create NAME --role admin`")
    assert server.client.get("/health/ready").status_code == 200
    assert server.client.get("/api/bulks").status_code == 401
    made = subprocess.run(
        [*forked.python(), "-m", "penstock", "keys", "create", "ana", "--role", "operate", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PENSTOCK_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        check=True,
    )
    key = re.search(r'"key": "([^"]+)"', made.stdout)
    assert key is not None, made.stdout
    credential = {"authorization": f"Bearer {key[1]}"}
    place = server.submit(CSV, **credential)
    found = server.client.get(place, headers=credential).json()
    assert (found["status"], found["createdBy"]) == ("Pending", "ana")  # there is no worker
    assert server.end() == 0


def test_a_server_without_its_database_lives_and_is_not_ready(start: Start, tmp_path: Path):
    away = {"PENSTOCK_DATABASE_URL": "postgresql://penstock@127.0.0.1:1/penstock"}
    server = start("--insecure", **away, PENSTOCK_STORAGE_URL=str(tmp_path / "files"))
    server.wait_for("trying again in")
    assert server.client.get("/health/live").status_code == 200
    ready = server.client.get("/health/ready")
    assert (ready.status_code, ready.json()["code"]) == (503, "unavailable")
    assert server.end() == 0


@pytest.mark.parametrize(
    "options, code, told",
    [
        (("--insecure", "--host", "0.0.0.0"), 2, "--insecure is for an address of this machine"),
        (("--host", "nowhere.invalid"), 1, "cannot listen on nowhere.invalid"),
    ],
)
def test_a_server_that_cannot_be_says_why(
    tmp_path: Path, database_url: str, options: tuple[str, ...], code: int, told: str
):
    done = subprocess.run(
        [*forked.python(), "-m", "penstock", "serve", "--app", str(APP), *options],
        cwd=tmp_path,
        env={**os.environ, "PENSTOCK_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
