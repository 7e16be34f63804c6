"""A remote as a step of a pipeline: every row gets its own outcome, and a crash creates nothing twice."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from scripted import Lose, Refuse, Remote, trouble
from sql_places import Place

import penstock
from penstock import Context, Pipeline, failpoints, operation, step
from penstock.settings import Settings
from penstock.targets import BulkExecutor, BulkOptions, Capabilities, ErrorKind, Limit, Pool, RetryPolicy, TargetStep
from penstock.targets.sql import SqlOptions
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=50)


class Product(BaseModel):
    id: int
    name: str
    price: int


def products(count: int, **changed: Any) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"product {n}", "price": n} | changed.get(f"row_{n}", {}) for n in range(1, count + 1)]


def record(row: Product) -> dict[str, Any]:
    return {"n": row.id, "name": row.name}


def pipeline(load: TargetStep) -> type[Pipeline[Product]]:
    outputs: list[Any] = []

    @operation("products", row_key="id")
    class Products(Pipeline[Product]):
        seen = outputs
        to_table = load

        @step
        async def check(self, row: Product, ctx: Context) -> None:
            outputs.append(ctx.output_of(Products.to_table))

    return Products


async def states(e: Engine, made: Any) -> list[str]:
    return [row.state for row in (await e.operations.rows(made.id)).items]


@pytest.mark.covers("BX-005")
@pytest.mark.parametrize("mode", ["create", "upsert"])
async def test_rows_go_to_a_table_in_batches_and_the_ids_are_the_outputs(place: Place, tmp_path: Path, mode: str):
    await place.products()
    if mode == "upsert":
        await place.run("INSERT INTO products (id, name) VALUES (7, 'old')")
    kind = pipeline(TargetStep(place.target, "products", mode, map=lambda row: {**dict(row), "code": row.name}))
    async with engine([kind], tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(kind, products(120))
    assert (done.status, done.successful_rows) == ("Completed", 120)
    assert sorted(kind.seen) == list(range(1, 121))
    assert await place.rows("SELECT count(*) FROM products") == [(120,)]


async def test_a_row_that_the_table_refuses_fails_alone_with_the_remotes_word(place: Place, tmp_path: Path):
    await place.products()
    kind = pipeline(TargetStep(place.target, "products", map=lambda row: {**dict(row), "code": row.name}))
    async with engine([kind], tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(kind, products(60, row_7={"price": -1}, row_55={"name": "x" * 30}))
        errors = (await e.operations.errors(done.id)).items
    assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 58, 2)
    assert [(error.row, error.error_type) for error in errors] == [(7, "StepFailure"), (55, "StepFailure")]
    assert await place.rows("SELECT count(*) FROM products") == [(58,)]


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("duplicates", ["keep-order", "last", "error"])
async def test_a_row_of_which_no_record_can_be_made_fails_alone_and_at_once(
    tmp_path: Path, delivery: Any, duplicates: Any
):
    def mapped(row: Product) -> dict[str, Any]:
        if row.name == "nameless":
            raise KeyError("country")
        return {"n": None if row.name == "without id" and duplicates != "last" else row.id}

    remote = Remote()
    load = TargetStep(_quick(remote), "things", "update", map=mapped, options=BulkOptions(duplicates=duplicates))
    kind = pipeline(load.with_options(delivery=delivery))
    async with engine([kind], tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(kind, products(20, row_7={"name": "nameless"}, row_9={"name": "without id"}))
        errors = {error.row: error.message for error in (await e.operations.errors(done.id)).items}
    assert errors.pop(7) == "KeyError: 'country'"
    assert list(errors.values()) == ["MissingId: the record has no 'n', which says what to update"] * len(errors)
    assert (done.successful_rows, list(errors)) == ((19, []) if duplicates == "last" else (18, [9]))
    assert sum(remote.sizes) == done.successful_rows


@pytest.mark.covers("I-40")
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_worker_that_dies_around_its_note_creates_nothing_twice(tmp_path: Path, moment: str):
    remote = Remote(capabilities=Capabilities(id_field="n", is_idempotent=True))
    load = TargetStep(remote, "things", "upsert", map=lambda row: {"name": row.name}, effect_id="n")
    kind = pipeline(load)

    class Killed(Exception):
        pass

    def die(point: str) -> None:
        if point == f"intent:{moment}":
            raise Killed

    async with engine([kind], tmp_path=tmp_path, settings=SMALL) as e:
        await e.create(kind, products(20))
        with failpoints.armed(die), pytest.raises(Killed):
            await e.work_until_idle()
        await e.crash()
        await e.work_until_idle()
        (done,) = (await e.operations.list()).items
    assert (done.status, done.successful_rows) == ("Completed", 20)
    assert len(remote.applied) == 20  # sent again, perhaps, but under the same keys


async def test_a_refusal_that_is_nobodys_fault_is_retried_as_the_step_says(tmp_path: Path):
    remote = Remote(script={n: Refuse(trouble(ErrorKind.CONNECTION)) for n in range(1, 3)})
    load = TargetStep(_quick(remote, retries=0), "things", map=record).with_options(retries=2, backoff=1)
    kind = pipeline(load)
    async with engine([kind], tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(kind, products(5))
    assert (done.status, remote.sizes) == ("Completed", [5, 5, 5])


@pytest.mark.parametrize("mode, verdict", [("create", "Failed"), ("upsert", "Completed")])
async def test_a_lost_answer_is_in_doubt_for_a_create_and_repeated_for_an_upsert(
    tmp_path: Path, mode: str, verdict: str
):
    remote = Remote(script={1: Lose()}, capabilities=Capabilities(id_field="n"))
    kind = pipeline(TargetStep(_quick(remote), "things", mode, map=record).with_options(retries=1, backoff=1))
    async with engine([kind], tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(kind, products(3))
        assert await states(e, done) == [verdict] * 3
    assert max(remote.applied.values()) == (1 if mode == "create" else 2)


@pytest.mark.covers("I-41", "BX-083")
async def test_operations_share_a_throttle_and_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    remote = Remote(script={1: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=30, limit=Limit.REQUESTS))}, width=1)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.ahead += seconds
        await asyncio.sleep(0)

    clock = _Clock()
    load = TargetStep(BulkExecutor(remote, pool=Pool.of(remote, sleep=sleep, clock=clock)), "things", map=record)
    kind = pipeline(load)
    async with engine([kind], tmp_path=tmp_path, settings=SMALL) as e:
        made = [await e.create(kind, products(10)) for _ in range(2)]
        with caplog.at_level(logging.WARNING, "penstock"):
            await e.work_until_idle()
        assert {(await e.operations.get(one.id)).status for one in made} == {"Completed"}
    assert len(remote.calls) == 3  # the refused one, and one for each operation, after the wait
    assert max(slept) >= 30
    assert "'ana' is throttled for 30.0 s (requests)" in caplog.text


class _Clock:
    is_real = False
    ahead = 0.0

    def now_us(self) -> int:
        return round(self.monotonic() * 1e6)

    def monotonic(self) -> float:
        return 1000.0 + self.ahead


def _quick(remote: Remote, *, retries: int = 3) -> BulkExecutor:
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    return BulkExecutor(remote, pool=Pool.of(remote, sleep=sleep, policy=RetryPolicy(retries_max=retries)))


async def test_a_second_run_in_the_same_process_does_not_meet_the_connections_of_the_first(
    place: Place, tmp_path: Path
):
    await place.products()
    kind = pipeline(TargetStep(place.target, "products", map=lambda row: {**dict(row), "code": row.name}))
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    file = tmp_path / "products.json"
    file.write_text(json.dumps(products(60)))
    await asyncio.to_thread(penstock.run, kind, file, url=url)
    done = await asyncio.to_thread(penstock.run, kind, file, url=url)
    assert (done.status, done.successful_rows) == ("Completed", 60)


async def test_a_target_can_be_used_by_one_loop_after_another(place: Place):
    await place.products()
    executor = BulkExecutor(place.target, options=SqlOptions(batch_size=10))

    async def load() -> bool:
        records = [{"id": n, "name": "a", "code": str(n)} for n in range(200)]
        try:
            return (await executor.upsert_multiple("products", records)).is_success
        finally:
            await place.target.aclose()

    for _ in range(2):
        assert await asyncio.to_thread(asyncio.run, load())


async def test_targets_of_steps_are_closed_with_the_engine(tmp_path: Path):
    closed = []

    class Closing(Remote):
        async def aclose(self) -> None:
            closed.append(self.name)

    kind = pipeline(TargetStep(Closing(capabilities=Capabilities(id_field="n")), "things", map=record))
    async with engine([kind], tmp_path=tmp_path, settings=SMALL) as e:
        await e.run(kind, products(5))
        assert not closed
    assert closed == ["remote"]
