"""Operations of another tenant, or of a name that a key may not use, do not exist for it."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from penstock import Context, Pipeline, operation, step
from penstock.access.model import Principal
from penstock.clock import Entropy, ManualClock, operation_id
from penstock.errors import Forbidden, NotFound
from penstock.operations.telling import describe
from penstock.testing import engine


class Paper(BaseModel):
    name: str


@operation("Papers", row_key="name")
class Papers(Pipeline[Paper, None]):
    @step.signal(key="paper-{row.name}", timeout=60)
    async def approve(self, paper: Paper, ctx: Context[None]) -> None:
        """Somebody is asked."""


@operation("notes", row_key="name")
class Notes(Pipeline[Paper, None]):
    @step
    async def keep(self, paper: Paper, ctx: Context[None]) -> None:
        """It is kept."""


ROWS = [{"name": "a"}, {"name": "b"}]
ACME = Principal("ana", frozenset({"admin"}), tenant="acme")
GLOBEX = Principal("ben", frozenset({"admin"}), tenant="globex")
NAMELESS = Principal("cyd", frozenset({"admin"}))
ONLY_NOTES = Principal("dan", frozenset({"admin"}), frozenset({"Notes"}), tenant="acme")


@pytest.fixture
async def e(database_url, tmp_path):
    async with engine([Papers, Notes], url=database_url, tmp_path=tmp_path) as made:
        yield made


@pytest.fixture
async def acme(e):
    return e.penstock.seen_by(ACME)


@pytest.fixture
async def paper(e, acme):
    made = await acme.operations.create("papers", file=b"name\na\nb\n", file_name="papers.csv")
    await e.work_until_idle()
    return made


CALLS = {
    "get": lambda p, id: p.operations.get(id),
    "rows": lambda p, id: p.operations.rows(id),
    "row": lambda p, id: p.operations.row(id, 1),
    "errors": lambda p, id: p.operations.errors(id),
    "error_groups": lambda p, id: p.operations.error_groups(id),
    "history": lambda p, id: p.operations.history(id),
    "events": lambda p, id: p.operations.events(id),
    "cancel": lambda p, id: p.operations.cancel(id),
    "pause": lambda p, id: p.operations.pause(id),
    "resume": lambda p, id: p.operations.resume(id),
    "can_retry": lambda p, id: p.operations.can_retry(id),
    "retry": lambda p, id: p.operations.retry(id),
    "retry_rows": lambda p, id: p.operations.retry(id, rows=[1]),
    "edit_row": lambda p, id: p.operations.edit_row(id, 1, {"name": "x"}),
    "delete": lambda p, id: p.operations.delete(id),
    "hold": lambda p, id: p.operations.hold(id, "why"),
    "release": lambda p, id: p.operations.release(id),
    "source_file": lambda p, id: p.operations.source_file(id),
    "export": lambda p, id: p.operations.export(id),
    "verify": lambda p, id: p.operations.verify(id),
    "complete": lambda p, id: p.signals.complete(id, "paper-a"),
    "fail": lambda p, id: p.signals.fail(id, "paper-a", "no"),
    "waiting": lambda p, id: p.signals.waiting(id),
    "unclaimed": lambda p, id: p.signals.unclaimed(id),
    "are_all_outstanding": lambda p, id: p.signals.are_all_outstanding(id),
}


async def test_every_call_on_an_operation_that_is_not_theirs_is_refused_like_one_on_a_random_id(e, paper):
    random_id = operation_id(ManualClock(), Entropy(random.Random(1).getrandbits))
    for stranger in (GLOBEX, NAMELESS, ONLY_NOTES):
        seen = e.penstock.seen_by(stranger)
        for name, call in CALLS.items():
            refusals = []
            for id in (paper.id, random_id):
                with pytest.raises(NotFound) as refused:
                    await call(seen, id)
                refusals.append((type(refused.value), str(refused.value).replace(id, "ID")))
            assert refusals[0] == refusals[1], (stranger.name, name)
        with pytest.raises(NotFound):
            await seen.operations.get(paper.id[:13])
    assert (await e.operations.get(paper.id)).status == "Running"


async def test_lists_show_only_what_is_theirs(e, acme, paper):
    note = await acme.operations.create("notes", file=b"name\nx\n", file_name="notes.csv")
    own = await e.penstock.seen_by(NAMELESS).operations.create("papers", file=b"name\nc\n", file_name="papers.csv")
    await e.work_until_idle()
    expected = {
        ACME: {paper.id, note.id},
        GLOBEX: set(),
        NAMELESS: {own.id},
        ONLY_NOTES: {note.id},
    }
    for principal, ids in expected.items():
        seen = e.penstock.seen_by(principal)
        assert {found.id for found in (await seen.operations.list()).items} == ids
        assert {event.operation_id for event in await seen.operations.events()} == ids
        assert {wait.operation_id for wait in await seen.signals.waiting()} == ids - {note.id}
        assert (await seen.operations.verify()).operations == len(ids)
    assert len((await e.operations.list()).items) == 3


async def test_their_own_operation_takes_their_signals(e, acme, paper):
    assert (await acme.signals.complete(paper.id, "paper-a")).row == 1
    await e.work_until_idle()
    assert (await acme.operations.row(paper.id, 1)).state == "Completed"


async def test_signals_of_two_tenants_at_once_do_not_mix(e, acme, paper):
    stranger = e.penstock.seen_by(GLOBEX)
    calls = [acme.signals.complete(paper.id, "paper-a"), stranger.signals.complete(paper.id, "paper-b")]
    delivered, refused = await asyncio.gather(*calls, return_exceptions=True)
    assert delivered.row == 1
    assert isinstance(refused, NotFound)


async def test_an_operation_that_they_may_not_use_is_unknown_to_them(e):
    seen = e.penstock.seen_by(ONLY_NOTES)
    with pytest.raises(NotFound, match="unknown operation 'papers'; known: notes"):
        await seen.operations.create("papers", file=b"name\na\n", file_name="papers.csv")
    assert [found.name for found in seen.definitions.values()] == ["notes"]


async def test_what_they_do_is_done_in_their_name(e, acme, paper):
    await acme.operations.cancel(paper.id, cause="wrong file")
    assert paper.created_by == "ana"
    assert {event.actor for event in await acme.operations.events(paper.id) if event.event == "cancel_requested"} == {
        "ana"
    }


async def test_a_purge_of_all_tenants_is_not_theirs_to_ask(acme, e):
    with pytest.raises(Forbidden):
        await acme.operations.prune(datetime.now(UTC))


async def test_events_of_an_operation_are_told_to_its_tenant_alone(e, acme, paper):
    own = await e.create("papers", [{"name": "c"}])
    async with e.penstock.db.read() as tx:
        facts = await describe(tx, {paper.id, own.id})
    assert {id: fact.tenant for id, fact in facts.items()} == {paper.id: "acme", own.id: ""}


async def test_blobs_and_webhooks_are_those_of_the_tenant(e):
    seen = e.penstock.seen_by(ACME)
    blob = await seen.blobs.upload(b"x,y\n1,2\n", file_name="a.csv")
    with pytest.raises(NotFound):
        await e.penstock.seen_by(GLOBEX).blobs.get(blob.id)
    assert seen.webhooks is not e.penstock.webhooks


async def test_lifecycles_are_those_of_the_tenant(e):
    lifecycle = '{"definition": {"name": "door"}, "states": [{"name": "shut"}], "events": [], "transitions": []}'
    await e.penstock.seen_by(ACME).lifecycles.import_text(lifecycle)
    door = await e.penstock.lifecycles.tenant("acme").start("door")
    assert (await e.penstock.seen_by(ACME).lifecycles.get(door.guid)).guid == door.guid
    for other in (e.penstock, e.penstock.seen_by(GLOBEX)):
        with pytest.raises(NotFound):
            await other.lifecycles.get(door.guid)
