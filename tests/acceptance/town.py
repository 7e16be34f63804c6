"""A folder, a database and worker processes: what tests of several processes share."""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import forked
import pytest
from patience import HANG_S, UNHURRIED

from penstock.cli import main
from penstock.engine import Penstock
from penstock.pipeline import load_app

__all__ = ["APP", "Town", "town_at"]

APP = str(Path(__file__).parent / "town_app.py")
LOOK_S = 0.05

T = TypeVar("T")


class Town:
    """Commands are called here, in this process; workers are processes of their own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.processes: list[forked.Forked] = []

    def call(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words)
        return code, out.getvalue(), err.getvalue()

    def ask(self, *words: str) -> Any:
        """The document that a command answers with."""
        _, out, err = self.call(*words, "--json")
        assert out, err
        return json.loads(out)

    def create(self, operation: str, rows: int = 3, *, app: str = APP) -> str:
        """An operation over so many citizens, p1, p2 and so on, that nobody works on yet."""
        text = "name,age\n" + "".join(f"p{number},{number}\n" for number in range(1, rows + 1))

        async def make() -> str:
            async with Penstock.open(self.url, operations=load_app(app)) as penstock:
                made = await penstock.operations.create(operation, file=text.encode(), file_name="citizens.csv")
                return made.id

        return asyncio.run(make())

    def start(self, *words: str, **environment: str) -> forked.Forked:
        """A command as a process of its own; what it says goes to files, so that it never blocks."""
        number = len(self.processes)
        with (self.folder / f"{number}.out").open("w") as out, (self.folder / f"{number}.err").open("w") as err:
            env = os.environ | environment
            process = forked.start("-m", "penstock", *words, cwd=self.folder, env=env, stdout=out, stderr=err)
        self.processes.append(process)
        return process

    def start_worker(self, *words: str, **environment: str) -> forked.Forked:
        """A worker process that has begun."""
        process = self.start("worker", "--app", APP, *words, **environment)
        self.until(lambda: " runs " in self.said(process), f"worker {process.pid} begins", process)
        return process

    def said(self, process: forked.Forked, to: str = "err") -> str:
        """What a process has said so far."""
        return (self.folder / f"{self.processes.index(process)}.{to}").read_text()

    def halt(self, process: forked.Forked, number: int) -> None:
        """Send a signal that is heard: nothing more begins."""
        process.send_signal(number)
        self.until(lambda: "press Ctrl-C again to stop now" in self.said(process), "the signal is heard")

    def end(self, process: forked.Forked, number: int) -> int:
        """Send a signal and wait for the end; gives the exit code."""
        process.send_signal(number)
        return self.await_end(process)

    def await_end(self, process: forked.Forked) -> int:
        """Wait for the end of a process that ends by itself; gives the exit code."""
        return process.wait(HANG_S)

    def until(self, look: Callable[[], T], what: str, process: forked.Forked | None = None) -> T:
        """Look again and again until it is so; not for ever."""
        ends = time.monotonic() + HANG_S
        while not (found := look()):
            heard = "".join(self.said(process) for process in self.processes)
            assert time.monotonic() < ends, f"not within {HANG_S:g} s: {what}\n{heard}"
            assert process is None or process.poll() is None, heard
            time.sleep(LOOK_S)
        return found

    def until_settled(self, operation: str) -> Any:
        """The operation once it is settled."""

        def look() -> Any:
            now = self.ask("ops", "show", operation)
            return now if now["completedAt"] else None

        return self.until(look, f"operation {operation} is settled")

    def stored_files(self) -> list[Path]:
        """The files that were handed in, without the mark of their folder."""
        found = (path for path in (self.folder / "blobs").rglob("*") if path.is_file())
        return [path for path in found if not path.name.startswith("storage-")]

    def close_gate(self, age: int) -> None:
        """Those who stroll stop at a gate if they are older; citizen n is n years old."""
        (self.folder / "gate").write_text(str(age))

    def open_gate(self) -> None:
        """Let all go on."""
        (self.folder / "gate").unlink()

    def until_begun(self, operation: str) -> None:
        """Rows of the operation have been done and others have not."""
        self.until(lambda: self.ask("ops", "show", operation)["processedRows"] > 0, "the first rows are done")


@contextmanager
def town_at(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """A town whose processes, and whose commands here, use this database and this folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", url)
    monkeypatch.setenv("PENSTOCK_STORAGE_URL", f"file:{folder / 'blobs'}")
    for name, value in UNHURRIED.items():
        monkeypatch.setenv(name, value)
    town = Town(folder, url)
    try:
        yield town
    finally:
        for process in town.processes:
            process.kill()
            process.wait()
