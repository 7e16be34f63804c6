"""`penstock load`: a file into a table, what is told of it, and how what is left is loaded later."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.targets import Progress, ProgressDisplay, open_target

Load = Callable[..., tuple[int, str, str]]
CUSTOMERS = (
    "CREATE TABLE customers (id integer PRIMARY KEY, name text NOT NULL, age integer CHECK (age < 150), city text)"
)
FILE = "id;Name;age\n1;Ann;30\n2;Bea;999\n3;;40\n4;Dan;\n"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Load:
    """Calls the command in a folder with a database and a file; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db", isolation_level=None)) as shop:
        shop.execute(CUSTOMERS)
    (tmp_path / "customers.csv").write_text(FILE)

    def run(*words: str, file: str = "customers.csv") -> tuple[int, str, str]:
        code = main(["load", file, "--into", "sqlite:///shop.db", "--table", "customers", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def held() -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect("shop.db")) as shop:
        return shop.execute("SELECT id, name, age FROM customers ORDER BY id").fetchall()


@pytest.mark.covers("BX-005")
def test_good_records_are_loaded_and_bad_ones_told_by_their_rows(load: Load):
    code, out, _ = load("--key", "id")
    assert code == 3
    assert "customers: 2 created, 2 failed" in out
    assert "row 2: CHECK constraint failed: age < 150" in out
    assert "row 3: NOT NULL constraint failed: customers.name" in out
    assert held() == [(1, "Ann", 30), (4, "Dan", None)]


def test_a_file_without_mistakes_ends_with_exit_0_and_leaves_no_retry_file(load: Load):
    Path("customers.csv").write_text("id,name\n1,Ann\n")
    code, out, err = load()
    assert (code, out) == (0, "customers: 1 created\n")
    assert "1 records" in err or "1 of 1 records" in err
    assert not Path("customers.csv.retry.json").exists()


def test_failed_records_are_written_with_reasons_and_can_be_mended_and_loaded(load: Load):
    load("--errors", "failed.csv")
    text = Path("failed.csv").read_text()
    assert text.splitlines() == [
        "id,name,age,_row,_error",
        "2,Bea,999,2,CHECK constraint failed: age < 150",
        "3,,40,3,NOT NULL constraint failed: customers.name",
    ]
    Path("failed.csv").write_text(text.replace("999", "99").replace("3,,40", "3,Cid,40"))
    code, out, _ = load(file="failed.csv")
    assert (code, out) == (0, "customers: 2 created\n")


def test_failed_records_of_a_json_file_can_be_mended_and_loaded_too(load: Load):
    records = [{"id": 1, "age": 999, "name": True, "city": {"name": "Bâle", "near": ["Bern", None]}}]
    Path("customers.json").write_text(json.dumps(records))
    code, _, _ = load("--errors", "failed.csv", file="customers.json")
    text = Path("failed.csv").read_text()
    assert code == 3
    Path("failed.csv").write_text(text.replace("999", "99"))
    code, out, _ = load(file="failed.csv")
    assert (code, out) == (0, "customers: 1 created\n")
    with closing(sqlite3.connect("shop.db")) as shop:
        ((name, city),) = shop.execute("SELECT name, city FROM customers").fetchall()
    assert (name, json.loads(city)) == ("true", records[0]["city"])


def test_what_is_left_is_sent_again_from_the_same_file(load: Load):
    _, out, _ = load()
    assert "--retry customers.csv.retry.json" in out
    with closing(sqlite3.connect("shop.db", isolation_level=None)) as shop:
        shop.execute("ALTER TABLE customers RENAME TO strict")
        shop.execute("CREATE TABLE customers (id integer PRIMARY KEY, name text NOT NULL, age integer)")
    code, out, _ = load("--retry", "customers.csv.retry.json")
    assert (code, held()) == (3, [(2, "Bea", 999)])
    assert "row 3: NOT NULL" in out
    code, out, _ = load("--retry", "customers.csv.retry.json")
    assert "customers: 1 failed" in out


def test_creates_that_may_have_taken_effect_stay_in_the_retry_file_until_they_are_asked_for(load: Load):
    Path("customers.csv").write_text("id,name\n1,Ann\n2,Bea\n3,Cid\n")
    retry_file = Path("customers.csv.retry.json")
    left = {"mode": "create", "total": 3, "failed": [0], "unknown": [2], "not_run": [], "ids": {}}
    retry_file.write_text(json.dumps({"tables": {"customers": left}}))
    again = ("--mode", "create", "--retry", retry_file.name)
    code, out, _ = load(*again)
    assert (code, held()) == (3, [(1, "Ann", None)])
    assert "customers: 1 created, 1 unknown" in out
    assert "1 record may have been created: look, and send them with --unknown." in out
    code, out, _ = load("--json", *again)
    assert (code, json.loads(out)["outcomes"], json.loads(out)["records"]) == (3, {"unknown": 1}, 1)
    code, out, _ = load("--unknown", *again)
    assert (code, out) == (0, "customers: 1 created\n")
    assert held() == [(1, "Ann", None), (3, "Cid", None)]
    assert not retry_file.exists()


def test_the_command_to_try_next_repeats_the_load(load: Load):
    _, out, _ = load("--key", "id", "--only-changed")
    assert "--mode upsert --key id --only-changed --retry customers.csv.retry.json" in out


def test_the_command_to_try_next_shows_no_password(monkeypatch: pytest.MonkeyPatch, load: Load):
    shop = open_target("sqlite:///shop.db")
    monkeypatch.setattr("penstock.targets.open_target", lambda url: shop)
    _, out, _ = load("--into", "postgresql://me:s3cret@host/shop")
    assert "postgresql://me:***@host/shop" in out
    assert "s3cret" not in out


def test_a_retry_file_of_another_file_is_refused(load: Load):
    load()
    Path("customers.csv").write_text(FILE + "5;Eve;20\n")
    code, _, err = load("--retry", "customers.csv.retry.json")
    assert code == 1
    assert "the manifest was made for 4 records and this input has 5" in err


def test_records_can_be_created_updated_and_deleted_too(load: Load):
    Path("customers.csv").write_text("id,name\n1,Ann\n2,Bea\n")
    assert load("--mode", "create")[0] == 0
    assert load("--mode", "create")[1].startswith("customers: 2 failed")
    assert load("--only-changed")[1] == "customers: 2 unchanged\n"
    Path("customers.csv").write_text("id,name\n1,Anna\n")
    assert load("--mode", "update")[1] == "customers: 1 updated\n"
    assert load("--mode", "delete")[1] == "customers: 1 deleted\n"
    assert held() == [(2, "Bea", None)]


def test_rows_that_cannot_be_read_are_told_beside_the_others(load: Load):
    Path("customers.csv").write_text("id,name\n1,Ann\n2,Bea,too,many\n3,Cid\n")
    code, out, _ = load()
    assert code == 3
    assert "customers: 2 created, 1 row could not be read" in out
    assert "row 2: " in out


def test_json_files_are_loaded_as_well(load: Load):
    Path("customers.jsonl").write_text('{"id": 1, "name": "Ann"}\n{"id": 2, "nmae": "Bea"}\n')
    code, out, _ = load("--json", "--no-progress", file="customers.jsonl")
    told = json.loads(out)
    assert code == 3
    assert told["outcomes"] == {"created": 1, "failed": 1}
    assert (told["records"], told["retryFile"]) == (2, "customers.jsonl.retry.json")
    assert "has no column 'nmae'" in told["errors"][0]["message"]


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("--unknown",), 2, "add --retry FILE"),
        (("--mode", "merge"), 2, "--mode is one of create, update, upsert, delete; found 'merge'"),
        (("--into", "oracle://host/name"), 2, "--into: the address of a target is postgresql"),
        (("--table", "clients"), 1, "there is no table 'clients'"),
        (("--key", "name"), 1, "has no unique index on exactly (name)"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(load: Load, words: tuple[str, ...], code: int, said: str):
    ended, out, err = load(*words)
    assert ended == code
    assert said in out + err


@pytest.mark.parametrize(
    "place, said",
    [
        ("nowhere/failed.csv", "--errors: there is no folder nowhere"),
        (".", "--errors: . is a folder, not a file"),
        ("customers.csv", "--errors: customers.csv is the file that is loaded"),
        ("./customers.csv.retry.json", "--errors: ./customers.csv.retry.json is the retry file"),
    ],
)
def test_a_place_for_errors_that_cannot_be_written_is_refused_before_anything_is_sent(
    load: Load, place: str, said: str
):
    code, _, err = load("--errors", place)
    assert (code, held(), Path("customers.csv").read_text()) == (2, [], FILE)
    assert said in err


@pytest.mark.parametrize("right, said", [(os.W_OK, "customers.csv.retry.json: this user may not write"),
                                         (os.R_OK, "customers.csv: Permission denied")])  # fmt: skip
def test_a_file_or_folder_without_the_right_to_use_it_is_refused_before_anything_is_sent(
    load: Load, monkeypatch: pytest.MonkeyPatch, right: int, said: str
):
    monkeypatch.setattr(os, "access", lambda path, asked: asked != right)
    code, _, err = load()
    assert (code, held()) == (2 if right == os.W_OK else 1, [])
    assert said in err


@pytest.mark.parametrize(
    "text, said",
    [("id,nmae\n1,Ann\n", "the table has no column 'nmae'; it has: id, name, age, city"), ("id,name\n", "has no rows")],
)
def test_a_file_that_does_not_fit_is_refused_before_anything_is_sent(load: Load, text: str, said: str):
    Path("customers.csv").write_text(text)
    code, _, err = load()
    assert (code, held()) == (1, [])
    assert said in err


def test_too_many_errors_stop_a_load(load: Load):
    code, out, _ = load("--max-errors", "1", "--batch-size", "1")
    assert code == 1
    assert "It was stopped: too many errors" in out


def test_an_interrupted_load_keeps_what_is_left_for_later(load: Load, monkeypatch: pytest.MonkeyPatch):
    def interrupt(display: ProgressDisplay, progress: Progress) -> None:
        if progress.succeeded == 3:
            os.kill(os.getpid(), signal.SIGINT)

    Path("customers.csv").write_text("id,name\n" + "".join(f"{n},n{n}\n" for n in range(200)))
    with monkeypatch.context() as patch:
        patch.setattr(ProgressDisplay, "__call__", interrupt)
        code, out, err = load("--batch-size", "1")
    assert code == 130
    assert "It was stopped: cancelled" in out
    assert "press Ctrl-C again to stop now" in err
    done = len(held())
    assert 3 <= done < 200
    code, out, _ = load("--retry", "customers.csv.retry.json")
    assert (code, len(held())) == (0, 200)
    assert f"{200 - done} created" in out


def test_a_file_that_cannot_be_read_to_its_end_tells_what_was_loaded_before(load: Load):
    rows = "".join(f"{n},n{n}\n" for n in range(20_000))
    Path("customers.csv").write_bytes(f"id,name\n{rows}".encode() + b'9999,"never closed\n' + b"\xff" * 2_000_000)
    code, out, _ = load()
    assert (code, len(held())) == (1, 20_000)
    assert out.startswith("customers: 20,000 created\nIt was stopped: error in input: byte 0xFF at offset")
