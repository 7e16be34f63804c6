"""Access tokens: fetched once, renewed early, dropped when refused, never shown."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from penstock.clock import ManualClock
from penstock.targets.dataverse.web_api import Tokens
from penstock.targets.model import ErrorKind, TargetError

SCOPE = "https://org.crm.dynamics.com/.default"


@dataclass(frozen=True)
class Given:
    token: str
    expires_on: int


class Counting:
    """A credential whose tokens are numbered."""

    def __init__(self, clock: ManualClock, life_s: int = 3600) -> None:
        self.clock, self.life_s, self.scopes = clock, life_s, []

    def get_token(self, *scopes: str, **_: object) -> Given:
        self.scopes += scopes
        return Given(f"token-{len(self.scopes)}", round(self.clock.now_us() / 1e6) + self.life_s)


class Awaited(Counting):
    async def get_token(self, *scopes: str, **_: object) -> Given:
        await asyncio.sleep(0)
        return super().get_token(*scopes)


class Failing:
    def get_token(self, *scopes: str, **_: object) -> Given:
        raise RuntimeError("AADSTS7000215: the secret hunter2 is wrong")


@pytest.mark.parametrize("kind", [Counting, Awaited])
async def test_one_fetch_serves_all_who_ask(clock: ManualClock, kind: type[Counting]):
    credential = kind(clock)
    tokens = Tokens({"app": credential}, SCOPE, clock)
    assert set(await asyncio.gather(*(tokens.get("app") for _ in range(20)))) == {"token-1"}
    assert credential.scopes == [SCOPE]


async def test_a_token_is_renewed_some_minutes_before_it_expires(clock: ManualClock):
    tokens = Tokens({"app": Counting(clock)}, SCOPE, clock)
    await tokens.get("app")
    clock.advance(3299)
    assert await tokens.get("app") == "token-1"
    clock.advance(2)
    assert await tokens.get("app") == "token-2"


async def test_a_short_lived_token_is_still_used_more_than_once(clock: ManualClock):
    tokens = Tokens({"app": Counting(clock, life_s=60)}, SCOPE, clock)
    await tokens.get("app")
    clock.advance(50)
    assert await tokens.get("app") == "token-1"
    clock.advance(5)
    assert await tokens.get("app") == "token-2"


@pytest.mark.covers("BX-059")
async def test_many_refusals_of_one_token_renew_it_once(clock: ManualClock):
    credential = Counting(clock)
    tokens = Tokens({"app": credential}, SCOPE, clock)
    old = await tokens.get("app")
    tokens.refuse("app", old)
    assert await tokens.get("app") == "token-2"
    tokens.refuse("app", old)  # an answer that was under way
    assert await tokens.get("app") == "token-2"
    assert len(credential.scopes) == 2


async def test_sources_have_tokens_of_their_own(clock: ManualClock):
    one, two = Counting(clock), Counting(clock)
    tokens = Tokens({"one": one, "two": two}, SCOPE, clock)
    tokens.refuse("one", await tokens.get("one"))
    await tokens.get("two")
    assert (len(one.scopes), len(two.scopes)) == (1, 1)


async def test_a_credential_that_fails_is_token_trouble_that_tells_no_secret(clock: ManualClock):
    with pytest.raises(TargetError) as caught:
        await Tokens({"app": Failing()}, SCOPE, clock).get("app")
    error = caught.value
    assert (error.kind, error.code, error.maybe_applied) == (ErrorKind.TOKEN, "AADSTS7000215", False)
    assert "'app'" in error.message
    assert "hunter2" not in f"{error} {error.__cause__} {error.__context__}"


async def test_an_issuer_that_does_not_answer_is_no_wrong_credential(clock: ManualClock):
    class Unreached:
        def get_token(self, *scopes: str, **_: object) -> Given:
            raise ConnectionRefusedError

    with pytest.raises(TargetError) as caught:
        await Tokens({"app": Unreached()}, SCOPE, clock).get("app")
    assert caught.value.kind is ErrorKind.CONNECTION
