"""Live progress: server-sent events that end with the operation, and can be gone on with."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing
from typing import Any, cast

import httpx
import pytest
from parcel_service import DEAR, upload
from patience import HANG_S

from penstock.api.streaming import STREAM_S, STREAMS_MAX
from penstock.api.watching import Watchers
from penstock.testing import Engine

pytestmark = pytest.mark.databases("sqlite")


def read(text: str) -> list[dict[str, Any]]:
    """The events of a stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


async def test_a_stream_tells_every_move_and_ends_with_the_operation(api: httpx.AsyncClient, works: Engine):
    made = await upload(api)
    await works.work_until_idle()
    answer = await api.get(f"/api/bulks/{made}/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = read(answer.text)
    moves = [event for event in events if event["event"] == "move"]
    listed = (await api.get(f"/api/bulks/{made}/events", params={"since": 0})).json()
    assert [(int(move["id"]), move["data"]) for move in moves] == [(each["sequence"], each) for each in listed]
    assert [event["event"] for event in events[-2:]] == ["progress", "end"]
    assert events[-2]["data"]["successfulRows"] == 2
    assert events[-1]["data"] == {"status": "CompletedWithErrors"}


async def test_a_stream_goes_on_behind_the_last_event_that_was_seen(api: httpx.AsyncClient, works: Engine):
    made = await upload(api)
    await works.work_until_idle()
    numbers = [move["sequence"] for move in (await api.get(f"/api/bulks/{made}/events")).json()]
    answer = await api.get(f"/api/bulks/{made}/stream", headers={"last-event-id": str(numbers[-2])})
    assert [int(event["id"]) for event in read(answer.text) if event["event"] == "move"] == numbers[-1:]
    over = await api.get(f"/api/bulks/{made}/stream", headers={"last-event-id": str(numbers[-1])})
    assert over.status_code == 204
    assert (await api.get(f"/api/bulks/{made}/stream", headers={"last-event-id": "x"})).status_code == 422


async def sightings(watchers: Watchers, operation: str, seen: asyncio.Queue[Any]) -> None:
    async with aclosing(watchers.watch(operation)) as found:
        async for sighting in found:
            await seen.put(sighting)
    await seen.put("over")


async def test_all_who_watch_one_operation_share_one_look(api: httpx.AsyncClient, works: Engine):
    made, looks = await upload(api, DEAR), 0
    operations = works.penstock.operations

    class Counted:
        events = operations.events

        async def get(self, id: str) -> Any:
            nonlocal looks
            looks += 1
            return await operations.get(id)

    watchers = Watchers(Counted(), clock=works.clock, every_s=0.01)
    queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(50)]
    tasks = [asyncio.create_task(sightings(watchers, made, queue)) for queue in queues]
    async with asyncio.timeout(HANG_S):
        for queue in queues:
            assert (await queue.get()).operation.status == "Pending"
        assert looks < len(queues)
        await works.work_until_idle()
        for queue in queues:
            while (await queue.get()).operation.waiting_rows != 2:
                pass
        assert watchers.viewers == len(queues)
        watchers.close()
        await asyncio.gather(*tasks)
    assert watchers.viewers == 0


async def test_who_comes_after_a_retry_is_not_told_of_the_end_before_it(api: httpx.AsyncClient, works: Engine):
    made = await upload(api)
    await works.work_until_idle()
    watchers = Watchers(works.penstock.operations, clock=works.clock, every_s=0.01)
    async with asyncio.timeout(HANG_S), aclosing(watchers.watch(made)) as before:
        assert (await anext(before)).operation.is_settled
        await works.operations.retry(made)
        async with aclosing(watchers.watch(made)) as after:
            assert (await anext(after)).operation.status == "Retrying"


class GatedOperations:
    """Operations whose state is told to one look at a time, when permitted."""

    def __init__(self, operations: Any) -> None:
        self.operations, self.begun, self.permits = operations, asyncio.Queue[None](), asyncio.Semaphore(0)

    async def get(self, operation: str) -> Any:
        self.begun.put_nowait(None)
        await self.permits.acquire()
        return await self.operations.get(operation)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operations, name)


async def test_who_comes_during_a_look_does_not_make_those_before_wait_for_the_next(
    api: httpx.AsyncClient, works: Engine
):
    made, gated = await upload(api, DEAR), GatedOperations(works.penstock.operations)
    watchers = Watchers(cast("Any", gated), clock=works.clock, every_s=0.01)
    async with asyncio.timeout(HANG_S), AsyncExitStack() as streams:

        async def join() -> asyncio.Task[Any]:
            stream = await streams.enter_async_context(aclosing(watchers.watch(made)))
            first = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            return first

        before = await join()
        await gated.begun.get()
        gated.permits.release()
        await before
        await gated.begun.get()
        second = await join()
        gated.permits.release()  # a look that began before it came
        await gated.begun.get()
        third = await join()
        gated.permits.release()
        assert (await second).operation.id == made
        gated.permits.release()
        assert (await third).operation.id == made


async def test_a_stream_ends_when_the_server_stops(api: httpx.AsyncClient, works: Engine):
    made = await upload(api, DEAR)
    watchers = Watchers(works.penstock.operations, clock=works.clock, every_s=0.01)
    seen: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(sightings(watchers, made, seen))
    async with asyncio.timeout(HANG_S):
        await seen.get()
        watchers.close()
        await task


async def test_who_leaves_is_not_looked_for_any_more(api: httpx.AsyncClient, works: Engine):
    made = await upload(api, DEAR)
    watchers = Watchers(works.penstock.operations, clock=works.clock, every_s=0.01)
    stream = watchers.watch(made)
    async with asyncio.timeout(HANG_S):
        await anext(stream)
        await stream.aclose()
    assert watchers.viewers == 0


async def test_a_stream_ends_after_a_while_so_that_who_was_locked_out_stays_out(api: httpx.AsyncClient, works: Engine):
    made = await upload(api, DEAR)
    watchers = Watchers(works.penstock.operations, clock=works.clock, every_s=0.01)
    seen: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(sightings(watchers, made, seen))
    async with asyncio.timeout(HANG_S):
        await seen.get()
        works.clock.advance(STREAM_S)
        await works.work_until_idle()
        await task
    assert not (await works.operations.get(made)).is_settled
    assert watchers.viewers == 0


async def test_a_caller_may_have_so_many_streams_and_no_more(api: httpx.AsyncClient, works: Engine):
    made = await upload(api, DEAR)
    path = f"/api/bulks/{made}/stream"
    app = api._transport.app  # httpx's test transport waits for the end of a stream
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    scope["headers"] = [(b"host", b"penstock.test")]
    leave = asyncio.Event()

    async def open_one(begun: asyncio.Event) -> None:
        async def receive() -> dict[str, Any]:
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                begun.set()

        await app(dict(scope), receive, send)

    async with asyncio.timeout(HANG_S):
        begun = [asyncio.Event() for _ in range(STREAMS_MAX)]
        tasks = [asyncio.create_task(open_one(each)) for each in begun]
        for each in begun:
            await each.wait()
        refused = await api.get(path)
        assert (refused.status_code, refused.json()["code"]) == (429, "throttled")
        leave.set()
        await asyncio.gather(*tasks)
        await works.work_until_idle()
        await works.operations.cancel(made)
        await works.work_until_idle()
        assert (await api.get(path)).status_code == 200
