"""Looking at operations from the command line: tables for people, documents for machines."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest

from penstock.cli import main

APP = str(Path(__file__).parent / "cli_app.py")
GUESTS = "name,age\nAnn,30\nNobody,40\nShaky,50\n,60\nBea,old\n\x1b[31mEve,70\n"

Show = Callable[..., str]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database that holds one operation."""
    made = tmp_path_factory.mktemp("ops")
    (made / "guests.csv").write_text(GUESTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        words = ("run", "invite", "guests.csv", "--app", APP, "--meta", "words=Come!", "--no-progress")
        assert main(words) == 3
    return made


@pytest.fixture
def show(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    """What a command prints for people; it must succeed."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    capsys.readouterr()

    def run(*words: str) -> str:
        code = main(words)
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return run


@pytest.fixture
def ask(show: Show) -> Ask:
    """The document a command answers with."""
    return lambda *words: json.loads(show(*words, "--json"))


@pytest.fixture
def operation(ask: Ask) -> str:
    return str(ask("ops", "list")["items"][0]["id"])


@pytest.mark.parametrize("words", [("ops", "export", "@last"), ("lifecycle", "export", "order")])
@pytest.mark.parametrize("place, said", [("nowhere/rows.csv", "there is no folder nowhere"), (".", "is a folder")])
def test_a_place_that_cannot_be_written_is_refused(
    words: tuple[str, ...], place: str, said: str, capsys: pytest.CaptureFixture[str]
):
    assert main([*words, "--out", place]) == 2
    assert said in capsys.readouterr().err


def test_operations_are_listed_with_an_id_that_can_be_copied(show: Show, ask: Ask, operation: str):
    lines = show("ops", "list").splitlines()
    assert lines[0].split() == ["ID", "STATUS", "ROWS", "FAILED", "CREATED", "NAME", "FILE"]
    short = lines[1].split()[0]
    assert operation.startswith(short)
    assert ask("ops", "show", short)["id"] == operation


@pytest.mark.parametrize("name", ["@last", "@last:invite", "@last:INVITE"])
@pytest.mark.parametrize(
    "words",
    [
        ("ops", "show"), ("ops", "show", "--row", "1"), ("ops", "rows"), ("ops", "errors"),
        ("ops", "errors", "--groups"), ("ops", "history"), ("ops", "events"),
        ("ops", "waits"), ("ops", "unclaimed"), ("verify",),
    ],
)  # fmt: skip
def test_the_newest_operation_has_a_name_wherever_an_id_is_asked_for(
    ask: Ask, operation: str, name: str, words: tuple[str, ...]
):
    assert ask(*words, name) == ask(*words, operation)


@pytest.mark.parametrize(
    "name, said",
    [
        ("@last:greet", "there is no operation yet with the name 'greet'"),
        ("@first", "operation not found: '@first'"),
    ],
)
def test_a_name_for_no_operation_is_exit_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, said: str
):
    monkeypatch.chdir(folder)
    assert main(["ops", "show", name]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("penstock ops show ", ["@last", "{id}"]),
        ("penstock ops show {id:.4}", ["{id}"]),
        (f"penstock run --app {APP} inv", ["invite"]),
        ("penstock ops retr", ["retry"]),
        ("penstock run --app none.py inv", []),
        ("penstock ops show --db sqlite:///none.db 0", []),
    ],
)
def test_a_shell_is_offered_names_and_ids(folder: Path, operation: str, typed: str, offered: list[str]):
    words = typed.replace("{id:.4}", operation[:4])
    asked = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [*forked.python(), "-m", "penstock"],
        cwd=folder,
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [text.replace("{id}", operation) for text in offered]
    assert "Traceback" not in done.stderr
    assert not (folder / "none.db").exists()


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_narrow_terminal_loses_columns_but_never_part_of_an_id_or_a_number(
    show: Show, operation: str, monkeypatch: pytest.MonkeyPatch, columns: int
):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = show("ops", "list").splitlines()
    assert max(map(len, lines)) <= columns
    if columns >= 60:
        assert lines[-1].split()[0] == operation[:13] or lines[1].split()[0] == operation[:13]


@pytest.mark.parametrize(
    "words, number",
    [
        (("--status", "completedwitherrors"), 1),
        (("--status", "Failed", "--status", "Cancelled"), 0),
        (("--name", "INVI"), 1),
        (("--name", "other"), 0),
        (("--since", "2020-01-01"), 1),
        (("--until", "2020-01-01"), 0),
    ],
)
def test_operations_are_filtered(ask: Ask, words: tuple[str, ...], number: int):
    assert len(ask("ops", "list", *words)["items"]) == number


def test_an_empty_list_says_so(show: Show):
    assert show("ops", "list", "--name", "other") == "0 operations found\n"


def test_an_operation_is_shown_with_its_counters(show: Show, ask: Ask, operation: str):
    text = show("ops", "show", operation[:13])
    assert operation in text
    assert "3  (2 invalid, 1 in steps)" in text
    assert "find → write" in text
    assert ask("ops", "show", operation)["fileName"] == "guests.csv"


@pytest.mark.covers("SM-024", "SM-025")
def test_one_row_is_shown_with_its_way_through_the_steps(show: Show, ask: Ask, operation: str):
    text = show("ops", "show", operation, "--row", "3")
    assert "Shaky" in text
    row = ask("ops", "show", operation, "--row", "3")
    assert row["rowData"] == {"name": "Shaky", "age": "50"}
    assert (row["rowId"], row["state"], row["completedSteps"], row["totalSteps"]) == ("Shaky", "Completed", 2, 2)
    assert [(s["stepIndex"], s["stepName"], s["state"], s["stepAttempts"]) for s in row["steps"]] == [
        (-1, "validation", "Completed", 1),
        (0, "find", "Completed", 2),
        (1, "write", "Completed", 1),
    ]
    assert row["steps"][1]["output"] == "Shaky's house"


def test_rows_are_listed_page_by_page(show: Show, ask: Ask, operation: str):
    first = ask("ops", "rows", operation, "--limit", "4")
    rest = ask("ops", "rows", operation, "--limit", "4", "--cursor", first["nextCursor"])
    assert [row["rowNumber"] for row in (*first["items"], *rest["items"])] == [1, 2, 3, 4, 5, 6]
    assert rest["nextCursor"] is None
    assert f"More entries: add --cursor {first['nextCursor']}" in show("ops", "rows", operation, "--limit", "4")


def test_rows_are_filtered(ask: Ask, operation: str):
    def numbers(*words: str) -> list[int]:
        return [row["rowNumber"] for row in ask("ops", "rows", operation, *words)["items"]]

    assert numbers("--state", "failed") == [2]
    assert numbers("--state", "Failed", "--state", "Invalid") == [2, 4, 5]
    assert numbers("--type", "Validation") == [4, 5]
    assert numbers("--row-key", "Ann") == [1]
    assert numbers("--first", "2", "--last", "3") == [2, 3]
    assert numbers("--step", "find") == [2]


@pytest.mark.covers("SM-038", "SM-040")
def test_errors_are_listed_with_every_fault(show: Show, ask: Ask, operation: str):
    assert "Nobody lives here" in show("ops", "errors", operation)
    found = ask("ops", "errors", operation)["items"]
    assert [(e["rowNumber"], e["stepName"], e["stepIndex"], e["errorType"]) for e in found] == [
        (2, "find", 0, "StepFailure"),
        (4, "validation", -1, "Validation"),
        (5, "validation", -1, "Validation"),
    ]
    assert [fault["field"] for fault in found[2]["faults"]] == ["age"]
    assert len(ask("ops", "errors", operation, "--type", "Validation")["items"]) == 2
    assert "rowData" not in found[0]
    assert ask("ops", "errors", operation, "--row", "2", "--data")["items"][0]["rowData"]["name"] == "Nobody"


def test_errors_are_counted_by_kind(show: Show, ask: Ask, operation: str):
    groups = ask("ops", "errors", operation, "--groups")["items"]
    assert sum(group["rows"] for group in groups) == 3
    assert "FIRST ROW" in show("ops", "errors", operation, "--groups")


def test_a_row_is_listed_with_its_data_and_with_its_error(show: Show, operation: str):
    text = show("ops", "rows", operation, "--state", "Failed", "--data")
    assert "Nobody lives here" in text
    assert '"age": "40"' in text


def test_groups_that_are_not_shown_are_counted(show: Show, operation: str):
    assert "failed with other errors" not in show("ops", "errors", operation, "--groups")
    cut = show("ops", "errors", operation, "--groups", "--limit", "1")
    assert cut.endswith("2 more rows failed with other errors. To see all kinds: add a larger --limit\n")


@pytest.mark.parametrize(
    "words, number",
    [(("rows", "@last"), 6), (("errors", "@last"), 3), (("history", "@last"), 1), (("list",), 1), (("events",), 4)],
)
def test_a_limit_above_the_size_of_a_page_is_kept(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], number: int
):
    monkeypatch.setenv("PENSTOCK_PAGE_MAX", "2")
    found = ask("ops", *words, "--limit", "100")
    assert (len(found["items"]), found["nextCursor"]) == (number, None)
    part = ask("ops", *words, "--limit", "1")
    assert (len(part["items"]), part["nextCursor"] is None) == (1, number == 1)


def test_a_limit_that_groups_cannot_have_is_refused(
    show: Show, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], operation: str
):
    monkeypatch.setenv("PENSTOCK_PAGE_MAX", "2")
    assert main(["ops", "errors", operation, "--groups", "--limit", "3"]) == 2
    assert "--limit with --groups is 2 at most" in capsys.readouterr().err


def test_history_has_the_attempt_that_was_tried_again(show: Show, ask: Ask, operation: str):
    [entry] = ask("ops", "history", operation, "--row", "3")["items"]
    assert (entry["stepName"], entry["stepAttempts"], entry["event"]) == ("find", 1, "postponed")
    assert "the line broke" in show("ops", "history", operation)


@pytest.mark.covers("SM-001")
def test_events_are_the_operations_moves_in_order(show: Show, ask: Ask, operation: str):
    moves = ask("ops", "events", operation[:13])["items"]
    assert [(m["from"], m["to"]) for m in moves] == [
        (None, "Pending"),
        ("Pending", "Validating"),
        ("Validating", "Running"),
        ("Running", "CompletedWithErrors"),
    ]
    page = ask("ops", "events", "--limit", "3")
    assert [e["event"] for e in ask("ops", "events", "--cursor", page["nextCursor"])["items"]] == [
        "finished_with_errors"
    ]
    assert "finished_with_errors" in show("ops", "events", operation)


def test_a_file_cannot_command_the_terminal_that_shows_it(show: Show, operation: str):
    text = show("ops", "rows", operation, "--data") + show("ops", "show", operation, "--row", "6")
    assert "\x1b" not in text
    assert r"\x1b[31mEve" in text


def test_validate_is_a_dry_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(folder)
    (folder / "good.csv").write_text("name,age\nAnn,30\n")
    meta = ("--app", APP, "--meta", "words=Hi")
    assert main(["ops", "validate", "invite", "good.csv", *meta]) == 0
    assert "The file is valid: 1 row, 0 invalid. Nothing was stored." in capsys.readouterr().out
    assert main(["ops", "validate", "invite", "guests.csv", *meta]) == 1
    out = capsys.readouterr().out
    assert "The file is not valid: 6 rows, 2 invalid" in out
    assert "First errors" in out
    assert main(["ops", "validate", "invite", "guests.csv", "--app", APP, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["isValid"], found["totalRows"], found["invalidRows"]) == (False, 6, 2)
    assert [fault["field"] for fault in found["metadataFaults"]] == ["words"]
    assert main(["ops", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["items"]) == 1
    before = sorted(folder.iterdir())
    assert main(["ops", "validate", "invite", "good.csv", *meta, "--db", "sqlite:///elsewhere.db"]) == 0
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "words, said",
    [
        (("ops", "show", "0190"), "operation not found: '0190'"),
        (("ops", "rows", "01900000"), "operation not found: '01900000'"),
        (("ops", "list", "--status", "Done"), "no such status: Done; known: Pending"),
        (("ops", "list", "--cursor", "x"), "'x' is not a cursor of this list"),
        (("ops", "list", "--sort", "size"), "cannot be sorted by 'size'"),
        (("ops", "list", "--db", "sqlite:///none.db"), "database not found: none.db"),
        (("ops", "list", "--db", "sqlite:///no/folder.db"), "the folder of the database does not exist"),
    ],
)
def test_what_is_not_there_is_exit_1(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
):
    monkeypatch.chdir(folder)
    assert main(words) == 1
    assert said in capsys.readouterr().err
    assert main([*words, "--json"]) == 1
    assert said in json.loads(capsys.readouterr().out)["detail"]
    assert not (folder / "none.db").exists()


@pytest.mark.parametrize("look", [("ops", "list"), ("doctor",), ("db", "check"), ("lifecycle", "list")])
def test_the_command_that_makes_a_database_which_is_not_there_makes_the_one_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], look: tuple[str, ...]
):
    monkeypatch.chdir(tmp_path)
    assert main([*look, "--db", "sqlite:///none.db"]) == 1
    _, *words = shlex.split(capsys.readouterr().err.split("`")[1])
    assert main(words) == 0
    assert [path.name for path in tmp_path.glob("*.db")] == ["none.db"]


def test_a_full_disk_is_told_of_an_export_as_of_everything_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], operation: str
):
    monkeypatch.chdir(folder)
    assert main(["ops", "export", operation, "--out", "/dev/full"]) == 1
    assert capsys.readouterr().err == "penstock: the output cannot be written: No space left on device\n"


def test_an_unknown_row_says_how_many_there_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], operation: str
):
    assert main(["ops", "show", operation, "--row", "77"]) == 1
    assert "6" in capsys.readouterr().err
