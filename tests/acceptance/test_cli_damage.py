"""A SQLite file that is damaged, or is no database: every command says so in one message, and none in a traceback."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.cli import main

APP = str(Path(__file__).parent / "cli_app.py")
PAGE = 4096

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command in a folder with a database that holds an operation; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "guests.csv").write_text("name,age\n" + "".join(f"Guest {n},{n}\n" for n in range(1, 100)))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    assert run("run", "invite", "guests.csv", "--app", APP, "--meta", "words=Come!")[0] == 0
    with closing(sqlite3.connect("penstock.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return run


def garbage(size: int) -> bytes:
    return random.Random(1).randbytes(size)


def pages_of(file: Path, table: str) -> list[int]:
    """The pages of a table's tree, the root first."""
    with closing(sqlite3.connect(file)) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    return [int(root[0])]


def truncate(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2 + 100])


def spoil_header(file: Path) -> None:
    file.write_bytes(garbage(100) + file.read_bytes()[100:])


def spoil_operations(file: Path) -> None:
    content, (page,) = file.read_bytes(), pages_of(file, "penstock_operation")
    file.write_bytes(content[: PAGE * (page - 1)] + garbage(PAGE) + content[PAGE * page :])


def spoil_text(file: Path) -> None:
    file.write_text("these are notes\n")


DAMAGES = [truncate, spoil_header, spoil_operations, spoil_text]
COMMANDS = [
    ("ops", "list"),
    ("ops", "prune", "--older-than", "1d"),
    ("verify",),
    ("db", "check"),
    ("doctor",),
    ("run", "invite", "guests.csv", "--app", APP, "--meta", "words=Come!"),
    ("worker", "--app", APP),
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_names_the_damaged_file_and_what_to_do(
    penstock: Run, tmp_path: Path, damage: Callable[[Path], None], words: tuple[str, ...]
):
    file = tmp_path / "penstock.db"
    damage(file)
    code, out, err = penstock(*words)
    said = " ".join((out + err).split())
    assert code == 1
    assert str(file) in said
    assert "is damaged" in said or "is no SQLite database" in said
    assert "restore it from a backup" in said
    assert ".recover" in said
    assert "Traceback" not in err


def test_a_damaged_page_that_nothing_reads_is_found_by_db_check(penstock: Run, tmp_path: Path):
    file = tmp_path / "penstock.db"
    content, (page,) = file.read_bytes(), pages_of(file, "penstock_signal")
    file.write_bytes(content[: PAGE * (page - 1)] + garbage(PAGE) + content[PAGE * page :])
    assert penstock("ops", "list")[0] == 0
    code, out, err = penstock("db", "check")
    assert code == 1
    assert f"the database file {file} is damaged" in out + err
    assert "Traceback" not in err


def test_a_sound_database_is_found_to_be_sound(penstock: Run):
    assert penstock("db", "check")[0] == 0


@pytest.mark.parametrize("words", [("ops", "list"), ("doctor",), ("db", "check")], ids=" ".join)
def test_a_folder_in_place_of_a_database_is_told(penstock: Run, tmp_path: Path, words: tuple[str, ...]):
    (tmp_path / "folder.db").mkdir()
    code, out, err = penstock(*words, "--db", "sqlite:///folder.db")
    assert code == 1
    assert f"{tmp_path / 'folder.db'} is a folder; name a database file" in out + err


@pytest.mark.parametrize("words", [("ops", "list"), ("doctor",), ("db", "check")], ids=" ".join)
def test_a_file_that_cannot_be_opened_is_named(penstock: Run, tmp_path: Path, words: tuple[str, ...]):
    """For want of permissions, say; a folder where SQLite wants its log stops even root."""
    (tmp_path / "penstock.db-wal").unlink(missing_ok=True)
    (tmp_path / "penstock.db-wal").mkdir()
    code, out, err = penstock(*words)
    assert code == 1
    said = " ".join((out + err).split())
    assert f"the database file {tmp_path / 'penstock.db'} cannot be opened" in said
    assert "this user must be able to read and write it" in said
