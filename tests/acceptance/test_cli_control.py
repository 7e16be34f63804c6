"""Steering operations from the command line while another process works on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest
from sqlalchemy import select
from town import APP, Town, town_at

from penstock.engine import Penstock
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import chunks

ROWS = 400


@pytest.fixture
def town(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    with town_at(database_url, tmp_path, monkeypatch) as found:
        yield found


on_both = pytest.mark.databases("sqlite", "postgresql")
on_sqlite = pytest.mark.databases("sqlite")


# --- handing in


@on_sqlite
def test_a_file_is_submitted_for_a_worker_that_runs_elsewhere(town: Town):
    (town.folder / "citizens.csv").write_text("name,age\nAnn,30\n")
    code, out, err = town.call("submit", "visit", "citizens.csv", "--app", APP)
    assert (code, err) == (0, "")
    made = town.ask("ops", "show", "@last")
    assert made["status"] == "Pending"
    assert out.splitlines()[0] == f"Operation {made['id']} (visit)"
    assert f"penstock ops watch {made['id'][:13]}" in out
    assert town.ask("submit", "visit", "citizens.csv", "--app", APP)["status"] == "Pending"
    town.start_worker()
    assert town.call("ops", "watch", made["id"])[0] == 0


@on_sqlite
def test_what_cannot_be_submitted_is_refused_and_not_stored(town: Town):
    (town.folder / "citizens.csv").write_text("name,age\nAnn,30\n")
    for words, said in (
        (("vist", "citizens.csv"), "did you mean 'visit'?"),
        (("visit", "none.csv"), "none.csv"),
        (("visit", "citizens.csv", "--set", "visit.retry=1"), "retry"),
    ):
        code, _, err = town.call("submit", *words, "--app", APP)
        assert code == 1
        assert said in err
    assert town.ask("ops", "list")["items"] == []


@on_sqlite
def test_the_newest_operation_can_be_steered_by_its_name(town: Town):
    town.create("permit", rows=1)
    operation = town.create("visit")
    assert town.ask("signal", "@last:permit", "permit-p1")["outcome"] == "stored"
    assert town.ask("ops", "cancel", "@last")["status"] == "Cancelled"
    assert town.ask("ops", "retry", "@last", "--check")["operationId"] == operation
    assert town.call("ops", "watch", "@last")[0] == 4
    assert town.call("run", "--continue", "@last", "--app", APP)[0] == 4


# --- signals


def waits_of(town: Town, operation: str, number: int) -> list[dict[str, str]]:
    def look() -> list[dict[str, str]]:
        found: list[dict[str, str]] = town.ask("ops", "waits", operation)["items"]
        return found if len(found) == number else []

    return town.until(look, f"{number} rows wait")


@on_both
@pytest.mark.covers("SG-002", "SG-003", "SG-006", "SG-016")
def test_signals_from_one_process_end_waits_in_another(town: Town):
    operation = town.create("permit", rows=3)
    town.start_worker()
    waits = waits_of(town, operation, 3)
    assert [(wait["rowNumber"], wait["rowId"], wait["key"]) for wait in waits] == [
        (1, "p1", "permit-p1"),
        (2, "p2", "permit-p2"),
        (3, "p3", "permit-p3"),
    ]
    receipt = town.ask("signal", operation, "permit-p1", "--payload", '{"by": "ana"}')
    assert (receipt["outcome"], receipt["rowNumber"], receipt["stepName"]) == ("delivered", 1, "approval")
    assert town.ask("signal", operation, "permit-p2", "--fail", "not this year")["outcome"] == "delivered"
    assert town.ask("signal", operation, waits[2]["signalKey"])["outcome"] == "delivered"
    finished = town.until_settled(operation)
    assert (finished["status"], finished["successfulRows"], finished["failedRows"]) == ("CompletedWithErrors", 2, 1)
    steps = town.ask("ops", "show", operation, "--row", "1")["steps"]
    assert steps[-1]["output"] == {"by": "ana"}
    error = town.ask("ops", "errors", operation)["items"][0]
    assert (error["errorType"], error["errorMessage"]) == ("SignalFailure", "not this year")
    assert town.ask("verify")["isClean"]


@on_sqlite
@pytest.mark.covers("SG-014", "SG-019")
def test_an_early_signal_is_stored_and_its_repeat_changes_nothing(town: Town):
    operation = town.create("permit", rows=1)
    first = town.ask("signal", operation, "permit-p1", "--id", "mail-7")
    assert (first["outcome"], first["stored"]) == ("stored", True)
    again = town.ask("signal", operation, "permit-p1", "--id", "mail-7")
    assert (again["outcome"], again["id"]) == ("duplicate", first["id"])
    assert [signal["key"] for signal in town.ask("ops", "unclaimed", operation)["items"]] == ["permit-p1"]
    town.start_worker()
    assert town.until_settled(operation)["status"] == "Completed"
    assert town.ask("ops", "unclaimed", operation)["items"] == []
    assert town.call("signal", operation, "permit-p1", "--id", "mail-7")[1] == (
        "Already received, nothing changed: delivered to row 1, step approval.\n"
    )


@on_sqlite
def test_waits_are_shown_to_people_page_by_page(town: Town):
    operation = town.create("permit", rows=3)
    town.start_worker()
    waits_of(town, operation, 3)
    _, out, _ = town.call("ops", "waits", operation, "--limit", "2")
    assert out.splitlines()[0].split()[-2:] == ["SIGNAL", "KEY"]
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["permit-p1", "permit-p2"]
    assert "add --cursor 2" in out
    assert town.call("ops", "waits", operation, "--cursor", "2")[1].splitlines()[1].split()[-1] == "permit-p3"
    assert [wait["rowNumber"] for wait in town.ask("ops", "waits", "--key", "permit-p2")["items"]] == [2]
    first = town.ask("ops", "waits", "--limit", "2")
    assert first["nextCursor"] == f"{operation}:2"
    assert [wait["rowNumber"] for wait in town.ask("ops", "waits", "--cursor", first["nextCursor"])["items"]] == [3]
    assert town.call("ops", "waits", "--key", "nobody")[1] == "0 waits found\n"
    assert town.call("signal", operation, "permit-p3")[1] == "Delivered to row 3, step approval.\n"


@on_sqlite
@pytest.mark.covers("SG-041")
def test_signals_that_nobody_could_wait_for_are_refused(town: Town):
    operation = town.create("permit")
    for of, key in ((operation, "passport-7"), (town.create("visit"), "permit-p1"), ("00000000-0000", "permit-p1")):
        code, _, err = town.call("signal", of, key)
        assert code == 1, err
        assert town.ask("signal", of, key)["type"] == "urn:penstock:problem:no-such-wait"


@on_sqlite
@pytest.mark.parametrize(
    "words",
    [
        ("signal", "00000000", "key", "--payload", "{by"),
        ("signal", "00000000", "key", "--payload", "1", "--fail", "no"),
        ("signal", "00000000", "key", "--row", "0"),
        ("ops", "waits", "--cursor", "3"),
        ("ops", "waits", "00000000", "--cursor", "x"),
        ("ops", "retry", "00000000", "--confirm-doubt"),
        ("ops", "retry", "00000000", "--rows", "3,x"),
        ("ops", "retry", "00000000", "--rows", "9-7"),
        ("ops", "retry", "00000000", "--rows", "0"),
        ("ops", "retry", "00000000", "--rows", "1-999999999"),
        ("ops", "retry", "00000000", "--rows", "3", "--check"),
        ("ops", "edit", "00000000", "3"),
        ("ops", "edit", "00000000", "3", "name"),
        ("ops", "edit", "00000000", "3", "age:=thirty"),
        ("ops", "edit", "00000000", "3", "age=30", "--generation", "-1"),
        ("ops", "prune", "--older-than", "90"),
        ("ops", "prune", "--older-than", "tomorrow"),
    ],
)
def test_wrong_usage_is_exit_2_and_says_what_would_be_right(town: Town, words: tuple[str, ...]):
    code, out, err = town.call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("penstock: ")


# --- cancel, pause, resume


@on_both
@pytest.mark.covers("SM-009")
def test_a_cancel_reaches_the_worker_of_another_process(town: Town):
    operation = town.create("stroll", rows=ROWS)
    town.close_gate(20)  # without the cancel, the others would stand there for ever
    town.start_worker(PENSTOCK_CANCEL_GRACE_S="0.2")
    town.until_begun(operation)
    code, _, err = town.call("ops", "cancel", operation[:13], "--cause", "wrong file")
    assert code == 0, err
    stopped = town.until_settled(operation)
    assert stopped["status"] == "Cancelled"
    assert stopped["failedRows"] == 0
    assert stopped["cancelledRows"] == ROWS - stopped["successfulRows"] >= ROWS - 20
    causes = {event["event"]: event["cause"] for event in town.ask("ops", "events", operation)["items"]}
    assert causes["cancel_requested"] == "wrong file"
    assert town.ask("ops", "cancel", operation)["status"] == "Cancelled"
    assert town.ask("verify")["isClean"]


@on_sqlite
def test_a_step_that_does_not_end_is_cut_off_by_a_cancel(town: Town):
    operation = town.create("linger", rows=2)
    town.start_worker(PENSTOCK_CANCEL_GRACE_S="0.2")
    town.until((town.folder / "lingering").exists, "the row runs")
    town.call("ops", "cancel", operation)
    assert town.until_settled(operation)["cancelledRows"] == 2


@on_both
def test_a_pause_reaches_the_worker_of_another_process_and_resume_goes_on(town: Town):
    operation = town.create("stroll", rows=ROWS)
    town.close_gate(20)
    town.start_worker()
    town.until_begun(operation)
    assert town.ask("ops", "pause", operation, "--cause", "lunch")["status"] == "Paused"
    ages = count(21)

    def let_one_pass_and_look() -> bool:
        town.close_gate(next(ages))
        return not owners(town, operation)

    town.until(let_one_pass_and_look, "the worker lets go")
    halted = town.ask("ops", "show", operation)
    assert halted["processedRows"] < ROWS
    assert halted["status"] == "Paused"
    town.open_gate()
    assert town.ask("ops", "resume", operation)["status"] == "Running"
    finished = town.until_settled(operation)
    assert (finished["status"], finished["successfulRows"]) == ("Completed", ROWS)
    assert town.ask("ops", "history", operation)["items"] == []


def owners(town: Town, operation: str) -> list[str]:
    """The workers that hold chunks of the operation."""

    async def look() -> list[str]:
        async with Penstock.open(town.url) as penstock, penstock.db.read() as tx:
            mine = (chunks.c.operation == await number_of(tx, operation), chunks.c.owner.is_not(None))
            return list((await tx.execute(select(chunks.c.owner).where(*mine))).scalars())

    return asyncio.run(look())


@on_sqlite
def test_moves_that_the_state_does_not_admit_are_refused_with_exit_1(town: Town):
    operation = town.create("visit")
    town.call("run", "--continue", operation, "--app", APP)
    for verb in ("cancel", "pause", "resume"):
        code, _, err = town.call("ops", verb, operation)
        assert code == 1
        assert "is Completed" in err
        assert town.ask("ops", verb, operation)["status"] == 409
        assert town.call("ops", verb, "00000000-0000")[0] == 1


# --- retry, fix


@pytest.fixture
def failed(town: Town) -> str:
    """An operation whose three rows failed for a reason that is gone."""
    operation = town.create("visit")
    (town.folder / "flood").touch()
    assert town.call("run", "--continue", operation, "--app", APP)[0] == 3
    (town.folder / "flood").unlink()
    return operation


@on_both
@pytest.mark.covers("SM-010", "SM-072")
def test_failed_rows_are_retried_by_a_worker_of_another_process(town: Town, failed: str):
    code, out, _ = town.call("ops", "retry", failed[:13], "--rows", "1,3-3")
    assert code == 0
    assert out.startswith("2 rows will run again")
    assert f"ops watch {failed[:13]}" in out
    town.start_worker()
    assert town.until_settled(failed)["successfulRows"] == 2
    assert town.ask("ops", "retry", failed) == {
        "operationId": failed,
        "rowsSubmitted": 1,
        "rowsSkipped": 0,
        "skippedReasons": [],
    }
    finished = town.until_settled(failed)
    assert (finished["status"], finished["successfulRows"], finished["retryCount"]) == ("Completed", 3, 2)


@on_sqlite
@pytest.mark.covers("SM-071")
def test_a_check_says_whether_a_retry_is_possible_and_does_nothing(town: Town, failed: str):
    assert town.call("ops", "retry", failed, "--check")[:2] == (0, "A retry is possible: 3 rows would run again.\n")
    assert town.ask("ops", "show", failed)["retryCount"] == 0
    other = town.create("visit")
    code, out, _ = town.call("ops", "retry", other, "--check")
    assert code == 1
    assert "the operation is Pending" in out
    answer = town.ask("ops", "retry", other, "--check")
    assert (answer["isEligible"], answer["operationId"], answer["eligibleRows"]) == (False, other, 0)
    assert "the operation is Pending" in answer["reason"]


@on_sqlite
def test_a_retry_that_comes_to_nothing_is_exit_1_with_the_reasons(town: Town, failed: str):
    town.call("ops", "retry", failed, "--rows", "1")
    town.call("run", "--continue", failed, "--app", APP)
    code, _, err = town.call("ops", "retry", failed, "--rows", "1")
    assert code == 1
    assert "row 1: " in err
    problem = town.ask("ops", "retry", failed, "--rows", "1")
    assert problem["rowsSkipped"] == 1
    assert problem["skippedReasons"][0].startswith("row 1: ")
    code, out, _ = town.call("ops", "retry", failed, "--rows", "1-2")
    assert code == 0
    assert "1 row skipped:\n  row 1: " in out


@on_sqlite
@pytest.mark.covers("SM-043")
def test_a_row_is_edited_and_runs_again_by_either_name_of_the_command(town: Town):
    (town.folder / "citizens.csv").write_text("name,age\nAnn,thirty\nBea,31\n")
    town.call("run", "visit", "citizens.csv", "--app", APP)
    operation = town.ask("ops", "list")["items"][0]["id"]
    code, _, err = town.call("ops", "edit", operation, "1", "age=old", "--app", APP)
    assert code == 1
    assert "age: " in err
    assert town.ask("ops", "edit", operation, "1", "shoe=9")["type"] == "urn:penstock:problem:row-invalid"
    assert town.call("ops", "fix", operation, "1", "age:=30", "name=Anna", "--app", APP)[0] == 0
    town.start_worker()
    assert town.until_settled(operation)["status"] == "Completed"
    row = town.ask("ops", "show", operation, "--row", "1")
    assert (row["rowId"], row["rowData"]) == ("Anna", {"name": "Anna", "age": "30"})


@on_sqlite
def test_an_edit_of_a_row_that_was_changed_since_it_was_seen_is_refused(town: Town):
    (town.folder / "citizens.csv").write_text("name,age\nAnn,thirty\n")
    town.call("run", "visit", "citizens.csv", "--app", APP)
    operation = town.ask("ops", "list")["items"][0]["id"]
    code, _, err = town.call("ops", "edit", operation, "1", "age=30", "--generation", "1")
    assert (code, err) == (1, "penstock: row 1 was changed since (generation 0, you saw 1); look at it again\n")
    assert town.call("ops", "edit", operation, "1", "age=30", "--generation", "0")[0] == 0


# --- prune


@on_both
def test_pruning_removes_what_ended_long_ago_and_says_how_much(town: Town):
    (town.folder / "citizens.csv").write_text("name,age\nAnn,30\nBea,31\n")
    town.call("run", "visit", "citizens.csv", "--app", APP)
    waiting = town.create("permit")
    assert town.call("ops", "prune", "--older-than", "1d")[:2] == (
        0, "Deleted 0 operations with 0 rows and 0 bytes of files.\n",
    )  # fmt: skip
    would = town.ask("ops", "prune", "--older-than", "0s", "--dry-run")
    assert would == {"isDryRun": True, "operations": 1, "rows": 2, "fileBytes": 23, "filesLeft": 0, "parts": {}}
    code, out, _ = town.call("ops", "prune", "--older-than", "0s")
    assert (code, out) == (0, "Deleted 1 operation with 2 rows and 23 bytes of files.\n")
    assert [found["id"] for found in town.ask("ops", "list")["items"]] == [waiting]
    assert town.call("verify")[0] == 0


# --- watch


@on_both
def test_watch_follows_another_process_to_the_end_in_json_lines(town: Town):
    operation = town.create("stroll", rows=100)
    watching = town.start("ops", "watch", operation, "--json", "--every", "0.1")
    town.until(lambda: town.said(watching, "out"), "the first line comes", watching)
    town.start_worker()
    assert town.await_end(watching) == 0
    seen = [json.loads(line) for line in town.said(watching, "out").splitlines()]
    assert (seen[0]["status"], seen[-1]["status"]) == ("Pending", "Completed")
    assert all(before != after for before, after in pairwise(seen))
    assert [now["successfulRows"] for now in seen] == sorted(now["successfulRows"] for now in seen)


@on_sqlite
def test_watch_ends_like_a_run_and_shows_the_operation_to_people(town: Town, failed: str):
    code, out, _ = town.call("ops", "watch", failed)
    assert code == 3
    assert "CompletedWithErrors" in out
    assert len(town.call("ops", "watch", failed, "--json")[1].splitlines()) == 1


@on_sqlite
def test_what_is_held_is_not_deleted_until_it_is_released(town: Town):
    operation = town.create("visit")
    assert town.call("ops", "delete", operation)[2] == (
        f"penstock: operation {operation} is Pending; cancel it first, or wait for its end\n"
    )
    town.call("ops", "cancel", operation)
    assert town.ask("ops", "hold", operation, "audit 2031")["hold"] == "audit 2031"
    assert "audit 2031" in town.call("ops", "show", operation)[1]
    assert "is held (audit 2031); release it first" in town.call("ops", "delete", operation)[2]
    assert town.ask("ops", "prune", "--older-than", "0s")["operations"] == 0
    assert town.ask("ops", "release", operation)["hold"] is None
    assert town.call("ops", "delete", operation)[:2][0] == 0
    assert town.call("ops", "show", operation)[0] == 1


# --- other code

RELEASE = """
from pydantic import BaseModel
from penstock import Context, Pipeline, operation, step

class Citizen(BaseModel):
    name: str

@operation("welcome", version={version})
class Welcome(Pipeline[Citizen]):
    @step
    async def {name}(self, citizen: Citizen, ctx: Context) -> None: ...
"""


@on_sqlite
def test_an_operation_is_migrated_to_other_code(town: Town):
    (town.folder / "one.py").write_text(RELEASE.format(version=1, name="greet"))
    (town.folder / "two.py").write_text(RELEASE.format(version=2, name="meet"))
    (town.folder / "citizens.csv").write_text("name\nAnn\n")
    operation = town.ask("submit", "welcome", "citizens.csv", "--app", "one.py")["id"]
    assert town.ask("ops", "show", operation)["version"] == "1"
    code, _, err = town.call("ops", "migrate", operation, "--map", "greet=meat", "--map", "x=y", "--app", "two.py")
    assert code == 1
    assert "the code has no step 'meat'; it has: meet" in err
    assert "x: the operation has no such step; it has: greet" in err
    assert town.call("ops", "migrate", operation, "--map", "greet", "--app", "two.py")[0] == 2
    moved = town.ask("ops", "migrate", operation, "--map", "greet=meet", "--app", "two.py")
    assert (moved["version"], moved["steps"]) == ("2", ["meet"])
    assert "migrated" in [event["event"] for event in town.ask("ops", "events", operation)["items"]]
    assert town.ask("run", "--continue", operation, "--app", "two.py")["status"] == "Completed"
