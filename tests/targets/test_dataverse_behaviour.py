"""The platform's optional behaviour, tokens, throttles and refusals, over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from dataverse import (
    Problem,
    deadlock,
    plugin_aborted,
    race,
    sql_timeout,
    throttled,
    too_large,
)
from dataverse_remote import Remote, opened

from penstock.targets.dataverse import CustomLogicBypass
from penstock.targets.model import BulkOptions, ErrorKind, Limit, Mode, TargetError

PRIVILEGE = "prvBypassCustomBusinessLogic"


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    async with opened(("app-1", "app-2")) as found:
        yield found


@pytest.mark.covers("BX-012", "BX-057", "BX-061", "BX-062")
@pytest.mark.parametrize(
    "problem, kind",
    [
        (throttled("requests"), ErrorKind.THROTTLED),
        (deadlock(), ErrorKind.DEADLOCK),
        (race(3732), ErrorKind.RACE),
        (race(2766), ErrorKind.RACE),
        (race(2812), ErrorKind.RACE),
        (sql_timeout(), ErrorKind.TOO_BIG),
        (too_large(), ErrorKind.TOO_BIG),
        (plugin_aborted("no"), ErrorKind.BUSINESS),
        (Problem(403, "0x80040220", "no"), ErrorKind.PERMISSION),
        (Problem(500, "0x80049999", "what?"), ErrorKind.OTHER),
    ],
)
async def test_every_refusal_has_its_class_and_leaves_no_doubt(remote: Remote, problem: Problem, kind: ErrorKind):
    remote.server.faults.add(problem, action="CreateMultiple", times=1)
    with pytest.raises(TargetError) as caught:
        await remote.create({"name": "a"})
    assert (caught.value.kind, caught.value.maybe_applied) == (kind, False)
    await remote.create({"name": "a"})
    assert len(remote.server.rows("account")) == 1


@pytest.mark.covers("BX-057")
@pytest.mark.parametrize("limit", list(Limit))
async def test_a_throttle_says_which_limit_and_how_long(remote: Remote, limit: Limit):
    remote.server.faults.add(throttled(limit.value, retry_after_s=12), times=1, action="CreateMultiple")
    with pytest.raises(TargetError) as caught:
        await remote.create({"name": "a"})
    assert (caught.value.limit, caught.value.retry_after_s) == (limit, 12)


@pytest.mark.covers("BX-059")
async def test_after_an_expired_token_one_new_one_serves_all_calls(remote: Remote):
    await remote.create({"name": "first"})
    remote.server.expire_tokens("app-1")
    tries = [remote.send(Mode.CREATE, [{"name": f"n{n}"}]) for n in range(5)]
    refused = await asyncio.gather(*tries, return_exceptions=True)
    assert {error.kind for error in refused if isinstance(error, TargetError)} == {ErrorKind.TOKEN}
    await remote.target.refresh("app-1")
    await asyncio.gather(*(remote.create({"name": f"m{n}"}) for n in range(5)))
    assert {call.headers["authorization"] for call in remote.server.ledger.calls("CreateMultiple")[-5:]} == {
        remote.server.ledger.arrivals[-1].headers["authorization"]
    }


async def test_each_source_calls_in_its_own_name(remote: Remote):
    batch = remote.batch(Mode.CREATE, [{"name": "a"}])
    await remote.target.send(batch, "app-2")
    assert {call.user for call in remote.server.ledger.calls("CreateMultiple")} == {"app-2"}
    assert remote.target.sources == ("app-1", "app-2")


@pytest.mark.covers("BX-037")
async def test_a_missing_bypass_privilege_is_named_and_is_no_reason_to_try_again(remote: Remote):
    remote.server.revoke("app-1", PRIVILEGE)
    with pytest.raises(TargetError, match=PRIVILEGE) as caught:
        await remote.create({"name": "a"}, bypass_custom_logic=CustomLogicBypass.SYNCHRONOUS)
    assert caught.value.kind is ErrorKind.PERMISSION
    assert caught.value.message.count(PRIVILEGE) == 1
    await remote.create({"name": "a"})


@pytest.mark.covers("BX-037")
async def test_a_refusal_that_does_not_name_the_privilege_is_explained(remote: Remote):
    remote.server.faults.add(Problem(403, "0x80040220", "principal lacks a privilege"), action="CreateMultiple")
    with pytest.raises(
        TargetError, match=rf"lacks a privilege \(bypass_custom_logic needs the privilege {PRIVILEGE}\)"
    ):
        await remote.create({"name": "a"}, bypass_custom_logic=CustomLogicBypass.ALL)
    with pytest.raises(TargetError, match=r"lacks a privilege$"):
        await remote.create({"name": "a"})


@pytest.mark.covers("BX-095", "BX-096", "BX-098")
async def test_bypass_flows_and_tag_reach_the_platform(remote: Remote):
    await remote.create(
        {"name": "a"}, bypass_custom_logic=CustomLogicBypass.ALL, bypass_power_automate_flows=True, tag="a&b / ü"
    )
    (call,) = remote.server.ledger.calls("CreateMultiple")
    assert call.headers["mscrm.bypassbusinesslogicexecution"] == "CustomSync,CustomAsync"
    assert call.headers["mscrm.suppresscallbackregistrationexpanderjob"] == "true"
    assert call.tag == "a&b / ü"


@pytest.mark.covers("BX-097")
async def test_duplicate_detection_is_on_unless_it_is_suppressed(remote: Remote):
    await remote.create({"name": "twin"})
    with pytest.raises(TargetError) as caught:
        await remote.create({"name": "twin"})
    assert (caught.value.kind, caught.value.code) == (ErrorKind.DATA, "0x80040333")
    await remote.create({"name": "twin"}, suppress_duplicate_detection=True)
    assert [row["name"] for row in remote.server.rows("account")] == ["twin", "twin"]


@pytest.mark.covers("BX-097")
async def test_general_options_alone_switch_duplicate_detection_on_too(remote: Remote):
    await remote.create({"name": "twin"})
    with pytest.raises(TargetError):
        await remote.create({"name": "twin"}, options=BulkOptions())


async def test_the_affinity_cookie_is_dropped_so_that_calls_spread_over_the_web_servers():
    async with opened(web_servers=3) as remote:
        for n in range(6):
            await remote.create({"name": f"n{n}"})
        calls = remote.server.ledger.calls("CreateMultiple")
    assert len({call.web_server for call in calls}) == 3
    assert all("cookie" not in call.headers for call in calls)


async def test_a_user_who_may_not_ask_for_the_message_list_is_taken_at_their_word(remote: Remote):
    remote.server.faults.add(Problem(403, "0x80040220", "no"), action="sdkmessagefilters")
    capabilities = await remote.target.describe("unlisted", Mode.CREATE, BulkOptions(), "app-1")
    assert capabilities.id_field == "unlistedid"
