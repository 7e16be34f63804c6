"""`penstock run`: what users see, what machines get, and with which code it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.engine import Penstock
from penstock.operations.control import cancel
from penstock.operations.operation_ids import number_of
from penstock.pipeline import load_app

APP = str(Path(__file__).parent / "cli_app.py")
GUESTS = "name,age\nAnn,30\nNobody,40\nShaky,50\n,60\nBea,old\n"
ALL_GOOD = "name,age\nAnn,30\nBea,31\n"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    for name, text in {"guests.csv": GUESTS, "good.csv": ALL_GOOD, "empty.csv": "name,age\n"}.items():
        (tmp_path / name).write_text(text)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def invite(file: str = "guests.csv", *more: str) -> tuple[str, ...]:
    return ("run", "invite", file, "--app", APP, "--meta", "words=Come!", *more)


def document(text: str) -> Any:
    return json.loads(text)


@pytest.mark.covers("SM-016")
def test_a_file_without_mistakes_ends_completed_with_exit_0(penstock: Run):
    code, out, err = penstock(*invite("good.csv"))
    assert code == 0
    assert "Completed" in out
    assert "What went wrong" not in out
    assert "Traceback" not in err


@pytest.mark.covers("SM-007", "SM-021")
def test_the_verdict_names_counts_error_groups_and_what_to_try(penstock: Run):
    code, out, _ = penstock(*invite())
    assert code == 3
    assert "CompletedWithErrors" in out
    assert "Rows        5" in out
    assert "Successful  2" in out
    assert "3  (2 invalid, 1 in steps)" in out
    assert "rows/s" in out
    assert "Nobody lives here" in out
    assert "age: Input should be a valid integer" in out
    assert "penstock ops errors " in out


def test_the_verdict_says_how_many_rows_its_groups_do_not_show(penstock: Run, tmp_path: Path):
    kinds = "".join(f"guest {'x' * number},{'y' * number}\n" for number in range(1, 3))
    (tmp_path / "wrong.csv").write_text("name,age\n,30\nAnn,-1\nNobody,1\nShaky,2\nBea\n,-1\nCleo,1,2\n" + kinds)
    _, out, _ = penstock(*invite("wrong.csv", "--set", "find.retries=0"))
    shown = [int(line.split()[0]) for line in out.split("FOR EXAMPLE\n")[1].splitlines()[:5]]
    assert "Failed      9" in out
    assert f"{9 - sum(shown)} more rows failed with other errors. To see all kinds: " in out
    assert re.search(r"kinds: .*penstock ops errors \S+ --groups", out)


@pytest.mark.parametrize(
    "rows, states",
    [
        ("Ann,old", "--state Invalid"),
        ("Nobody,30", "--state Failed"),
        ("x,y\nNobody,3", "--state Failed --state Invalid"),
    ],
)
def test_the_commands_to_try_next_fit_what_happened(penstock: Run, tmp_path: Path, rows: str, states: str):
    (tmp_path / "wrong.csv").write_text(f"name,age\n{rows}\n")
    _, out, _ = penstock(*invite("wrong.csv"))
    assert re.search(rf"penstock ops rows \S+ {states}\n", out)


@pytest.mark.parametrize("server", ["", "http://127.0.0.1:1"], ids=["no server", "beside a server"])
def test_the_commands_to_try_next_work(penstock: Run, monkeypatch: pytest.MonkeyPatch, server: str):
    if server:  # which other commands ask, where `run` works on a database
        monkeypatch.setenv("PENSTOCK_URL", server)
        monkeypatch.setenv("PENSTOCK_DATABASE_URL", "sqlite:///other.db")
    _, out, _ = penstock(*invite("guests.csv", *(() if server else ("--db", "sqlite:///other.db"))))
    tries = [
        line.split("penstock ", 1)[1].split()
        for line in out.splitlines()
        if line.startswith("  ") and "penstock " in line
    ]
    assert len(tries) == 3
    assert [penstock(*words)[0] for words in tries] == [0, 0, 0]


def test_json_is_one_document_on_stdout_and_people_read_stderr(penstock: Run):
    code, out, err = penstock(*invite("guests.csv", "--json"))
    found = document(out)
    assert code == 3
    assert found["operationName"] == "invite"
    assert found["status"] == "CompletedWithErrors"
    assert (found["totalRows"], found["processedRows"]) == (5, 5)
    assert (found["successfulRows"], found["failedRows"], found["invalidRows"]) == (2, 3, 2)
    assert found["progress"] == 100
    assert found["metadata"] == {"words": "Come!", "times": 1}
    assert found["steps"] == ["find", "write"]
    assert found["createdAt"].endswith("Z")
    assert "What went wrong" in err


def test_progress_on_a_pipe_is_plain_lines(penstock: Run):
    _, _, err = penstock(*invite())
    assert "\x1b" not in err
    assert err.splitlines()[3] == "Pending: 0 rows read"


def test_a_run_says_at_its_start_which_operation_it_is_and_how_to_resume_it(penstock: Run):
    _, out, err = penstock(*invite("good.csv", "--json"))
    made = document(out)["id"]
    first, second, third, *_ = err.splitlines()
    assert first == f"Operation {made} (invite)"
    assert second == "To continue it after an interruption:"
    assert third.endswith(f"penstock run --continue {made} --app {APP}")


def test_progress_can_be_left_out(penstock: Run):
    assert penstock(*invite("good.csv", "--no-progress"))[2] == ""


def test_an_empty_file_is_refused_and_the_refusal_says_how_it_can_be_allowed(penstock: Run):
    code, _, err = penstock(*invite("empty.csv"))
    assert code == 1
    assert "'empty.csv' has a header and no rows" in err
    code, out, _ = penstock(*invite("empty.csv", "--json", "--set", "allow_empty=true"))
    assert code == 0
    assert document(out)["totalRows"] == 0


@pytest.mark.covers("SM-018")
def test_a_file_without_the_columns_fails_with_exit_1_and_the_reason(penstock: Run, tmp_path: Path):
    (tmp_path / "wrong.csv").write_text("title,age\nAnn,30\n")
    code, out, _ = penstock(*invite("wrong.csv"))
    assert code == 1
    assert "Failed" in out
    assert "Error" in out
    assert "name" in out


@pytest.mark.covers("SM-008")
def test_too_many_errors_fail_the_operation_with_exit_1(penstock: Run):
    code, out, _ = penstock(*invite("guests.csv", "--set", "max_errors=0", "--json"))
    assert code == 1
    assert document(out)["status"] == "Failed"
    assert document(out)["errorMessage"]


def test_an_operation_that_was_cancelled_is_exit_4(penstock: Run, tmp_path: Path):
    code, out, _ = penstock("run", "--continue", asyncio.run(cancelled_operation(tmp_path)), "--app", APP)
    assert code == 4
    assert "Cancelled" in out


async def cancelled_operation(folder: Path) -> str:
    async with Penstock.open("sqlite:///penstock.db", operations=load_app(APP)) as engine:
        made = await engine.operations.create("dawdle", file=folder / "good.csv")
        async with engine.db.read() as tx:
            number = await number_of(tx, made.id)
        await cancel(engine.db, number, actor="ann")
        return made.id


def test_metadata_comes_from_a_file_and_single_fields_go_over_it(penstock: Run, tmp_path: Path):
    (tmp_path / "meta.json").write_text('{"words": "Hi", "times": 2}')
    _, out, _ = penstock(
        "run", "invite", "good.csv", "--app", APP, "--meta-file", "meta.json", "--meta", "times=3", "--json"
    )
    assert document(out)["metadata"] == {"words": "Hi", "times": 3}


@pytest.mark.parametrize("command", [("run",), ("submit",), ("ops", "validate")])
def test_a_metadata_field_that_the_operation_does_not_have_is_refused(penstock: Run, command: tuple[str, ...]):
    code, out, err = penstock(*command, "invite", "good.csv", "--app", APP, "--meta", "words=Hi", "--meta", "tims=3")
    assert (code, out) == (1, "")
    assert "tims: is not a field of the metadata; did you mean 'times'?" in err
    assert not os.path.exists("penstock.db")


def test_options_can_be_set_for_one_run(penstock: Run):
    code, out, _ = penstock(*invite("guests.csv", "--set", "find.retries=0", "--set", "max_errors=100", "--json"))
    assert code == 3
    assert document(out)["failedRows"] == 4
    assert document(out)["options"]["max_errors"] == 100


def test_a_settled_operation_is_not_run_again_by_resume(penstock: Run):
    made = document(penstock(*invite("good.csv", "--json"))[1])
    code, out, _ = penstock("run", "--continue", made["id"][:13], "--app", APP, "--json")
    assert code == 0
    assert document(out) == made


# --- what is refused


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("run", "invite"), 2, "name an operation and a file"),
        (("run", "invite", "good.csv"), 2, "--app"),
        (("run", "invite", "good.csv", "--app", APP, "--meta", "words"), 2, "--meta takes NAME=VALUE; found 'words'"),
        (("run", "invite", "good.csv", "--app", APP, "--continue", "x"), 2, "leave out OPERATION"),
        (("run", "invite", "good.csv", "--bogus"), 2, "No such option: --bogus"),
        (("run", "invit", "good.csv", "--app", APP), 1, "did you mean 'invite'? known: dawdle, invite"),
        (("run", "invite", "none.csv", "--app", APP), 1, "file not found: none.csv"),
        (("run", "invite", ".", "--app", APP), 1, ". is a folder, not a file"),
        (("run", "invite", "good.csv", "--app", "no.such.module"), 1, "there is no module 'no.such.module'"),
        (("run", "invite", "good.csv", "--app", APP, "--meta-file", "none.json"), 1, "file not found: none.json"),
        (("run", "invite", "good.csv", "--app", APP, "--meta-file", "good.csv"), 1, "cannot be read as JSON"),
        (("run", "invite", "good.csv", "--app", APP), 1, "words"),
        ((*invite("good.csv"), "--set", "fnd.retries=1"), 1, "no such step; known: find, write"),
        ((*invite("good.csv"), "--db", "nosql://x"), 1, "known forms are: sqlite:///file.db"),
        (("run", "--continue", "01900000", "--app", APP), 1, "database not found: penstock.db"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_stores_nothing(
    penstock: Run, tmp_path: Path, words: tuple[str, ...], code: int, said: str
):
    found, out, err = penstock(*words)
    assert (found, out) == (code, "")
    assert said in err
    assert "Traceback" not in err
    as_json = penstock(*words, "--json")
    problem = document(as_json[1])
    assert as_json[0] == code
    assert said in problem["detail"]
    assert problem.keys() >= {"type", "title", "status", "detail"}
    assert as_json[2] == ""
    assert not list(tmp_path.glob("*.blobs/*"))


def test_bad_metadata_is_told_field_by_field(penstock: Run):
    words = ("run", "invite", "good.csv", "--app", APP, "--meta", "times=0")
    code, _, err = penstock(*words)
    assert code == 1
    assert err.splitlines()[-2:] == [
        "  - words: Field required",
        "  - times: Input should be greater than or equal to 1",
    ]
    faults = document(penstock(*words, "--json")[1])["faults"]
    assert [fault["field"] for fault in faults] == ["words", "times"]


def test_an_operation_of_another_application_is_not_resumed(penstock: Run, tmp_path: Path):
    made = document(penstock(*invite("good.csv", "--json"))[1])
    code, _, err = penstock("run", "--continue", made["id"], "--app", f"{APP}:dawdle")
    assert code == 1
    assert "'invite', which the application does not declare; it declares: dawdle" in err


def test_a_bug_shows_its_traceback(penstock: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.cli.session.Place.definitions", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        penstock("run", "--continue", "01900000")


def test_several_processes_work_on_one_file(penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_CHUNK_ROWS", "1")
    (tmp_path / "met").mkdir()
    (tmp_path / "many.csv").write_text("name,age\n" + "Ann,30\n" * 60)
    code, out, err = penstock("run", "meet", "many.csv", "--app", APP, "--workers", "2")
    assert code == 0, err
    assert "Completed" in out
    processes = [int(path.name) for path in (tmp_path / "met").iterdir()]
    assert len(processes) == 2
    (other,) = set(processes) - {os.getpid()}
    with pytest.raises(ProcessLookupError):  # it went when the command did
        os.kill(other, 0)
