"""Too many wrong credentials from one address: who sends good ones from there is still heard."""

from __future__ import annotations

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from penstock.api import Credentials, create_app
from penstock.api.credentials import FAILURES_AT_ONCE
from penstock.settings import Settings
from penstock.testing import engine

pytestmark = pytest.mark.databases("sqlite")

KEY = generate_private_key(SECP256R1())
PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
SETTINGS = Settings(
    oidc_issuer="https://id.example", oidc_audience="penstock", oidc_keys=PEM, oidc_algorithms="ES256", rate_per_s=0
)


@pytest.fixture
async def e(database_url, tmp_path):
    async with engine([], url=database_url, tmp_path=tmp_path, settings=SETTINGS) as made:
        yield made


@pytest.fixture
async def ask(e):
    transport = httpx.ASGITransport(create_app(e.penstock, access=Credentials(e.penstock)))
    async with httpx.AsyncClient(transport=transport, base_url="http://p.test") as client:

        async def ask(credential):
            headers = {"authorization": f"Bearer {credential}"}
            return (await client.get("/api/session", headers=headers)).status_code

        yield ask


def token(e, name, *, lasts_s=600):
    claims = {"iss": "https://id.example", "aud": "penstock", "sub": name, "roles": ["read"]}
    return jwt.encode({**claims, "exp": e.clock.now_us() // 1_000_000 + lasts_s}, KEY, algorithm="ES256")


async def test_tokens_that_are_over_lock_nobody_out(e, ask):
    over = token(e, "ana", lasts_s=-600)
    assert {await ask(over) for _ in range(FAILURES_AT_ONCE * 2)} == {401}
    assert await ask(token(e, "ben")) == 200


async def test_a_token_that_was_accepted_before_is_heard_where_others_are_wrong(e, ask):
    known, new = token(e, "ana"), token(e, "ben")
    assert await ask(known) == 200
    statuses = [await ask("x.y.z") for _ in range(FAILURES_AT_ONCE + 1)]
    assert statuses[-1] == 429
    assert (await ask(known), await ask(new)) == (200, 429)
    e.clock.advance(700)
    assert await ask(known) == 401
