"""Reading: lists and streams, bounded look-ahead, sizes that fit the remote, and several records of one key."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Refuse, Remote, executor, in_virtual_time, numbered, trouble, virtually

from penstock.targets import (
    Answer,
    BadInput,
    Batch,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Limit,
    Mode,
    Outcome,
    Progress,
    Target,
    UniformVerdicts,
    Verdict,
)

IDEMPOTENT = Capabilities(is_idempotent=True, id_field="n")


async def trickle(count: int) -> AsyncIterator[dict[str, Any]]:
    for record in numbered(count):
        await asyncio.sleep(0.001)
        yield record


@pytest.mark.parametrize(
    "records",
    [numbered, lambda n: tuple(numbered(n)), lambda n: iter(numbered(n)), trickle],
    ids=["list", "tuple", "iterator", "async iterator"],
)
@in_virtual_time
async def test_records_come_from_lists_iterators_and_async_iterators_alike(records: Any):
    remote = Remote()
    result = await executor(remote).create_multiple("account", records(250))
    assert result.created_ids == [f"id-{n}" for n in range(250)]
    assert sorted(remote.sizes) == [50, 100, 100]


@in_virtual_time
async def test_a_set_of_ids_is_a_stream_whose_length_is_known():
    reports: list[Progress] = []
    result = await executor(Remote()).delete_multiple("account", {1, 2, 3}, progress=reports.append)
    assert result.success_count == 3
    assert reports[0].total == 3


@in_virtual_time
async def test_a_stream_is_read_only_a_little_ahead_of_what_is_sent():
    ahead = []
    read = 0

    def stream() -> Iterator[dict[str, Any]]:
        nonlocal read
        for record in numbered(10_000):
            read += 1
            ahead.append(read - sum(remote.sizes))
            yield record

    remote = Remote(width=2)
    await executor(remote).create_multiple("account", stream())
    assert max(ahead) <= 100 * (2 + 2)


class Quick(Target):
    """Takes everything and remembers nothing."""

    width = 2

    async def send(self, batch: Batch, source: str) -> Answer:
        await asyncio.sleep(0)
        return Answer(UniformVerdicts(Verdict(Outcome.CREATED), len(batch)))


def test_memory_stays_flat_but_for_a_byte_for_each_record():
    count = 200_000

    async def run() -> None:
        records = ({"n": n, "name": "x" * 50} for n in range(count))
        result = await executor(Quick()).create_multiple("account", records, BulkOptions(batch_size=1000))
        assert result.success_count == count

    tracemalloc.start()
    asyncio.run(run())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6_000_000 + 2 * count


# Sizes


@in_virtual_time
async def test_batches_are_cut_where_the_remote_takes_no_more_bytes():
    class Weighed(Remote):
        def size(self, record: Any) -> int:
            return 300 if record["n"] % 10 == 0 else 10

    remote = Weighed(capabilities=Capabilities(bytes_max=500), width=1)
    result = await executor(remote).create_multiple("account", numbered(100))
    assert result.created_ids == [f"id-{n}" for n in range(100)]
    assert [n for sent in remote.calls for n in sent.numbers] == list(range(100))
    weights = [sum(remote.size({"n": n}) for n in sent.numbers) for sent in remote.calls]
    assert max(weights) <= 500
    assert len(weights) <= 10


@in_virtual_time
async def test_a_record_heavier_than_the_remote_takes_goes_alone():
    class Heavy(Remote):
        def size(self, record: Any) -> int:
            return 1000

    remote = Heavy(capabilities=Capabilities(bytes_max=500))
    await executor(remote).create_multiple("account", numbered(5))
    assert remote.sizes == [1, 1, 1, 1, 1]


@pytest.mark.covers("BX-110")
@in_virtual_time
async def test_batches_grow_until_a_call_takes_as_long_as_wanted():
    async def work(batch: Batch) -> None:
        await asyncio.sleep(len(batch) * 0.004)

    remote = Remote(width=1, latency_s=0, decide=lambda _batch, _source: work)
    options = BulkOptions(adapt_batch_size=True, batch_size=50, batch_seconds_target=2)
    result = await executor(remote).create_multiple("account", numbered(20_000), options)
    assert remote.sizes[:3] == [50, 50, 50]
    assert 450 <= remote.sizes[-3] <= 510
    assert result.statistics.batch_size_last == pytest.approx(remote.sizes[-3], abs=1)
    assert len(remote.calls) < 60


@pytest.mark.covers("BX-110")
@in_virtual_time
async def test_batches_shrink_when_calls_take_too_long():
    async def work(batch: Batch) -> None:
        await asyncio.sleep(len(batch) * 0.2)

    remote = Remote(width=1, latency_s=0, decide=lambda _batch, _source: work)
    options = BulkOptions(adapt_batch_size=True, batch_seconds_target=2)
    await executor(remote).create_multiple("account", numbered(1000), options)
    assert 9 <= remote.sizes[-2] <= 11


@pytest.mark.covers("BX-110")
@in_virtual_time
async def test_batches_stay_below_what_was_too_big():
    remote = Remote(width=1, decide=lambda batch, _: Refuse(trouble(ErrorKind.TOO_BIG)) if len(batch) > 120 else None)
    options = BulkOptions(adapt_batch_size=True, batch_size=200, batch_size_max=400)
    result = await executor(remote).create_multiple("account", numbered(20_000), options)
    assert result.is_success
    refused = sum(size > 120 for size in remote.sizes)
    assert refused < 0.2 * len(remote.sizes)


@in_virtual_time
async def test_batches_keep_their_size_unless_they_may_adapt():
    throttled = Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=1, limit=Limit.TIME))
    remote = Remote(latency_s=30, script={1: throttled, 3: Refuse(trouble(ErrorKind.DEADLOCK))})
    await executor(remote).create_multiple("account", numbered(1000))
    assert set(remote.sizes) == {100}


# Several records of one key


@in_virtual_time
async def test_records_of_one_key_are_sent_one_after_the_other_in_the_order_of_the_input():
    records = [{"n": n % 7, "name": str(n)} for n in range(100)]
    seen: list[tuple[int, str]] = []

    async def note(batch: Batch) -> None:
        seen.extend((record["n"], record["name"]) for record in batch.records)

    remote = Remote(capabilities=IDEMPOTENT, decide=lambda _batch, _source: note)
    result = await executor(remote).upsert_multiple("account", records, BulkOptions(batch_size=10))
    assert result.success_count == 100
    assert not remote.overlaps
    for key in range(7):
        assert [int(name) for n, name in seen if n == key] == list(range(key, 100, 7))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 12), max_size=80), st.integers(1, 30), st.integers(1, 4), st.integers(0, 99))
def test_no_key_is_ever_twice_under_way_and_each_keeps_its_order(
    keys: list[int], batch_size: int, width: int, seed: int
):
    order: list[tuple[int, int]] = []

    async def note(batch: Batch) -> None:
        await asyncio.sleep(0.01 * (batch.records[0]["n"] + 1))
        order.extend((record["n"], record["place"]) for record in batch.records)

    async def run() -> None:
        remote = Remote(width=width, capabilities=IDEMPOTENT, decide=lambda _batch, _source: note)
        records = iter([{"n": key, "place": place} for place, key in enumerate(keys)])
        result = await executor(remote).upsert_multiple("account", records, BulkOptions(batch_size=batch_size))
        assert result.success_count == len(keys)
        assert not remote.overlaps
        assert all(len(set(sent.numbers)) == len(sent) for sent in remote.calls)

    virtually(run(), seed)
    assert sorted(order, key=lambda pair: (pair[0], pair[1])) == sorted(order, key=lambda pair: pair[0])


@in_virtual_time
async def test_more_records_of_one_key_than_may_wait_pause_the_reading():
    remote = Remote(capabilities=IDEMPOTENT, latency_s=0.001)
    records = iter([{"n": 1}] * 2500)
    result = await executor(remote).upsert_multiple("account", records, BulkOptions(batch_size=100))
    assert result.success_count == 2500
    assert set(remote.sizes) == {1}


@in_virtual_time
async def test_records_without_a_key_are_not_kept_apart():
    remote = Remote(has_identity=False)
    await executor(remote).create_multiple("account", [{"n": 1}] * 100)
    assert remote.sizes == [100]


@pytest.mark.parametrize("make", [list, iter], ids=["list", "stream"])
@in_virtual_time
async def test_of_several_records_of_one_key_only_the_first_may_be_sent(make: Any):
    records = [{"n": 1}, {"n": 2}, {"n": 1}, {"n": 3}, {"n": 2}]
    remote, reports = Remote(capabilities=IDEMPOTENT), list[Progress]()
    options = BulkOptions(duplicates="first", batch_size=2)
    result = await executor(remote).upsert_multiple("account", make(records), options, reports.append)
    created, skipped = Outcome.CREATED, Outcome.SKIPPED
    assert result.outcomes == [created, created, skipped, created, skipped]
    assert (result.success_count, result.skipped_count, result.is_success) == (3, 2, True)
    assert reports[-1].percent_complete == 100


@in_virtual_time
async def test_of_several_records_of_one_key_only_the_last_may_be_sent():
    records = [{"n": 1}, {"n": 2}, {"n": 1}, {"n": 3}, {"n": 2}]
    remote = Remote(capabilities=IDEMPOTENT)
    result = await executor(remote).upsert_multiple("account", records, BulkOptions(duplicates="last", batch_size=2))
    assert list(result.outcomes.positions(Outcome.SKIPPED)) == [0, 1]
    assert result.is_success


@in_virtual_time
async def test_the_last_record_of_a_key_in_a_stream_cannot_be_known():
    remote = Remote()
    with pytest.raises(BadInput, match="needs a list"):
        await executor(remote).upsert_multiple("account", iter(numbered(3)), BulkOptions(duplicates="last"))
    assert not remote.calls


@in_virtual_time
async def test_several_records_of_one_key_may_be_refused():
    records = [{"n": 1}, {"n": 2}, {"n": 1}]
    remote = Remote(capabilities=IDEMPOTENT)
    with pytest.raises(BadInput, match="index 2: it has the same key as index 0"):
        await executor(remote).upsert_multiple("account", records, BulkOptions(duplicates="error"))
    assert not remote.calls
    result = await executor(remote).upsert_multiple("account", iter(records), BulkOptions(duplicates="error"))
    assert [(error.index, error.code) for error in result.errors] == [(2, "DuplicateKey")]
    assert result.success_count == 2


@pytest.mark.parametrize("key", [["not", "hashable"], None])
@in_virtual_time
async def test_a_record_whose_key_cannot_be_had_fails_alone(key: Any):
    records = numbered(5)
    records[2] = {"n": key} if key else {}
    result = await executor(Remote()).create_multiple("account", iter(records))
    assert [(error.index, error.code) for error in result.errors] == [(2, "BadRecord")]
    assert result.success_count == 4


@in_virtual_time
async def test_a_key_that_failed_is_free_for_the_next_record():
    tries: list[str] = []

    async def note(batch: Batch) -> Any:
        tries.extend(record["name"] for record in batch.records)
        return Refuse(trouble(ErrorKind.DATA)) if "bad" in tries[-len(batch) :] else None

    remote = Remote(capabilities=IDEMPOTENT, decide=lambda _batch, _source: note)
    records = [{"n": 1, "name": "bad"}, {"n": 1, "name": "good"}]
    result = await executor(remote).upsert_multiple("account", records)
    assert result.outcomes == [Outcome.FAILED, Outcome.CREATED]


@in_virtual_time
async def test_batches_have_keys_of_their_own():
    remote = Remote(bad=lambda n: trouble(ErrorKind.DATA) if n == 3 else None)
    runner = executor(remote)
    await runner.create_multiple("account", numbered(300))
    await runner.start(Mode.CREATE, "account", numbered(100, 1000))
    keys = [sent.key for sent in remote.calls]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("before", [0, 3, 150])
@in_virtual_time
async def test_an_input_that_waits_for_something_cancelled_ends_with_that_error(before: int):
    async def records() -> AsyncIterator[dict[str, Any]]:
        for record in numbered(before):
            yield record
        raise asyncio.CancelledError("what the input waited for")

    result = await executor(Remote()).create_multiple("account", records())
    assert result.stopped_reason == "error in input"
    assert isinstance(result.input_error, asyncio.CancelledError)
    assert result.success_count == before


@pytest.mark.parametrize("kind", [list, tuple, deque])
@in_virtual_time
async def test_any_list_of_records_is_taken(kind: Any):
    result = await executor(Remote()).create_multiple("account", kind(numbered(250)))
    assert result.success_count == 250


@pytest.mark.parametrize("has_keys", [True, False])
@in_virtual_time
async def test_a_record_that_cannot_be_sized_is_refused_alone(has_keys: bool):
    class Weighing(Remote):
        def size(self, record: Any) -> int:
            if record["n"] == 7:
                raise RecursionError("it contains itself")
            return 10

    async def records() -> AsyncIterator[dict[str, Any]]:
        for record in [*numbered(20), *numbered(1, 7)]:
            yield record

    remote = Weighing(capabilities=Capabilities(bytes_max=50), has_identity=has_keys)
    result = await executor(remote).upsert_multiple("account", records(), BulkOptions(batch_size=10))
    assert (result.success_count, [error.index for error in result.errors]) == (19, [7, 20])
    assert "cannot be encoded" in result.errors[0].message
