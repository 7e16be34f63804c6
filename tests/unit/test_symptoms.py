"""What `penstock doctor` makes of facts: each check says what is wrong, why it matters and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.db.safety import Finding
from penstock.operations.proof.symptoms import CHECKS, Facts, OpenOperation, Symptom, WorkerFacts, examine

WELL = Facts(
    database="postgresql",
    version="17.2",
    settings=(Finding("fsync", "on", "on", is_ok=True),),
    revision="0001",
    revision_needed="0001",
    workers=(WorkerFacts("a-1", "a", 7, "live"),),
    operations=(OpenOperation("0199", "prices", "Running", has_file=True),),
    storage="blobs",
)
SQLITE = replace(WELL, database="sqlite", version="3.40.1")


def open_operation(state: str = "Running", *, has_file: bool = True, **stuck: int) -> tuple[OpenOperation, ...]:
    return (OpenOperation("0199", "prices", state, has_file, **stuck),)


def symptoms(**changed: object) -> list[Symptom]:
    return list(examine(replace(WELL, **changed)).symptoms)  # type: ignore[arg-type]


def test_what_is_well_has_no_symptom():
    assert examine(WELL).symptoms == ()
    assert examine(WELL).is_healthy


@pytest.mark.parametrize(
    "check, words, changed",
    [
        (
            "database_is_reachable",
            "is away",
            {"trouble": "postgresql is away", "revision_needed": None, "revision": None},
        ),
        (
            "database_is_durable",
            "fsync is off; it must be on",
            {"settings": (Finding("fsync", "off", "on", is_ok=False),)},
        ),
        ("schema_is_current", "the schema is missing", {"revision": None}),
        ("schema_is_current", "the schema is at 0007", {"revision": "0007", "is_newer": True}),
        ("clocks_agree", "3.5 s ahead of", {"clock_ahead_us": 3_500_000}),
        ("clocks_agree", "3.5 s behind", {"clock_ahead_us": -3_500_000}),
        ("workers_renew_their_leases", "missed heartbeats: b-2", {"workers": (WorkerFacts("b-2", "b", 8, "lagging"),)}),
        ("open_operations_have_workers", "no live worker: 0199", {"workers": ()}),
        (
            "open_operations_have_workers",
            "no live worker: 0199",
            {"workers": (), "operations": open_operation("Pending")},
        ),
        ("workers_have_the_code", "work of prices is due", {"operations": open_operation(overdue_chunks=2)}),
        (
            "no_operation_is_set_aside",
            "1 operation set aside by a worker: its lifespan raised OSError: 0199",
            {"operations": (replace(*open_operation(overdue_chunks=2), trouble="its lifespan raised OSError"),)},
        ),
        ("chunks_have_live_owners", "2 chunks are held by workers", {"operations": open_operation(lost_chunks=2)}),
        ("signals_are_applied", "1 row waits beside", {"operations": open_operation(overdue_signals=1)}),
        ("waits_end_at_their_deadlines", "3 rows wait past", {"operations": open_operation(overdue_waits=3)}),
        ("storage_is_writable", "blobs cannot be written: no", {"storage_trouble": "no"}),
        ("files_are_there", "1 open operation without a file", {"operations": open_operation(has_file=False)}),
        ("blobs_are_swept", "the bytes of 1 rejected or deleted file may", {"left_bytes": 1}),
    ],
)
def test_each_problem_is_found_by_its_check_alone(check: str, words: str, changed: dict[str, object]):
    (found,) = symptoms(**changed)
    assert (found.check, found.is_problem) == (check, True)
    assert words in found.what
    assert found.why
    assert found.remedy


def test_every_check_has_a_sentence_about_what_is_right():
    assert all((check.__doc__ or "").endswith(".") for check in CHECKS)


def test_a_schema_of_a_later_release_asks_for_a_newer_penstock_and_not_for_an_upgrade_of_the_schema():
    (newer,) = symptoms(revision="0007", is_newer=True)
    (older,) = symptoms(revision="0000")
    assert "db upgrade" not in newer.remedy
    assert "penstock db upgrade" in older.remedy


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_the_wal_reset_fault_is_worth_a_note_because_penstock_never_meets_it(processes: int):
    staff = tuple(WorkerFacts(f"a-{number}", "a", number, "live") for number in range(processes))
    (found,) = examine(replace(SQLITE, workers=staff, operations=())).symptoms
    assert (found.check, found.is_problem) == ("sqlite_has_no_known_fault", False)
    assert "3.40.1" in found.what
    assert "another program" in found.why


@pytest.mark.parametrize("version", ["3.51.3", "3.51.10", "3.52.0", "4.0.0", "3.50.7", "3.44.6", "3.44.10"])
def test_a_sqlite_with_the_fix_is_well(version: str):
    assert examine(replace(SQLITE, version=version)).symptoms == ()


@pytest.mark.parametrize("version", ["3.37.0", "3.51.2", "3.9.0", "3.50.6", "3.45.3", "3.44.5"])
def test_a_sqlite_without_the_fix_is_named(version: str):
    assert [symptom.check for symptom in examine(replace(SQLITE, version=version)).symptoms] == [
        "sqlite_has_no_known_fault"
    ]


def test_a_small_difference_of_clocks_does_not_matter():
    assert symptoms(clock_ahead_us=1_900_000) == []


def test_a_worker_that_died_is_worth_a_note_and_no_problem_beside_a_live_one():
    dead = WorkerFacts("b-2", "b", 8, "dead")
    found = examine(replace(WELL, workers=(*WELL.workers, dead)))
    assert [(symptom.check, symptom.is_problem) for symptom in found.symptoms] == [
        ("workers_renew_their_leases", False)
    ]
    assert found.is_healthy


def test_only_dead_workers_are_no_workers():
    dead = (WorkerFacts("b-2", "b", 8, "dead"),)
    assert {symptom.check for symptom in symptoms(workers=dead)} == {
        "workers_renew_their_leases",
        "open_operations_have_workers",
    }


def test_a_paused_operation_needs_nobody():
    assert symptoms(workers=(), operations=open_operation("Paused", lost_chunks=1)) == []


def test_work_that_is_due_while_workers_are_busy_is_only_a_queue():
    assert symptoms(operations=open_operation(overdue_chunks=9), busy_workers=1) == []


def test_many_operations_are_named_by_the_first_few():
    many = tuple(OpenOperation(f"op-{number}", "prices", "Running", has_file=True) for number in range(9))
    (found,) = symptoms(workers=(), operations=many)
    assert "9 operations with open work" in found.what
    assert "op-4 and 4 more" in found.what
