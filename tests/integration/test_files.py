"""From file to verdict: what is counted when, and files that cannot be read."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from pydantic import BaseModel
from stored import count_of, rows_of, stored_files

from penstock import Context, Pipeline, operation, step
from penstock.errors import FileRejected, InvalidInput, NotFound
from penstock.settings import Settings
from penstock.testing import engine

SMALL = Settings(chunk_rows=3)


class Person(BaseModel):
    name: str
    age: int


@operation("greet")
class Greet(Pipeline[Person]):
    @step
    async def greet(self, row: Person, ctx: Context) -> str:
        return f"hello {row.name}"


class Pipe(io.BytesIO):
    """A stream that cannot be rewound."""

    def seekable(self) -> bool:
        return False


CSV = b"name,age\nana,31\nbob,x\ncid,33\ndan,34\n"


@pytest.mark.covers("SM-002", "SM-003", "SM-006", "SM-007", "SM-012", "SM-048", "SM-049", "SM-050", "SM-092")
async def test_a_file_goes_from_pending_to_a_verdict_for_every_row(database_url: str, tmp_path: Path):
    (tmp_path / "people.csv").write_bytes(CSV)
    async with engine([Greet], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(Greet, tmp_path / "people.csv")
        assert (made.status, made.total_rows, made.rows_read, made.processed_rows) == ("Pending", 0, 0, 0)
        assert (made.file_name, made.file_bytes) == ("people.csv", len(CSV))
        assert made.file_sha256 == hashlib.sha256(CSV).hexdigest()
        assert (made.started_at, made.finished_at) == (None, None)
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        stored = await rows_of(e.penstock.db, made.id)
    assert done.status == "CompletedWithErrors"
    assert (done.total_rows, done.rows_read, done.processed_rows) == (4, 4, 4)
    assert (done.successful_rows, done.failed_rows, done.waiting_rows, done.cancelled_rows) == (3, 1, 0, 0)
    assert done.started_at is not None
    assert done.finished_at is not None
    assert [(row.number, row.verdict) for row in stored] == [
        (1, "Completed"),
        (2, "Invalid"),
        (3, "Completed"),
        (4, "Completed"),
    ]
    assert stored[0].outputs == ["hello ana"]


@pytest.mark.covers("SM-001", "SM-019")
async def test_every_move_is_in_the_log_with_its_actor(database_url: str, tmp_path: Path):
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Greet, CSV, file_name="people.csv", created_by="ana")
        events = await e.operations.events(done.id)
        worker = e.worker.lease.id
    assert [(m.source, m.event, m.target) for m in events] == [
        (None, "created", "Pending"),
        ("Pending", "picked_up", "Validating"),
        ("Validating", "validated", "Running"),
        ("Running", "finished_with_errors", "CompletedWithErrors"),
    ]
    assert [m.actor for m in events] == ["ana", worker, worker, worker]
    assert [m.sequence for m in events] == sorted(m.sequence for m in events)
    assert {m.operation_id for m in events} == {done.id}


async def test_the_feed_of_all_operations_goes_on_behind_what_was_seen(database_url: str, tmp_path: Path):
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        first = await e.run(Greet, CSV, file_name="a.csv")
        seen = (await e.operations.events())[-1].sequence
        second = await e.run(Greet, CSV, file_name="b.csv")
        feed = await e.operations.events(since=seen)
    assert {m.operation_id for m in feed} == {second.id} != {first.id}
    assert feed[0].event == "created"


@pytest.mark.covers("SM-096", "SM-004")
async def test_counters_move_while_rows_complete(database_url: str, tmp_path: Path):
    """Each chunk that ends is counted, long before the last one does."""
    seen = []

    @operation("steady", max_row_concurrency=1)
    class Steady(Pipeline[Person]):
        @step(barrier=True)
        async def run(self, row: Person, ctx: Context) -> None:
            if ctx.row_number == 10:
                seen.append(await e.operations.get(made.id))

    rows = [{"name": "n", "age": n} for n in range(10)]
    async with engine([Steady], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=1)) as e:
        made = await e.create(Steady, rows)
        await e.work_until_idle()
    (during,) = seen
    assert during.status == "Running"
    assert 1 <= during.successful_rows <= 9


@pytest.mark.covers("SM-049", "SM-095")
async def test_counters_grow_while_validating_and_the_total_comes_at_its_end(database_url: str, tmp_path: Path):
    looks = []

    @operation("look")
    class Look(Pipeline[Person]):
        async def validate_row(self, row: Person, meta: None) -> None:
            if row.age == 9:
                looks.append(await e.operations.get(made.id))
            if row.age % 2:
                raise ValueError("odd")

        @step
        async def run(self, row: Person, ctx: Context) -> None:
            looks.append(await e.operations.get(made.id))

    rows = [{"name": "n", "age": n} for n in range(10)]
    async with engine([Look], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(Look, rows)
        await e.work_until_idle()
    reading, running = looks[0], looks[1]
    assert (reading.status, reading.total_rows) == ("Validating", 0)
    assert reading.rows_read in (6, 9)
    assert reading.failed_rows == reading.processed_rows == reading.rows_read // 2
    assert (running.status, running.total_rows, running.failed_rows) == ("Running", 10, 5)


WITHOUT_ROWS = [
    (b"name,age\n\n", "a.csv", "'a.csv' has a header and no rows"),
    (b"", "a.csv", "'a.csv' has no rows and no header"),
    (b"", "a.jsonl", "'a.jsonl' has no rows"),
    (b" \n\n", "a.jsonl", "'a.jsonl' has no rows"),
    (b"[ ]", "a.json", "'a.json' has no rows"),
    (b"", "a.json", "'a.json' has no rows"),
]


@pytest.mark.parametrize("file, name, reason", WITHOUT_ROWS)
async def test_a_file_without_rows_is_refused_before_anything_is_stored(
    database_url: str, tmp_path: Path, file: bytes, name: str, reason: str
):
    (tmp_path / name).write_bytes(file)
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        for given in (file, io.BytesIO(file), tmp_path / name):
            with pytest.raises(FileRejected, match=reason) as caught:
                await e.create(Greet, given, file_name=name)
            assert caught.value.code == "no_rows"
            assert "operation 'greet'" in str(caught.value)
            assert "--set allow_empty=true" in str(caught.value)
        assert set((await count_of(e.penstock.db)).values()) == {0}
        assert not (tmp_path / "files").exists() or not stored_files(tmp_path)


@pytest.mark.parametrize("file, name, reason", WITHOUT_ROWS)
async def test_a_file_without_rows_that_comes_as_a_stream_ends_failed_with_the_same_reason(
    database_url: str, tmp_path: Path, file: bytes, name: str, reason: str
):
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Greet, Pipe(file), file_name=name)
        check = await e.penstock.operations.validate(Greet, file=file, file_name=name)
    assert done.status == "Failed"
    assert reason in (done.error or "")
    assert check.file_fault is not None
    assert (check.file_fault.code, check.file_fault.message) == ("no_rows", done.error)


@pytest.mark.covers("SM-016")
@pytest.mark.parametrize("file, name, reason", WITHOUT_ROWS)
async def test_a_file_without_rows_is_completed_where_that_is_allowed(
    database_url: str, tmp_path: Path, file: bytes, name: str, reason: str
):
    @operation("lenient", allow_empty=True)
    class Lenient(Greet): ...

    async with engine([Greet, Lenient], url=database_url, tmp_path=tmp_path) as e:
        for allowed, options in ((Lenient, {}), (Greet, {"allow_empty": "true"})):
            done = await e.run(allowed, file, file_name=name, options=options)
            events = await e.operations.events(done.id)
            assert (done.status, done.total_rows, done.processed_rows) == ("Completed", 0, 0)
            assert [m.event for m in events] == ["created", "picked_up", "validated", "finished"]
            check = await e.penstock.operations.validate(allowed, file=file, file_name=name, options=options)
            assert check.is_valid


async def test_a_file_with_one_bad_row_has_a_row(database_url: str, tmp_path: Path):
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Greet, io.BytesIO(b"name,age\nana,x\n"), file_name="a.csv")
    assert (done.status, done.total_rows, done.invalid_rows) == ("CompletedWithErrors", 1, 1)


async def test_an_empty_cell_of_a_required_text_makes_its_row_invalid(database_url: str, tmp_path: Path):
    people = b"name,age\nana,31\n,32\n"
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Greet, people, file_name="a.csv")
        [error] = (await e.operations.errors(done.id)).items
    assert (done.status, done.successful_rows, done.invalid_rows) == ("CompletedWithErrors", 1, 1)
    assert (error.row, error.message) == (
        2,
        "name: is empty; a value is required (allow it with Annotated[str, AllowEmpty])",
    )


@pytest.mark.covers("SM-018")
@pytest.mark.parametrize(
    "file, name, reason",
    [
        (b"name,height\nana,3\n", "a.csv", "age"),
        (b"\xff\xfe\x00", "a.csv", ""),
        (b'{"name": 1}', "a.json", ""),
    ],
)
async def test_a_file_that_cannot_be_read_fails_with_the_reason(
    database_url: str, tmp_path: Path, file: bytes, name: str, reason: str
):
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Greet, file, file_name=name)
        counts = await count_of(e.penstock.db)
        events = await e.operations.events(done.id)
    assert done.status == "Failed"
    assert done.error
    assert reason in done.error
    assert (events[-1].event, events[-1].cause) == ("rejected", done.error)
    assert counts == {"operations": 1, "chunks": 0, "rows": 0, "records": 0}


@pytest.mark.covers("SM-018")
async def test_a_file_that_breaks_off_in_the_middle_leaves_nothing_half_stored(database_url: str, tmp_path: Path):
    file = b"[" + b'{"name": "ana", "age": 1}, {"name": 7, "age": "x"},' * 10 + b'{"name": "end'
    async with engine([Greet], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(Greet, file, file_name="a.json")
        counts = await count_of(e.penstock.db)
    assert (done.status, done.total_rows, done.rows_read, done.processed_rows) == ("Failed", 0, 0, 0)
    assert counts == {"operations": 1, "chunks": 0, "rows": 0, "records": 0}


@pytest.mark.parametrize("file, name", [(b"x", "people.docx"), (b"x", "people"), (b"x", None)])
async def test_an_unknown_format_is_refused_and_nothing_is_stored(
    database_url: str, tmp_path: Path, file: bytes, name: str | None
):
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        with pytest.raises(FileRejected):
            await e.create(Greet, file, file_name=name)
        assert set((await count_of(e.penstock.db)).values()) == {0}


async def test_a_file_that_was_opened_as_text_is_refused_with_what_to_do(database_url: str, tmp_path: Path):
    (tmp_path / "people.csv").write_bytes(CSV)
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        with (tmp_path / "people.csv").open() as text:
            for take in (e.operations.create, e.operations.validate):
                with pytest.raises(InvalidInput, match="open it with mode 'rb'"):
                    await take(Greet, file=text)  # type: ignore[arg-type]
        assert (await e.operations.list()).items == []


async def test_a_missing_file_and_an_unknown_operation_are_refused(database_url: str, tmp_path: Path):
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        with pytest.raises(FileRejected, match="no such file"):
            await e.create(Greet, tmp_path / "nowhere.csv")
        with pytest.raises(NotFound, match="known: greet"):
            await e.create("great", CSV, file_name="a.csv")
        assert set((await count_of(e.penstock.db)).values()) == {0}


async def test_an_operation_whose_stored_file_is_gone_fails_with_the_reason(database_url: str, tmp_path: Path):
    async with engine([Greet], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Greet, CSV, file_name="a.csv")
        for file in stored_files(tmp_path):
            file.unlink()
        await e.work_until_idle()
        done = await e.operations.get(made.id)
    assert done.status == "Failed"
    assert "gone" in (done.error or "")


@pytest.mark.covers("SM-039")
async def test_rows_are_read_again_from_the_file_when_their_data_is_not_kept(database_url: str, tmp_path: Path):
    @operation("lean", track_row_data=False)
    class Lean(Greet): ...

    people = b"name,age\n" + b"".join(b"p%d,%d\n" % (n, n) for n in range(10))
    async with engine([Lean], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(Lean, people, file_name="a.csv")
        counts = await count_of(e.penstock.db)
        stored = await rows_of(e.penstock.db, done.id)
    assert (done.status, done.successful_rows) == ("Completed", 10)
    assert (counts["chunks"], counts["rows"]) == (4, 0)
    assert [row.outputs for row in stored] == [[f"hello p{n}"] for n in range(10)]


async def test_two_operations_run_side_by_side_and_keep_apart(database_url: str, tmp_path: Path):
    @operation("part")
    class Part(Greet): ...

    async with engine([Greet, Part], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        one = await e.create(Greet, [{"name": "a", "age": 1}] * 8)
        two = await e.create(Part, [{"name": "b", "age": 1}] * 5)
        await e.work_until_idle()
        for made, rows, word in ((one, 8, "hello a"), (two, 5, "hello b")):
            done = await e.operations.get(made.id)
            stored = await rows_of(e.penstock.db, made.id)
            assert (done.status, done.successful_rows) == ("Completed", rows)
            assert [(r.number, r.outputs) for r in stored] == [(n, [word]) for n in range(1, rows + 1)]
