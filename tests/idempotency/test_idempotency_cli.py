"""`penstock idempotency`: the keys of an application, looked after from the terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.idempotency import Address, Idempotency

URL = "sqlite:///penstock.db"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command in a folder with keys in several states."""
    monkeypatch.chdir(tmp_path)

    async def fill() -> None:
        async with Idempotency.open(URL, lease=3600) as keys:
            async with keys.guard("done", scope=("acme", "ana"), label="POST /orders") as attempt:
                attempt.answer = b"kept"
            await keys.claim(Address.of("running"), "f")
            cut_off = await keys.claim(Address.of("cut-off"), "f", label="POST /calls")
            await cut_off.abandon()
            async with keys.guard("old", retention=0.000001):
                pass

    asyncio.run(fill())

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_keys_that_were_cut_off_are_listed(penstock: Run):
    code, out, _ = penstock("idempotency", "unsettled")
    assert code == 0
    assert "POST /calls" in out
    assert "cut-off" in out
    assert "running" not in out
    code, out, _ = penstock("idempotency", "unsettled", "--json")
    [item] = json.loads(out)["items"]
    assert (item["key"], item["state"], item["hasAnswer"]) == ("cut-off", "Indeterminate", False)


def test_a_key_is_shown_to_who_names_its_caller(penstock: Run):
    code, out, _ = penstock("idempotency", "show", "done", "--caller", "acme", "--caller", "ana", "--json")
    assert code == 0
    shown = json.loads(out)
    assert (shown["state"], shown["request"], shown["hasAnswer"]) == ("Completed", "POST /orders", True)
    code, _, err = penstock("idempotency", "show", "done")
    assert code == 1
    assert "idempotency key 'done' is free" in err


def test_a_key_is_forgotten_unless_its_request_is_running(penstock: Run):
    assert penstock("idempotency", "forget", "cut-off")[:2] == (0, "cut-off is free now.\n")
    assert penstock("idempotency", "forget", "cut-off")[:2] == (0, "cut-off was free already.\n")
    code, _, err = penstock("idempotency", "forget", "running")
    assert code == 1
    assert "still running" in err
    code, out, _ = penstock("idempotency", "unsettled")
    assert (code, out) == (0, "No keys.\n")


def test_a_sweep_says_how_many_keys_it_removed(penstock: Run):
    assert penstock("idempotency", "sweep")[:2] == (0, "1 key removed.\n")
    assert json.loads(penstock("idempotency", "sweep", "--json")[1]) == {"removed": 0}
