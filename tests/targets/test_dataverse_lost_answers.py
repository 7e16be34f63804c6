"""Calls whose answer was lost: what is said of them, and how they are traced and sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from dataverse import Drop, Held, Problem, Truncated
from dataverse_remote import Impatient, Remote, executor, opened, outcomes
from patience import HANG_S

from penstock.targets.dataverse import DataverseOptions, DataverseTarget
from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome, TargetError
from penstock.targets.target import Batch, Capabilities

AFTER = Drop(is_applied=True)
BEFORE = Drop(is_applied=False)


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    async with opened() as found:
        yield found


async def lose(remote: Remote, batch: Batch) -> TargetError:
    """Send a batch whose answer is lost."""
    with pytest.raises(TargetError) as caught:
        await remote.target.send(batch, "app-1")
    assert caught.value.maybe_applied
    assert caught.value.kind is ErrorKind.CONNECTION
    return caught.value


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize(
    "event",
    [AFTER, BEFORE, Drop(is_applied=True, is_reset=True), Truncated(5), Problem(502, "", "", has_body=False)],
)
async def test_a_lost_answer_leaves_a_doubt(remote: Remote, event: Drop | Truncated | Problem):
    remote.server.faults.add(event, action="CreateMultiple", times=1)
    await lose(remote, remote.batch(Mode.CREATE, [{"name": "a"}]))


@asynccontextmanager
async def impatient(remote: Remote, held: Held) -> AsyncIterator[DataverseTarget]:
    """A target that gives up waiting for the answer to a held call."""
    target = DataverseTarget(
        remote.server.url,
        remote.server.credential(),
        client=lambda: httpx.AsyncClient(timeout=HANG_S, transport=Impatient(held)),
    )
    yield target
    await target.aclose()


async def test_a_slow_answer_leaves_a_doubt(remote: Remote):
    held = Held(is_applied=True)
    remote.server.faults.add(held, action="CreateMultiple", times=1)
    async with impatient(remote, held) as target:
        with pytest.raises(TargetError, match="ReadTimeout") as caught:
            await target.send(remote.batch(Mode.CREATE, [{"name": "a"}]), "default")
    assert caught.value.maybe_applied


async def test_an_unreachable_remote_leaves_no_doubt():
    async with opened() as remote:
        batch = remote.batch(Mode.DELETE, [str(uuid4())])
        await remote.target.describe("account", Mode.DELETE, BulkOptions(), "app-1")
    with pytest.raises(TargetError, match="could not be reached") as caught:
        await remote.target.send(batch, "app-1")
    assert (caught.value.kind, caught.value.maybe_applied) == (ErrorKind.CONNECTION, False)
    await remote.target.aclose()


async def test_a_question_whose_answer_was_lost_leaves_no_doubt(remote: Remote):
    remote.server.faults.add(AFTER, action="GET", table="account", times=1)
    with pytest.raises(TargetError) as caught:
        await remote.send(Mode.UPSERT, [{"code": "a"}], alternate_key=["code"], tell_created=True)
    assert not caught.value.maybe_applied
    assert remote.server.rows("account") == []


@pytest.mark.parametrize(
    "mode, options, is_idempotent, can_reconcile",
    [
        (Mode.CREATE, {}, False, False),
        (Mode.CREATE, {"client_made_ids": True}, False, True),
        (Mode.CREATE, {"alternate_key": ["code"]}, False, True),
        (Mode.UPDATE, {}, True, False),
        (Mode.UPSERT, {}, True, False),
        (Mode.DELETE, {}, False, True),
    ],
)
async def test_what_can_be_done_about_a_lost_answer_is_told_beforehand(
    remote: Remote, mode: Mode, options: dict[str, object], is_idempotent: bool, can_reconcile: bool
):
    batch = remote.batch(mode, [], **options)
    capabilities: Capabilities = await remote.target.describe("account", mode, batch.options, "app-1")
    assert (capabilities.is_idempotent, capabilities.can_reconcile) == (is_idempotent, can_reconcile)


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize("options", [{"client_made_ids": True}, {"alternate_key": ["code"]}])
@pytest.mark.parametrize("event", [AFTER, BEFORE])
async def test_a_lost_create_is_found_or_found_missing(remote: Remote, options: dict[str, object], event: Drop):
    remote.server.faults.add(event, action="CreateMultiple", times=1)
    batch = remote.batch(Mode.CREATE, [{"name": "a", "code": "A"}, {"name": "b", "code": "B"}], **options)
    await lose(remote, batch)
    traced = await remote.target.reconcile(batch, "app-1")
    if event is BEFORE:
        assert traced == [None, None]
        assert outcomes(await remote.target.send(batch, "app-1")) == ["created", "created"]
        return
    rows = remote.named()
    assert [(verdict.outcome.value, verdict.id) for verdict in traced if verdict] == [
        ("created", rows["a"]["accountid"]),
        ("created", rows["b"]["accountid"]),
    ]


async def test_a_key_that_was_there_before_does_not_make_a_lost_batch_look_applied(remote: Remote):
    await remote.create({"name": "old", "code": "A"})
    remote.server.faults.add(BEFORE, action="CreateMultiple", times=1)
    batch = remote.batch(Mode.CREATE, [{"name": "a", "code": "A"}, {"name": "b", "code": "B"}], alternate_key=["code"])
    await lose(remote, batch)
    assert await remote.target.reconcile(batch, "app-1") == [None, None]
    with pytest.raises(TargetError) as caught:
        await remote.target.send(batch, "app-1")
    assert caught.value.code == "0x80060892"


async def test_records_sent_each_on_their_own_are_traced_each_on_their_own(remote: Remote):
    remote.server.faults.add(AFTER, action="$batch", times=1)
    batch = remote.batch(
        Mode.CREATE, [{"name": "a", "code": "A"}, {"name": "b", "code": "x" * 30}], alternate_key=["code"]
    )
    with pytest.raises(TargetError):
        await remote.target.send_each(batch, "app-1")
    first, second = await remote.target.reconcile(batch, "app-1")
    assert first is not None
    assert second is None


@pytest.mark.parametrize("options", [{"client_made_ids": True}, {"alternate_key": ["code"]}])
async def test_a_create_that_took_effect_after_it_was_looked_for_is_not_made_twice(
    remote: Remote, options: dict[str, Any]
):
    remote.server.faults.add(Drop(is_late=True), action="CreateMultiple", times=1)
    records = [{"name": "a", "code": "A"}, {"name": "b", "code": "B"}]
    result = await executor(remote).create_multiple("account", records, DataverseOptions(**options))
    assert result.is_success
    assert result.created_ids == [row["accountid"] for row in remote.server.rows("account")]


@pytest.mark.parametrize("status, headers", [(408, {}), (503, {}), (503, {"Retry-After": "5"})])
@pytest.mark.parametrize("options", [{}, {"client_made_ids": True}], ids=["untraceable", "traceable"])
@pytest.mark.covers("BX-060")
async def test_a_create_that_was_applied_before_the_remote_said_it_was_unavailable_is_not_made_twice(
    remote: Remote, options: dict[str, Any], status: int, headers: dict[str, str]
):
    unavailable = Problem(status, "", "", headers, has_body=False, is_applied=True)
    remote.server.faults.add(unavailable, action="CreateMultiple", times=1)
    result = await executor(remote).create_multiple("account", [{"name": "a"}], DataverseOptions(**options))
    assert result.outcomes == [Outcome.CREATED if options else Outcome.UNKNOWN]
    assert len(remote.server.rows("account")) == 1


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.covers("BX-060")
async def test_an_elastic_row_of_which_the_store_was_unavailable_is_looked_for_after_the_wait(
    remote: Remote, is_applied: bool
):
    unavailable = Problem(503, "", "unavailable", is_applied=is_applied)
    remote.server.faults.add(unavailable, table="reading", times=1, row=lambda row: row["name"] == "b")
    result = await executor(remote).create_multiple("reading", [{"name": name} for name in "abc"])
    assert (result.is_success, result.statistics.throttles) == (True, 1)
    assert sorted(row["name"] for row in remote.server.rows("reading")) == ["a", "b", "c"]


async def test_an_id_that_was_taken_before_is_still_a_duplicate(remote: Remote):
    (taken,) = await remote.create({"name": "old"})
    with pytest.raises(TargetError) as caught:
        await remote.create({"name": "a", "accountid": taken}, client_made_ids=True)
    assert caught.value.code == "0x80040237"


@pytest.mark.covers("BX-028")
async def test_a_resent_upsert_is_labelled_by_what_was_there_before_its_first_try(remote: Remote):
    await remote.create({"name": "old", "code": "old"})
    remote.server.faults.add(AFTER, action="UpsertMultiple", times=1)
    batch = remote.batch(
        Mode.UPSERT,
        [{"name": "a", "code": "new"}, {"name": "b", "code": "old"}],
        alternate_key=["code"],
        tell_created=True,
    )
    await lose(remote, batch)
    assert outcomes(await remote.target.send(batch, "app-1")) == ["created", "updated"]


@pytest.mark.covers("BX-028")
async def test_a_resent_upsert_in_exact_mode_owns_up_to_its_counts(remote: Remote):
    remote.server.faults.add(AFTER, action="$batch", times=1)
    batch = remote.batch(Mode.UPSERT, [{"name": "a", "code": "new"}], alternate_key=["code"], exact_counts=True)
    await lose(remote, batch)
    assert not (await remote.target.send(batch, "app-1")).counts_exact
    fresh = remote.batch(Mode.UPSERT, [{"name": "a", "code": "new"}], alternate_key=["code"], exact_counts=True)
    assert (await remote.target.send(fresh, "app-1")).counts_exact


@pytest.mark.parametrize("table, action", [("account", "$batch"), ("reading", "DeleteMultiple")])
@pytest.mark.parametrize("event", [AFTER, BEFORE])
async def test_a_lost_delete_is_traced_by_what_is_still_there(remote: Remote, table: str, action: str, event: Drop):
    ids = await remote.create({"name": "a"}, {"name": "b"}, table=table)
    remote.server.faults.add(event, action=action, times=1)
    batch = remote.batch(Mode.DELETE, ids, table)
    await lose(remote, batch)
    traced = await remote.target.reconcile(batch, "app-1")
    if event is BEFORE:
        assert traced == [None, None]
    else:
        assert [verdict and verdict.outcome.value for verdict in traced] == ["deleted", "deleted"]


async def test_a_delete_by_alternate_key_is_traced_by_that_key(remote: Remote):
    await remote.create({"name": "a", "code": "A"}, {"name": "b", "code": "B"})
    await remote.send(Mode.DELETE, [{"code": "A"}])
    first, second = await remote.target.reconcile(remote.batch(Mode.DELETE, [{"code": "a"}, {"code": "B"}]), "app-1")
    assert first is not None
    assert second is None


async def test_a_partly_applied_elastic_create_is_traced_row_by_row(remote: Remote):
    remote.server.faults.add(Problem(400, "x", "no"), row=lambda row: row["name"] == "bad", table="reading")
    remote.server.faults.add(AFTER, action="CreateMultiple", times=1)
    batch = remote.batch(Mode.CREATE, [{"name": "a"}, {"name": "bad"}], "reading")
    await lose(remote, batch)
    first, second = await remote.target.reconcile(batch, "app-1")
    assert first is not None
    assert first.id == remote.named("reading")["a"]["readingid"]
    assert second is None


async def test_after_a_lost_batch_and_lost_single_records_the_single_ones_count(remote: Remote):
    records = [{"name": "a", "code": "A"}, {"name": "b", "code": "x" * 30}]
    batch = remote.batch(Mode.CREATE, records, alternate_key=["code"])
    remote.server.faults.add(BEFORE, action="CreateMultiple", times=1)
    await lose(remote, batch)
    remote.server.faults.add(AFTER, action="$batch", times=1)
    with pytest.raises(TargetError):
        await remote.target.send_each(batch, "app-1")
    assert [verdict is not None for verdict in await remote.target.reconcile(batch, "app-1")] == [True, False]


async def test_a_create_whose_ids_do_not_fit_its_records_is_not_believed():
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            names = {"EntitySetName": "accounts", "PrimaryIdAttribute": "accountid", "TableType": "Standard"}
            return httpx.Response(200, json=names)
        return httpx.Response(200, json={"Ids": [str(uuid4())]})

    async with opened() as remote:
        target = DataverseTarget(
            remote.server.url,
            remote.server.credential(),
            client=lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)),
        )
        with pytest.raises(TargetError, match="told 1 ids where 2 records were sent") as caught:
            await target.send(remote.batch(Mode.CREATE, [{"name": "a"}, {"name": "b"}]), "default")
        assert caught.value.maybe_applied


async def test_an_answer_that_drips_for_ever_is_given_up():
    class Drip(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError("it never ends")

    class AtHand:
        async def get_token(self, *scopes: str, **_: object) -> Any:
            return SimpleNamespace(token="t", expires_on=2_000_000_000)

    target = DataverseTarget(
        "https://org.crm.dynamics.com",
        AtHand(),
        client=lambda: httpx.AsyncClient(transport=Drip()),
        timeout_s=0.01,
    )
    with pytest.raises(TargetError, match="TimeoutError") as caught:
        await target.describe("account", Mode.CREATE, BulkOptions(), "default")
    assert caught.value.kind is ErrorKind.CONNECTION
    await target.aclose()


async def test_a_credential_that_never_answers_is_given_up():
    class Silent:
        async def get_token(self, *scopes: str, **_: object) -> Any:
            await asyncio.Event().wait()

    target = DataverseTarget("https://org.crm.dynamics.com", Silent(), timeout_s=0.01)
    async with asyncio.timeout(HANG_S):
        with pytest.raises(TargetError, match="no token for 'default'") as caught:
            await target.describe("account", Mode.CREATE, BulkOptions(), "default")
    assert (caught.value.kind, caught.value.maybe_applied) == (ErrorKind.CONNECTION, False)
    await target.aclose()
