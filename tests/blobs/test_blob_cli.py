"""`penstock blobs`, and what `verify` and `doctor` know of blobs. The commands run in this process, on SQLite."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.blobs.service import UNFINISHED_S
from penstock.cli import main
from penstock.clock import SystemClock
from penstock.operations.proof.doctor import diagnose
from penstock.settings import Settings

CSV = b"id,name\n1,Ana\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"sqlite:///{tmp_path / 'penstock.db'}")
    return tmp_path


@pytest.fixture
def uploaded(place: Path) -> dict[str, str]:
    """A Valid, a Rejected and a Pending blob, and one that is used: ids by name."""

    async def work() -> dict[str, str]:
        async with Penstock.open() as penstock:
            made = {
                "valid.csv": (await penstock.blobs.upload(CSV, file_name="valid.csv")).id,
                "bad.csv": (await penstock.blobs.upload(b"MZ\x90", file_name="bad.csv")).id,
                "used.csv": (await penstock.blobs.upload(CSV, file_name="used.csv")).id,
                "pending.csv": (await penstock.blobs.initiate("pending.csv")).blob.id,
            }
            await penstock.blobs.reference(made["used.csv"], "invoice:7")
            await penstock.blobs.hold(made["used.csv"], "case 12/7")
            return made

    return asyncio.run(work())


@pytest.fixture
def ask(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Run a command with --json: its exit code and document."""

    def run(*words: str) -> tuple[int, Any]:
        code = main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_files_are_listed_newest_first_and_by_status(uploaded: dict[str, str], ask: Callable[..., tuple[int, Any]]):
    code, page = ask("blobs", "list")
    assert code == 0
    assert [each["fileName"] for each in page["items"]] == ["pending.csv", "used.csv", "bad.csv", "valid.csv"]
    assert "storageKey" not in page["items"][0]
    _, page = ask("blobs", "list", "--status", "Valid", "--status", "Rejected", "--limit", "2")
    assert [each["status"] for each in page["items"]] == ["Valid", "Rejected"]
    _, page = ask("blobs", "list", "--status", "Valid", "--limit", "2", "--cursor", page["nextCursor"])
    assert [each["fileName"] for each in page["items"]] == ["valid.csv"]
    assert [each["fileName"] for each in ask("blobs", "list", "--held")[1]["items"]] == ["used.csv"]
    unused = ask("blobs", "list", "--unused", "--status", "Valid")[1]["items"]
    assert [each["fileName"] for each in unused] == ["valid.csv"]
    assert ask("blobs", "list", "--tenant", "acme")[1]["items"] == []
    assert ask("blobs", "list", "--status", "Done")[0] == 1


def test_a_file_is_shown_with_all_that_concerns_it(
    uploaded: dict[str, str], ask: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
):
    code, found = ask("blobs", "show", uploaded["used.csv"])
    assert (code, found["status"]) == (0, "Valid")
    assert [each["owner"] for each in found["references"]] == ["invoice:7"]
    assert [(each["name"], each["reason"]) for each in found["holds"]] == [("legal", "case 12/7")]
    assert [each["event"] for each in found["history"]] == ["created", "uploading", "validated", "held"]
    assert main(["blobs", "show", uploaded["bad.csv"]]) == 0
    assert "the file is a Windows program" in " ".join(capsys.readouterr().out.split())
    assert ask("blobs", "show", "nothing")[0] == 1


def test_a_file_is_deleted_for_a_reason_unless_it_is_used(
    uploaded: dict[str, str], ask: Callable[..., tuple[int, Any]], place: Path
):
    assert main(["blobs", "delete", uploaded["valid.csv"]]) == 2, "a reason must be given"
    code, refused = ask("blobs", "delete", uploaded["used.csv"], "--reason", "old")
    assert (code, "is held: 'legal'" in refused["detail"]) == (1, True)
    code, found = ask("blobs", "delete", uploaded["valid.csv"], "--reason", "GDPR Art. 17")
    assert (code, found["status"], found["deletionReason"]) == (0, "Deleted", "GDPR Art. 17")
    left = [path.name for path in (place / "penstock.db.blobs").rglob("*.*") if path.is_file()]
    assert [name for name in left if uploaded["valid.csv"] in name] == []


def test_a_sweep_says_what_it_did_and_verify_tells_of_lost_bytes(
    uploaded: dict[str, str], ask: Callable[..., tuple[int, Any]], place: Path
):
    assert ask("verify")[0] == 0
    for path in (place / "penstock.db.blobs" / "sealed").rglob("*.*"):
        path.unlink()
    code, found = ask("verify")
    assert code == 1
    assert {each["rule"] for each in found["differences"]} == {"blob_bytes_are_stored"}
    code, swept = ask("blobs", "sweep")
    assert (code, swept["deletedWithoutBytes"], swept["missing"]) == (1, 1, [uploaded["used.csv"]])


def test_doctor_tells_of_uploads_that_nobody_expires(uploaded: dict[str, str], place: Path):
    class Later(SystemClock):
        """Two days from now."""

        def now_us(self) -> int:
            return super().now_us() + round(2 * UNFINISHED_S * 1e6)

        is_real = False

    settings = Settings(database_url=f"sqlite:///{place / 'penstock.db'}")
    found = asyncio.run(diagnose(settings, Later()))
    assert [each.what for each in found.symptoms if each.check == "blobs_are_swept"] == [
        "1 upload should have expired, and did not"
    ]
    assert "blobs_are_swept" not in [each.check for each in asyncio.run(diagnose(settings, SystemClock())).symptoms]


def test_a_held_file_is_deleted_only_after_its_last_hold(
    uploaded: dict[str, str], ask: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
):
    blob = uploaded["valid.csv"]
    ask("blobs", "hold", blob, "--reason", "case 2031/7")
    code, holds = ask("blobs", "hold", blob, "--reason", "tax", "--name", "audit")
    assert (code, [(each["name"], each["reason"]) for each in holds["items"]]) == (
        0,
        [("audit", "tax"), ("legal", "case 2031/7")],
    )
    ask("blobs", "release", blob, "--reason", "closed")
    assert main(["blobs", "delete", blob, "--reason", "old"]) == 1
    assert "audit" in capsys.readouterr().err
    assert main(["blobs", "release", blob, "--reason", "done", "--name", "audit"]) == 0
    assert "No hold is left." in capsys.readouterr().out
    assert main(["blobs", "delete", blob, "--reason", "old"]) == 0
