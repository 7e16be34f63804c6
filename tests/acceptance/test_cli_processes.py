"""The command as a process of its own: signals, pipes, terminals, and the demo."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import pytest
from patience import HANG_S, UNHURRIED

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
APP = str(HERE / "cli_app.py")
ROWS = 600
PENSTOCK = (sys.executable, "-m", "penstock")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in UNHURRIED.items():
        monkeypatch.setenv(name, value)
    rows = "".join(f"guest {number},{number}\n" for number in range(1, ROWS + 1))
    (tmp_path / "guests.csv").write_text(f"name,age\n{rows}")
    return tmp_path


@contextmanager
def dawdle(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose rows have begun; most stand at a gate."""
    (folder / "gate").touch()
    with subprocess.Popen(
        [*PENSTOCK, "run", "dawdle", "guests.csv", "--app", APP, *more],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            assert any(line.startswith("Running") for line in process.stderr), "it never ran"
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str], folder: Path, number: signal.Signals) -> tuple[str, str]:
    """Send a signal; when it was heard, open the gate. What the process says to its end."""
    process.send_signal(number)
    assert process.stderr is not None
    heard = next(line for line in process.stderr if "Ctrl-C again" in line)
    (folder / "gate").unlink()
    out, err = process.communicate(timeout=HANG_S)
    return out, heard + err


def call(folder: Path, *words: str) -> Any:
    """What a command says of what a process of its own has left."""
    words = (*forked.python(), "-m", "penstock", *words, "--json")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_stays_says_how_to_go_on_and_is_finished_by_resume(folder: Path, number: signal.Signals):
    with dawdle(folder) as process:
        out, err = interrupt(process, folder, number)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    resume = err.strip().splitlines()[-1].split()
    assert resume[-4:-2] == ["--continue", call(folder, "ops", "list")["items"][0]["id"]]
    halted = call(folder, "ops", "show", resume[-3])
    assert halted["status"] == "Running"
    assert halted["processedRows"] < ROWS
    finished = call(folder, "run", *resume[-4:])
    assert (finished["status"], finished["successfulRows"], finished["failedRows"]) == ("Completed", ROWS, 0)
    assert call(folder, "verify")["isClean"]
    # Rows that were running had time to end, so nothing was lost and nothing ran twice.
    assert call(folder, "ops", "history", finished["id"])["items"] == []


def test_an_interrupted_run_answers_json_with_the_operation_as_it_stands(folder: Path):
    with dawdle(folder, "--json") as process:
        out, _ = interrupt(process, folder, signal.SIGINT)
    assert process.returncode == 130
    assert json.loads(out)["status"] == "Running"


def test_a_terminal_gets_a_bar_that_is_drawn_again_and_again(folder: Path):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PENSTOCK, "run", "dawdle", "guests.csv", "--app", APP],
        cwd=folder, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b"".join(iter(lambda: _read(ours), b"")).decode()
        process.wait(HANG_S)
    os.close(ours)
    assert process.returncode == 0
    assert "\x1b[2K" in seen
    assert f"{ROWS} of {ROWS}" in seen


def test_an_encoding_without_our_characters_changes_no_exit_code_and_no_document(folder: Path):
    (folder / "guests.csv").write_text("name,age\nÅsa,30\n", encoding="utf-8")
    words = [*PENSTOCK, "run", "invite", "guests.csv", "--app", APP, "--meta", "words=“Kom!”"]
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    told = subprocess.run(words, cwd=folder, env=latin, capture_output=True, check=False)
    assert told.returncode == 0, told.stderr
    assert b'{"words": "?Kom!?"' in told.stdout
    asked = [*PENSTOCK, "ops", "show", "@last", "--json"]
    document = subprocess.run(asked, cwd=folder, env=latin, capture_output=True, check=False).stdout
    assert json.loads(document.decode("utf-8"))["metadata"]["words"] == "“Kom!”"
    poor = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    listed = subprocess.run([*PENSTOCK, "ops", "rows", "@last"], cwd=folder, env=poor, capture_output=True, check=False)
    assert listed.returncode == 0, listed.stderr
    assert b"?sa" in listed.stdout


def test_a_terminal_shows_each_command_to_copy_on_one_line(folder: Path):
    (folder / "guests.csv").write_text("name,age\nAnn,old\nNobody,30\n")
    ours, theirs = pty.openpty()
    words = ["run", "invite", "guests.csv", "--app", APP, "--meta", "words=Come!"]
    with subprocess.Popen(
        [*PENSTOCK, *words], cwd=folder, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "60"},
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b"".join(iter(lambda: _read(ours), b"")).decode()
        process.wait(HANG_S)
    os.close(ours)
    made = call(folder, "ops", "list")["items"][0]["id"]
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).rstrip() for line in seen.splitlines()]
    assert any(line.endswith(f"penstock run --continue {made} --app {APP}") for line in lines)
    assert any(line.endswith(f"penstock ops rows {made[:13]} --state Failed --state Invalid") for line in lines)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says so when the other side has closed a terminal
        return b""


def test_help_comes_without_loading_a_database():
    code = "import sys; from penstock.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "pydantic", "alembic", "msgspec"} & set(done.stderr.split())


@pytest.mark.covers("SM-014", "SM-023")
def test_the_demo_ends_by_itself_and_leaves_records_that_verify(tmp_path: Path):
    demo = str(ROOT / "examples" / "demo.py")
    words = [sys.executable, demo]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert "CompletedWithErrors" in done.stdout
    assert "What went wrong" in done.stdout
    assert "article ART-00914 is frozen by an open campaign" in " ".join(done.stdout.split())
    database = ("--db", "sqlite:///demo/penstock.db")
    shown = next(line for line in done.stdout.splitlines() if " operations: " in line)
    for state in ("Pending", "Running", "Paused", "Completed", "Completed with errors", "Failed", "Cancelled"):
        assert state in shown
    report = call(tmp_path, "verify", *database)
    assert report["isClean"]
    (prices,) = call(tmp_path, "ops", "list", "--name", "price-update", *database)["items"]
    assert prices["totalRows"] == 20_000
    retried = call(tmp_path, "ops", "history", prices["id"], *database)
    assert {entry["event"] for entry in retried["items"]} == {"postponed"}


LOUD = """
import subprocess
from pydantic import BaseModel
from penstock import Context, operation

print("loud module")

class Guest(BaseModel):
    name: str

@operation("greet")
def greet(row: Guest, ctx: Context) -> None:
    print("loud step")
    subprocess.run(["echo", "loud child"], check=True)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("run", "greet", "guests.csv"),
        ("run", "unknown", "guests.csv"),
        ("ops", "validate", "greet", "guests.csv"),
        ("run", "greet", "guests.csv", "--workers", "2"),
    ],
    ids=["run", "refused", "validate", "workers"],
)
def test_what_steps_print_stands_on_stderr_when_machines_read_stdout(folder: Path, words: tuple[str, ...]):
    (folder / "loud.py").write_text(LOUD)
    (folder / "guests.csv").write_text("name\nAda\n")
    done = subprocess.run(
        [*PENSTOCK, *words, "--app", "loud.py", "--json"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout)
    assert "loud module" in done.stderr
    if words == ("run", "greet", "guests.csv"):
        assert "loud step" in done.stderr
        assert "loud child" in done.stderr


def test_what_steps_print_stands_on_stdout_when_people_read_it(folder: Path):
    (folder / "loud.py").write_text(LOUD)
    (folder / "guests.csv").write_text("name\nAda\n")
    words = ("run", "greet", "guests.csv", "--app", "loud.py")
    done = subprocess.run([*PENSTOCK, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert "loud step" in done.stdout
