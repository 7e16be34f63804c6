"""`--url`: the same commands with the same documents, whether a database is asked or a server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from patience import HANG_S

from penstock.cli import main

APP = Path(__file__).parents[1] / "api" / "parcel_service.py"
CSV = "code,weight,value\nP1,1,10\nP2,heavy,10\nP3,-3,10\nP4,4,20\nD5,5,5000\n"


class Both:
    """A database with an operation in it, and a server of that database."""

    def __init__(self, folder: Path) -> None:
        self.db, self.folder = f"sqlite:///{folder / 'penstock.db'}", folder
        (folder / "parcels.csv").write_text(CSV)
        words = ["-m", "penstock", "serve", "--port", "0", "--insecure"]
        self.process = subprocess.Popen(
            [*forked.python(), *words, "--app", str(APP), "--db", self.db],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PENSTOCK_LOG_LEVEL": "info"},
        )
        assert self.process.stderr is not None
        found = re.search(r"serving on (\S+)", self.process.stderr.readline())
        assert found is not None
        self.url = found[1]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    made = Both(tmp_path_factory.mktemp("both"))
    yield made
    made.process.send_signal(signal.SIGTERM)
    made.process.communicate(timeout=HANG_S)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run_one(*words: str) -> tuple[int, Any]:
        code = main([*words, "--json"])
        text = capsys.readouterr().out
        return code, json.loads(text)

    return run_one


@pytest.fixture
def operation(both: Both, run: Any) -> str:
    """An operation of which a row waits; made over HTTP."""
    code, made = run("submit", "parcels", str(both.folder / "parcels.csv"), "--url", both.url, "--meta", "currency=CHF")
    assert (code, made["metadata"]["currency"]) == (0, "CHF")
    while run("ops", "show", made["id"], "--url", both.url)[1]["waitingRows"] != 1:
        pass
    return str(made["id"])


@pytest.mark.covers("SG-034")
def test_what_is_shown_is_the_same_from_a_database_and_from_a_server(both: Both, run: Any, operation: str):
    for words in (
        ("ops", "show", operation),
        ("ops", "show", operation[:13], "--row", "5"),
        ("ops", "show", "@last"),
        ("ops", "list", "--status", "Running", "--name", "parc"),
        ("ops", "rows", operation, "--limit", "2", "--data"),
        ("ops", "rows", operation, "--state", "Failed", "--state", "Invalid"),
        ("ops", "errors", operation, "--type", "Validation"),
        ("ops", "errors", operation, "--groups"),
        ("ops", "history", operation),
        ("ops", "events", operation),
        ("ops", "events", operation, "--limit", "2"),
        ("ops", "waits", operation),
        ("ops", "unclaimed", operation),
        ("ops", "retry", operation, "--check"),
        ("ops", "show", "00000000-0000"),
        ("ops", "rows", operation, "--state", "Odd"),
        ("ops", "rows", operation, "--step", "odd"),
        ("ops", "resume", "00000000-0000"),
        ("signal", operation, "refund"),
        ("ops", "fix", operation, "2", "weight=x", "--db", both.db, "--app", str(APP)),
    ):
        here = run(*words) if "--db" in words else run(*words, "--db", both.db)
        there = [word for word in words if word not in ("--db", both.db, "--app", str(APP))]
        assert run(*there, "--url", both.url) == here, words


def test_an_operation_is_steered_over_http(both: Both, run: Any, operation: str, capsys: pytest.CaptureFixture[str]):
    at = ("--url", both.url)
    assert run("ops", "pause", operation, "--cause", "lunch", *at)[1]["status"] == "Paused"
    assert run("ops", "resume", operation, *at)[1]["status"] == "Running"
    assert run("ops", "fix", operation, "3", "weight=3", *at)[1]["rowsSubmitted"] == 1
    assert run("signal", operation, "approval-D5", *at)[1]["outcome"] == "delivered"
    assert main(["ops", "watch", operation, "--every", "0.05", *at]) == 3
    assert "CompletedWithErrors" in capsys.readouterr().out
    assert run("ops", "show", operation, *at)[1]["successfulRows"] == 4
    assert run("ops", "cancel", operation, *at)[0] == 1
    assert run("ops", "validate", "parcels", str(both.folder / "parcels.csv"), *at)[1]["invalidRows"] == 1


def test_rows_are_exported_alike_from_both(both: Both, run: Any, operation: str, tmp_path: Path):
    here, there, words = (
        tmp_path / "here.csv",
        tmp_path / "there.csv",
        ("ops", "export", operation, "--state", "Failed"),
    )
    code, told = run(*words, "--db", both.db, "--out", str(here))
    assert (code, told["bytes"]) == (0, len(here.read_bytes()))
    assert run(*words, "--url", both.url, "--out", str(there))[0] == 0
    assert here.read_bytes() == there.read_bytes()
    assert len(here.read_text().splitlines()) == 2
    assert run(*words, "--url", both.url)[0] == 2  # stdout has the document
    assert run(*words, "--url", both.url, "--out", str(there), "--format", "xml")[0] == 1


def test_the_server_may_be_named_by_the_environment(both: Both, run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_URL", both.url)
    monkeypatch.chdir(both.folder)
    code, listed = run("ops", "list")
    assert (code, isinstance(listed["items"], list)) == (0, True)
    assert run("ops", "list", "--db", both.db)[0] == 0
    assert run("idempotency", "unsettled")[0] == 0  # that asks the database


@pytest.mark.parametrize(
    "words",
    [
        ("prune",), ("delete", "@last"), ("erase", "@last"), ("hold", "@last", "case 7"), ("release", "@last"),
        ("migrate", "@last", "--app", "shop.py"),
    ],
)  # fmt: skip
def test_what_a_server_cannot_be_asked_changes_no_other_database_unless_it_is_named(
    run: Any, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_URL", "http://127.0.0.1:1")
    code, problem = run("ops", *words)
    assert (code, "cannot ask the server http://127.0.0.1:1" in problem["detail"]) == (2, True)
    assert run("ops", *words, "--db", "sqlite:///x.db")[1]["detail"].startswith(
        ("database not found", "there is no file")
    )
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "sqlite:///x.db")
    assert run("ops", *words)[0] == 1


@pytest.mark.parametrize(
    "words, told",
    [
        (("--url", "http://127.0.0.1:1"), "does not answer"),
        (("--url", "ftp://x"), "begins with http://"),
        (("--url", "http://x", "--db", "sqlite:///x.db"), "cannot be used together"),
    ],
)
def test_a_server_that_cannot_be_asked_is_told(run: Any, words: tuple[str, ...], told: str):
    code, problem = run("ops", "list", *words)
    assert code != 0
    assert told in problem["detail"]
