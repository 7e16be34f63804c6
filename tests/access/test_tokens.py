"""Tokens of an issuer: what is accepted, and what their claims come to."""

from __future__ import annotations

import base64
import json

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm

from penstock.access.issuer_keys import AGAIN_S, KEPT_S, FetchedKeys, GivenKeys
from penstock.access.model import Principal
from penstock.access.tokens import Issuer, Tokens, issuer_of
from penstock.clock import ManualClock
from penstock.errors import SettingsInvalid, Unauthenticated, Unavailable
from penstock.settings import Settings, load_settings

KEY, OTHER_KEY = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
ISSUER = Issuer("https://id.example", "penstock", ("ES256",), 30, "sub", "roles", {}, None, None)
NOW_S = ManualClock().now_us() // 1_000_000
CLAIMS = {"iss": "https://id.example", "aud": "penstock", "sub": "ana", "exp": NOW_S + 60, "roles": ["operate"]}


def token(key=KEY, algorithm="ES256", headers=None, **claims):
    given = {**CLAIMS, **claims}
    return jwt.encode({k: v for k, v in given.items() if v is not None}, key, algorithm=algorithm, headers=headers)


def tokens(issuer=ISSUER, clock=None):
    return Tokens(issuer, GivenKeys(PEM), clock=clock or ManualClock())


def unsigned(header, signature=b""):
    parts = (json.dumps(header).encode(), json.dumps(CLAIMS).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


async def test_a_good_token_tells_who_asks():
    assert await tokens().principal(token()) == Principal("ana", frozenset({"operate"}))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda: token(iss="https://evil.example"), id="another issuer"),
        pytest.param(lambda: token(aud="other"), id="another audience"),
        pytest.param(lambda: token(aud=None), id="no audience"),
        pytest.param(lambda: token(exp=None), id="no end"),
        pytest.param(lambda: token(exp=NOW_S - 31), id="expired"),
        pytest.param(lambda: token(exp="soon"), id="an end that is no number"),
        pytest.param(lambda: token(exp=True), id="an end that is a truth"),
        pytest.param(lambda: token(nbf=NOW_S + 31), id="not valid yet"),
        pytest.param(lambda: token(iat=NOW_S + 31), id="made in the future"),
        pytest.param(lambda: token(sub=None), id="nobody"),
        pytest.param(lambda: token(sub="a\nb"), id="a name that breaks lines"),
        pytest.param(lambda: token(sub="x" * 201), id="a name that is too long"),
        pytest.param(lambda: token(OTHER_KEY), id="another key"),
        pytest.param(lambda: token(PEM.replace("-", ""), "HS256"), id="signed with a secret"),
        pytest.param(lambda: token(headers={"crit": ["b64"]}), id="a critical header"),
        pytest.param(lambda: unsigned({"alg": "none"}), id="not signed"),
        pytest.param(lambda: unsigned({"alg": "None"}), id="not signed, in capitals"),
        pytest.param(lambda: unsigned({"alg": "ES256"}), id="no signature"),
        pytest.param(lambda: unsigned({"alg": ["ES256"]}), id="an algorithm that is a list"),
        pytest.param(lambda: token()[:-4] + "AAAA", id="a changed signature"),
        pytest.param(lambda: "a.b.c", id="no JSON"),
        pytest.param(lambda: "....", id="dots"),
        pytest.param(lambda: "x" * 100_000, id="very long"),
        pytest.param(lambda: unsigned({"alg": "ES256", "kid": 7}), id="a key id that is a number"),
    ],
)
async def test_every_other_token_is_refused(wrong):
    with pytest.raises(Unauthenticated):
        await tokens().principal(wrong())


async def test_the_issuers_clock_may_be_off_by_the_leeway():
    await tokens().principal(token(exp=NOW_S - 29, nbf=NOW_S + 29, iat=NOW_S + 29))


async def test_claims_become_roles_tenant_and_rights_as_the_settings_say():
    issuer = Issuer(
        "https://id.example", "penstock", ("ES256",), 0, "email", "realm.groups", {"ops": "admin"}, "org", "may"
    )
    given = token(email="a@b.example", realm={"groups": ["ops", "admin"]}, org="acme", may="Prices notes")
    assert await tokens(issuer).principal(given) == Principal(
        "a@b.example", frozenset({"admin"}), frozenset({"prices", "notes"}), "acme"
    )


async def test_with_a_tenant_claim_a_token_without_it_is_refused():
    issuer = Issuer("https://id.example", "penstock", ("ES256",), 0, "sub", "roles", {}, "org", None)
    for org in (None, "", 7, "x" * 65, ["acme"]):
        with pytest.raises(Unauthenticated, match="'org'"):
            await tokens(issuer).principal(token(org=org))


async def test_values_that_are_no_roles_give_none():
    assert (await tokens().principal(token(roles=["root", 7, {}]))).roles == frozenset()
    assert (await tokens().principal(token(roles=None))).roles == frozenset()


def jwks(**keys):
    listed = [{**json.loads(ECAlgorithm.to_jwk(key.public_key())), "kid": kid} for kid, key in keys.items()]
    return {"keys": [*listed, {"kty": "oct", "kid": "shared", "k": "AAAA"}, {"kty": "new"}]}


class IssuersServer:
    def __init__(self, **keys):
        self.keys, self.calls, self.status = keys, 0, 200

    async def answer(self, request):
        self.calls += 1
        return httpx.Response(self.status, json=jwks(**self.keys), headers={"location": "https://evil.example"})


def fetched(server, clock):
    return FetchedKeys("https://id.example/keys", clock=clock, transport=httpx.MockTransport(server.answer))


async def test_fetched_keys_are_kept_and_fetched_again_for_a_new_key():
    server, clock = IssuersServer(one=KEY), ManualClock()
    keys = fetched(server, clock)
    assert await keys.key("one") is not None
    assert await keys.key("one") is not None
    assert (server.calls, await keys.key("shared")) == (1, None)
    server.keys = {"two": OTHER_KEY}
    assert await keys.key("two") is None  # made-up names do not make us ask the issuer again and again
    clock.advance(AGAIN_S)
    assert await keys.key("two") is not None
    assert (server.calls, await keys.key("one")) == (2, None)


@pytest.mark.parametrize("status", [500, 302])
async def test_keys_that_cannot_be_fetched_make_tokens_wait_not_fail(status):
    server, clock = IssuersServer(one=KEY), ManualClock()
    server.status = status
    keys = fetched(server, clock)
    with pytest.raises(Unavailable):
        await keys.key("one")
    server.status = 200
    clock.advance(AGAIN_S)
    assert await keys.key("one") is not None
    server.status = status
    clock.advance(KEPT_S)
    assert await keys.key("one") is not None  # those that we have serve until the issuer answers again


@pytest.mark.parametrize(
    "given, said",
    [
        ({"oidc_issuer": "https://id.example"}, "not set: oidc_audience, oidc_jwks_url or oidc_keys"),
        ({"oidc_keys": PEM}, "not set: oidc_issuer, oidc_audience"),
    ],
)
def test_half_of_the_settings_of_an_issuer_is_refused(given, said):
    with pytest.raises(SettingsInvalid, match=said):
        issuer_of(Settings(**given))


@pytest.mark.parametrize(
    "name, value",
    [
        ("oidc_algorithms", "none"),
        ("oidc_algorithms", "HS256"),
        ("oidc_jwks_url", "http://id.example/keys"),
        ("oidc_roles", {"ops": "root"}),
    ],
)
def test_settings_that_would_let_others_in_are_refused(name, value, tmp_path):
    with pytest.raises(SettingsInvalid, match=name):
        load_settings({}, tmp_path / "none.toml", **{name: value})


def test_text_that_holds_no_key_is_refused():
    for text in ("nonsense", '{"keys": []}', "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"):
        with pytest.raises(SettingsInvalid, match="oidc_keys"):
            GivenKeys(text)
