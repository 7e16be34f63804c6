"""The middleware in a FastAPI application: one effect for each key, and the same bytes for each repeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from shop import Shop, application, client_of, seen

from penstock.clock import ManualClock
from penstock.idempotency import Idempotency

KEY = {"Idempotency-Key": '"8e03978e-40d5-43dd-bc93-6894a57f9324"'}


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
async def client(shop: Shop, keys: Idempotency) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application(shop, keys)) as opened:
        yield opened


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    assert document["type"] == f"urn:penstock:problem:{document['code']}"
    return response.status_code, document["code"]


@pytest.mark.covers("GR-006", "GR-008", "GR-012", "I-34")
async def test_a_repeated_request_gets_the_same_bytes_and_has_no_effect(client: httpx.AsyncClient, shop: Shop):
    first = await client.post("/orders", content=b"one anvil", headers=KEY)
    assert (first.status_code, first.content) == (201, b"order 1: one anvil")
    assert "idempotent-replayed" not in first.headers
    bare = {"Idempotency-Key": KEY["Idempotency-Key"].strip('"')}
    for headers in (KEY, bare, KEY):
        again = await client.post("/orders", content=b"one anvil", headers=headers)
        assert again.headers["idempotent-replayed"] == "true"
        status, kept, body = seen(first)
        assert seen(again) == (status, [header for header in kept if header[0] != b"set-cookie"], body)
    assert shop.effects == {"order": 1}
    assert shop.told == {}  # the keys tell, not the middleware


@pytest.mark.covers("I-35")
async def test_another_request_with_the_same_key_is_refused(client: httpx.AsyncClient, shop: Shop):
    await client.post("/orders", content=b"one anvil", headers=KEY)
    others = [
        client.post("/orders", content=b"two anvils", headers=KEY),
        client.post("/orders?express=1", content=b"one anvil", headers=KEY),
        client.post("/orders/1/pay", content=b"one anvil", headers=KEY),
        client.post("/orders", content=b"one anvil", headers={**KEY, "Content-Type": "text/plain"}),
    ]
    for other in others:
        assert problem(await other) == (422, "idempotency-key-reused")
    assert shop.effects == {"order": 1}


async def test_the_concrete_path_counts_not_its_template(client: httpx.AsyncClient, shop: Shop):
    first = await client.post("/orders/1/pay", headers=KEY)
    assert first.json() == {"paid": 1, "currency": "EUR", "number": 1}
    assert problem(await client.post("/orders/2/pay", headers=KEY)) == (422, "idempotency-key-reused")
    assert shop.effects == {"pay": 1}


@pytest.mark.covers("GR-011", "I-35")
async def test_a_twin_in_flight_is_told_to_come_again_and_a_different_one_that_it_differs(
    client: httpx.AsyncClient, shop: Shop, clock: ManualClock
):
    shop.is_held = True
    first = asyncio.create_task(client.post("/orders", content=b"one anvil", headers=KEY))
    await shop.reached.wait()
    clock.advance(3)
    twin = await client.post("/orders", content=b"one anvil", headers=KEY)
    assert problem(twin) == (409, "idempotency-key-in-use")
    assert twin.headers["retry-after"] == "3"
    other = await client.post("/orders", content=b"two anvils", headers=KEY)
    assert problem(other) == (422, "idempotency-key-reused")
    shop.go_on.set()
    assert (await first).content == b"order 1: one anvil"
    assert (await client.post("/orders", content=b"one anvil", headers=KEY)).content == b"order 1: one anvil"
    assert shop.effects == {"order": 1}


@pytest.mark.parametrize("status", [500, 502, 503, 599, 401, 403, 409, 429])
@pytest.mark.databases("sqlite")
@pytest.mark.covers("GR-007")
async def test_an_answer_that_asks_to_come_again_is_not_kept(client: httpx.AsyncClient, shop: Shop, status: int):
    shop.statuses = [status]
    first = await client.post("/orders", content=b"x", headers=KEY)
    assert first.status_code == (500 if status == 599 else status)
    second = await client.post("/orders", content=b"x", headers=KEY)
    assert (second.status_code, second.content) == (201, b"order 2: x")
    assert "idempotent-replayed" not in second.headers


@pytest.mark.parametrize("status", [400, 402, 404, 410, 422])
@pytest.mark.databases("sqlite")
async def test_a_refusal_by_the_handler_is_an_answer_like_any_other(client: httpx.AsyncClient, shop: Shop, status: int):
    shop.statuses = [status]
    first = await client.post("/orders", content=b"x", headers=KEY)
    again = await client.post("/orders", content=b"x", headers=KEY)
    assert again.headers["idempotent-replayed"] == "true"
    assert seen(first) == seen(again)
    assert shop.effects == {"order": 1}


@pytest.mark.databases("sqlite")
async def test_a_handler_that_fails_after_which_the_key_was_given_back_may_be_called_with_another_request(
    client: httpx.AsyncClient, shop: Shop
):
    shop.statuses = [500]
    await client.post("/orders", content=b"x", headers=KEY)
    assert (await client.post("/orders", content=b"y", headers=KEY)).content == b"order 2: y"


@pytest.mark.databases("sqlite")
async def test_a_missing_key_is_refused_where_one_is_required_and_only_there(client: httpx.AsyncClient, shop: Shop):
    assert problem(await client.post("/orders", content=b"x")) == (400, "idempotency-key-missing")
    assert (await client.post("/orders/1/pay")).status_code == 200
    assert (await client.post("/orders/1/pay")).json()["number"] == 2
    assert shop.effects == {"pay": 2}
    assert shop.told == {"missing": 1}


@pytest.mark.parametrize(
    "values",
    [
        ["k" * 10_000],
        [""],
        ['""'],
        ["a", "b"],
        ["a", "a"],
        ["a,b"],
        ['"open'],
        ["schlüssel"],
        ["a\tb"],
        ["\x01"],
        ["\x7f"],
    ],
)
@pytest.mark.databases("sqlite")
async def test_a_malformed_key_is_refused(client: httpx.AsyncClient, shop: Shop, values: list[str]):
    headers = [("Idempotency-Key", value.encode()) for value in values]
    response = await client.post("/orders", content=b"x", headers=headers)
    assert problem(response) == (400, "idempotency-key-malformed")
    assert len(response.content) < 1000
    assert shop.effects == {}
    assert shop.told == {"malformed": 1}


@pytest.mark.databases("sqlite")
async def test_what_is_not_marked_is_not_guarded(client: httpx.AsyncClient, shop: Shop):
    for number in (1, 2):
        assert (await client.post("/unmarked", headers=KEY)).json() == {"number": number}
    assert (await client.get("/orders", headers=KEY)).status_code == 405
    assert (await client.post("/nowhere", headers=KEY)).status_code == 404


@pytest.mark.covers("I-37", "X-02")
async def test_callers_have_keys_of_their_own(client: httpx.AsyncClient, shop: Shop):
    answers = {}
    for name in ("acme/ana", "acme/bob", "other/ana"):
        answers[name] = (await client.post("/orders", content=name, headers={**KEY, "X-Caller": name})).content
    assert sorted(answers.values()) == [b"order 1: acme/ana", b"order 2: acme/bob", b"order 3: other/ana"]
    for name, answer in answers.items():
        again = await client.post("/orders", content=name, headers={**KEY, "X-Caller": name})
        assert again.content == answer
    assert shop.effects == {"order": 3}


async def test_a_body_in_chunks_is_the_same_body(client: httpx.AsyncClient, shop: Shop):
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one ", b"", b"anvil"):
            yield piece

    first = await client.post("/orders", content=pieces(), headers=KEY)
    again = await client.post("/orders", content=b"one anvil", headers=KEY)
    assert (first.content, again.content) == (b"order 1: one anvil",) * 2


async def test_an_upload_is_idempotent_whatever_boundary_its_client_makes_up(client: httpx.AsyncClient, shop: Shop):
    content = bytes(range(256)) * 20_000  # beyond what is kept in memory
    first = await client.post("/files", files={"file": ("a.bin", content)}, headers=KEY)
    again = await client.post("/files", files={"file": ("a.bin", content)}, headers=KEY)
    assert first.request.headers["content-type"] != again.request.headers["content-type"]
    assert first.json() == again.json()
    assert first.json()["bytes"] > len(content)
    assert (first.json()["most"] <= 65_536, shop.effects) == (True, {"upload": 1})
    changed = await client.post("/files", files={"file": ("a.bin", content[:-1] + b"?")}, headers=KEY)
    assert problem(changed) == (422, "idempotency-key-reused")


async def test_a_request_that_was_cut_off_is_not_carried_out_again(
    client: httpx.AsyncClient, shop: Shop, keys: Idempotency, clock: ManualClock
):
    shop.is_held = True
    cut_off = asyncio.create_task(client.post("/orders", content=b"x", headers=KEY))
    await shop.reached.wait()
    cut_off.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut_off
    response = await client.post("/orders", content=b"x", headers=KEY)
    assert problem(response) == (409, "idempotency-key-indeterminate")
    assert "retry-after" not in response.headers
    assert shop.effects == {"order": 1}
    [record] = await keys.unsettled()
    assert (record.label, record.key) == ("POST /orders", KEY["Idempotency-Key"].strip('"'))


async def test_a_request_that_may_run_again_does_so_with_the_same_effect_key(
    client: httpx.AsyncClient, shop: Shop, clock: ManualClock
):
    shop.is_held = True
    silent = asyncio.create_task(client.post("/again", headers=KEY))
    await shop.reached.wait()
    assert problem(await client.post("/again", headers=KEY)) == (409, "idempotency-key-in-use")
    clock.advance(31)
    shop.is_held = False
    second = await client.post("/again", headers=KEY)
    assert second.json()["attempt"] == 2
    shop.go_on.set()
    late = await silent
    # The first attempt does not count any more: its client gets the answer that everybody gets.
    assert late.headers["idempotent-replayed"] == "true"
    assert seen(late) == seen(second)
    assert shop.effects == {"again": 2}


async def test_a_late_handler_whom_nobody_followed_answers_everybody(
    client: httpx.AsyncClient, shop: Shop, clock: ManualClock
):
    shop.is_held = True
    late = asyncio.create_task(client.post("/orders", content=b"x", headers=KEY))
    await shop.reached.wait()
    clock.advance(31)
    assert problem(await client.post("/orders", content=b"x", headers=KEY)) == (409, "idempotency-key-indeterminate")
    shop.go_on.set()
    assert (await late).content == b"order 1: x"
    assert (await client.post("/orders", content=b"x", headers=KEY)).content == b"order 1: x"


@pytest.mark.covers("X-15")
async def test_an_erased_answer_is_gone_for_good(client: httpx.AsyncClient, shop: Shop, keys: Idempotency):
    await client.post("/orders", content=b"personal", headers=KEY)
    assert await keys.erase(scope=("acme", "ana")) == 1
    gone = await client.post("/orders", content=b"personal", headers=KEY)
    assert problem(gone) == (410, "idempotency-answer-not-kept")
    assert shop.effects == {"order": 1}
