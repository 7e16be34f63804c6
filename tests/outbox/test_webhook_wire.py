"""What we send, as independent libraries read it: Standard Webhooks verifies it, CloudEvents parses it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.v1.http import from_http
from parcel_post import post_office
from receivers import Receiver
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from penstock.outbox.signing import new_secret
from penstock.testing import Engine

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    """On a clock that shows the present time, for receivers refuse what is old."""
    async with post_office(database_url, tmp_path, public_url="https://penstock.example/") as made:
        made.clock.advance((datetime.now(UTC) - datetime(2030, 1, 1, tzinfo=UTC)).total_seconds())
        yield made


async def test_the_independent_libraries_verify_and_parse_every_event(e: Engine, hook: Receiver):
    added = await e.penstock.webhooks.add(hook.url)
    assert added.secret is not None
    made = await e.create("send-parcels", [{"name": "a"}, {"name": "ü", "weight": 0}])
    await e.operations.cancel(made.id, cause="nobody’s parcel")
    assert await e.deliver() == 2
    for request, name in zip(hook.requests, ("created", "cancelled"), strict=True):
        Webhook(added.secret).verify(request.body, request.headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(added.secret).verify(request.body + b" ", request.headers)
        new = from_structured(HTTPMessage(request.headers, request.body), JSONFormat())
        old = from_http(request.headers, request.body)
        assert new.get_id() == old["id"] == request.headers["webhook-id"]
        assert new.get_type() == old["type"] == f"penstock.operation.{name}"
        assert new.get_subject() == made.id
        assert new.get_source() == "https://penstock.example/"
        assert new.get_time() is not None
        assert new.get_data()["event"] == old.data["event"] == name
    assert from_http(request.headers, request.body).data["cause"] == "nobody’s parcel"


async def test_while_a_secret_is_replaced_receivers_may_know_either(e: Engine, hook: Receiver):
    hooks = e.penstock.webhooks
    added = await hooks.add(hook.url)
    renewed = await hooks.rotate_secret(added.subscription.id, keep=3600)
    own = await hooks.rotate_secret(added.subscription.id, secret=new_secret(lambda bits: 5), keep=3600)
    secrets = [added.secret, renewed.secret, own.secret]
    assert len(set(secrets)) == 3

    async def accepted() -> list[bool]:
        await hooks.test(added.subscription.id)
        return [_is_verified(secret, hook) for secret in secrets]

    assert await accepted() == [True, True, True]
    assert hook.requests[-1].headers["webhook-signature"].count("v1,") == 3
    e.clock.advance(200)  # receivers allow for clocks that are 5 minutes off
    await hooks.rotate_secret(added.subscription.id, secret=secrets[2], keep=0)
    assert await accepted() == [False, False, True]


def _is_verified(secret: str | None, hook: Receiver) -> bool:
    assert secret is not None
    try:
        Webhook(secret).verify(hook.requests[-1].body, hook.requests[-1].headers)
    except WebhookVerificationError:
        return False
    return True
