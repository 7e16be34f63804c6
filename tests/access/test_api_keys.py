"""API keys: what is stored of them, what they allow, and how soon one that was taken back is refused."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import pytest
from sqlalchemy import select

from penstock.access import key_text
from penstock.access.keys import CACHE_S
from penstock.access.model import Principal
from penstock.access.tables import api_keys
from penstock.clock import Entropy
from penstock.errors import InvalidInput, NotFound


async def test_who_asks_is_told_by_the_key(e):
    _, text = await e.penstock.keys.create("ci", role="operate", operations=["Price-Update"], tenant="acme")
    assert await e.penstock.keys.principal(text) == Principal(
        "ci", frozenset({"read", "operate"}), frozenset({"price-update"}), "acme"
    )


async def test_only_a_hash_of_a_key_is_stored_and_the_secret_has_192_bits_or_more(e):
    made, text = await e.penstock.keys.create("ci")
    secret = text.rpartition("_")[2]
    assert len(bytes.fromhex(secret)) * 8 >= 192
    async with e.penstock.db.read() as tx:
        row = (await tx.execute(select(api_keys))).one()
    assert secret not in f"{row!r} {asdict(made)!r}"


@pytest.mark.parametrize(
    "spoil", [str.upper, lambda t: t[:-1], lambda t: t + "0", lambda t: t + "\n", lambda t: t[:-1] + "g", lambda t: ""]
)
def test_text_that_is_not_formed_like_a_key_is_none(spoil):
    _, text = key_text.new_key(Entropy())
    assert key_text.parse(text) is not None
    assert key_text.parse(spoil(text)) is None


async def test_another_secret_for_a_known_id_is_nobody(e):
    _, text = await e.penstock.keys.create("ci")
    other = text[:-1] + ("0" if text[-1] != "0" else "1")
    assert await e.penstock.keys.principal(text) is not None
    assert await e.penstock.keys.principal(other) is None


async def test_a_revoked_key_is_refused_here_at_once_and_elsewhere_within_five_seconds(e, other, clock):
    made, text = await e.penstock.keys.create("ci")
    assert await other.penstock.keys.principal(text) is not None
    await e.penstock.keys.revoke(made.id, actor="ana")
    assert await e.penstock.keys.principal(text) is None
    assert CACHE_S <= 5
    clock.advance(CACHE_S)
    assert await other.penstock.keys.principal(text) is None


async def test_a_key_expires(e, clock):
    _, text = await e.penstock.keys.create("ci", lasts=timedelta(hours=1))
    clock.advance(3599)
    assert await e.penstock.keys.principal(text) is not None
    clock.advance(1)
    assert await e.penstock.keys.principal(text) is None


async def test_revoking_twice_is_revoking_once(e, clock):
    made, text = await e.penstock.keys.create("ci")
    first = await e.penstock.keys.revoke(made.id, actor="ana")
    clock.advance(60)
    assert await e.penstock.keys.revoke(text, actor="ben") == first
    assert (first.revoked_by, first.state_at(first.created_at)) == ("ana", "Revoked")


async def test_a_key_of_another_tenant_is_not_found(e):
    made, text = await e.penstock.keys.create("ci", tenant="acme")
    with pytest.raises(NotFound):
        await e.penstock.keys.revoke(made.id, tenant="other")
    assert await e.penstock.keys.principal(text) is not None
    assert await e.penstock.keys.list(tenant="other") == []


async def test_everything_that_is_wrong_with_a_new_key_is_said_at_once(e):
    with pytest.raises(InvalidInput) as refused:
        await e.penstock.keys.create("", role="root", tenant="x" * 65)
    assert [fault.field for fault in refused.value.faults] == ["name", "role", "tenant"]


async def test_keys_are_listed_page_by_page_with_their_last_use(e, clock):
    made = []
    for name in ("a", "b", "c"):
        made.append(await e.penstock.keys.create(name))
        clock.advance(1)
    await e.penstock.keys.principal(made[1][1])
    first = await e.penstock.keys.list(limit=2)
    rest = await e.penstock.keys.list(after=first[-1].id)
    assert [(key.name, key.last_used_at is not None) for key in (*first, *rest)] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]


async def test_a_key_of_another_tenant_is_no_place_in_a_list(e):
    theirs, _ = await e.penstock.keys.create("x", tenant="globex")
    told = []
    for cursor in (theirs.id, "f" * len(theirs.id)):
        with pytest.raises(InvalidInput) as refused:
            await e.penstock.keys.list(tenant="acme", after=cursor)
        told.append(str(refused.value).replace(cursor, "CURSOR"))
    assert told[0] == told[1]
