"""The dashboard without a browser: every page, every action as a plain form, and who may do what."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from payments import CSV, HOSTILE, Payment, PaymentRun, Payments

from penstock import Context, operation
from penstock.access.model import Principal
from penstock.api import Trusted, create_app
from penstock.api.credentials import Credentials
from penstock.dashboard.table import ROUTES
from penstock.testing import Engine, engine

pytestmark = pytest.mark.databases("sqlite")

ORDER = """{"definition": {"name": "order"}, "states": [{"name": "New", "is_initial": true}, {"name": "Done",
"is_final": true}], "events": ["finish"], "transitions": [{"from": "New", "event": "finish", "to": "Done"}]}"""


@pytest.fixture
async def works(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine([Payments], url=database_url, tmp_path=tmp_path) as opened:
        yield opened


def client_of(works: Engine, *roles: Any, access: Any = None, root_path: str = "") -> httpx.AsyncClient:
    access = access or Trusted(Principal("ana", frozenset(roles or ("admin",))))
    app = create_app(works.penstock, access=access)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, root_path=root_path),
        base_url="http://penstock.test",
        headers={"origin": "http://penstock.test"},
    )


@pytest.fixture
async def pages(works: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(works) as client:
        yield client


async def started(works: Engine) -> str:
    made = await works.create(Payments, CSV, file_name="march.csv", metadata={"account": "DE-1"})
    await works.work_until_idle()
    return made.id


def text_of(page: httpx.Response) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text))


# --- every page


async def test_every_page_of_the_menu_is_there_before_anything_was_done(pages: httpx.AsyncClient):
    front = await pages.get("/dashboard")
    menu = re.findall(r'<li><a href="([^"]+)"', front.text)
    assert len(menu) == 9
    for path in menu:
        page = await pages.get(path)
        assert page.status_code == 200, path
        assert 'aria-current="page"' in page.text


async def test_the_list_is_searched_filtered_and_paged(works: Engine, pages: httpx.AsyncClient):
    await started(works)
    for number in range(26):
        await works.create(Payments, CSV, file_name=f"more-{number}.csv", metadata={"account": "x"}, created_by="ben")
    first = await pages.get("/dashboard")
    assert first.text.count('<td class="main">') == 25
    older = re.search(r'href="([^"]+)" rel="next"', first.text)
    assert older is not None
    second = await pages.get(older[1].replace("&amp;", "&"))
    assert "march.csv" in second.text
    assert "First page" in second.text
    assert "march.csv" not in (await pages.get("/dashboard?status=active&by=ben&days=1")).text
    assert "No operations fit these filters" in text_of(await pages.get("/dashboard?name=nothing"))
    assert (await pages.get("/dashboard?status=Lost")).status_code == 422


async def test_an_operation_shows_its_progress_its_flow_its_errors_and_its_rows(
    works: Engine, pages: httpx.AsyncClient
):
    page = await pages.get(f"/dashboard/operations/{await started(works)}")
    text = text_of(page)
    for said in ("march.csv", "50 % · 2 of 4 rows", "1 failed", "2 waiting", "the account is blocked", "DE-1"):
        assert said in text
    assert 'aria-label="4 rows. validation: 3 through, 1 failed; check_account: 2 through, 1 failed' in page.text
    only = text_of(await pages.get(f"/dashboard/operations/{await started(works)}?state=Invalid"))
    assert "greater than 0" in only
    assert "waits for pay-A1" not in only


async def test_an_operation_whose_file_cannot_be_read_offers_no_retry_and_shows_no_success(
    works: Engine, pages: httpx.AsyncClient
):
    made = await works.create(Payments, b'invoice,amount\n"A1,1\n', file_name="torn.csv", metadata={"account": "x"})
    await works.work_until_idle()
    page = await pages.get(f"/dashboard/operations/{made.id}")
    assert "opens a quote that is not closed" in text_of(page)
    assert '<button class="primary" data-action="retry" hidden>' in page.text
    assert "Retry selected rows" not in page.text
    assert "fill-ok" not in page.text
    for said in ("the file was not read to its end", "No rows were read."):
        assert said in text_of(page)


async def test_a_retry_is_offered_where_a_row_can_run_again(works: Engine, pages: httpx.AsyncClient):
    for file, is_offered in ((b"A1,1,blocked", True), (b"A1,-1,", False)):
        content = b"invoice,amount,note\n" + file
        made = await works.create(Payments, content, file_name="m.csv", metadata={"account": "x"})
        await works.work_until_idle()
        page = await pages.get(f"/dashboard/operations/{made.id}")
        assert ("Retry selected rows" in page.text) is is_offered


async def test_a_page_that_is_not_there_is_a_page(pages: httpx.AsyncClient):
    for path in ("/dashboard/nowhere", "/dashboard/operations/01900000-0000-7000-8000-000000000000"):
        page = await pages.get(path)
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert (await pages.get("/api/nowhere")).headers["content-type"] == "application/problem+json"


async def test_pages_work_under_a_prefix(works: Engine):
    async with client_of(works, root_path="/bulk") as client:
        page = await client.get("/bulk/dashboard")
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
        assert len(links) > 10
        assert all(link.startswith("/bulk/") for link in links)
    host = FastAPI()
    host.mount("/inner", create_app(works.penstock, access=Trusted()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://penstock.test") as client:
        page = await client.get("/inner/dashboard/waits")
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
        assert all(link.startswith("/inner/") for link in links)
        assert (await client.get(links[0])).status_code == 200
        lost = await client.get("/inner/dashboard/nowhere")
        assert (lost.status_code, lost.headers["content-type"]) == (404, "text/html; charset=utf-8")


async def test_nothing_on_a_page_needs_inline_script_or_style(works: Engine, pages: httpx.AsyncClient):
    id = await started(works)
    for path in ("/dashboard", f"/dashboard/operations/{id}", f"/dashboard/operations/{id}/rows/2", "/dashboard/waits"):
        page = await pages.get(path)
        assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=|javascript:", page.text), path
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"


async def test_assets_are_kept_as_long_as_their_address_says_what_they_are(pages: httpx.AsyncClient):
    front = await pages.get("/dashboard")
    (sheet,) = re.findall(r'href="([^"]+penstock\.css[^"]*)"', front.text)
    kept = await pages.get(sheet)
    assert (kept.status_code, kept.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in kept.headers["cache-control"]
    assert "no-cache" in (await pages.get(sheet.partition("?")[0])).headers["cache-control"]
    assert (await pages.get("/dashboard/assets/..%2Fpages.py")).status_code == 404


# --- upload


async def test_a_file_is_checked_then_started_without_being_sent_again(works: Engine, pages: httpx.AsyncClient):
    form = await pages.get("/dashboard/upload/payments")
    for field in ("meta.account", "meta.priority", "meta.limit", "meta.advice", "meta.pin", "meta.extra"):
        assert f'name="{field}"' in form.text
    assert 'type="password" name="meta.pin"' in form.text
    given = {"meta.account": "DE-1", "meta.priority": "urgent", "meta.limit": "35", "meta.extra": '{"a": "b"}'}
    file = {"file": ("march.csv", CSV)}
    checked = await pages.post("/dashboard/upload/payments", data={**given, "do": "check"}, files=file)
    text = text_of(checked)
    assert "4 rows checked: 2 would run, 2 are invalid" in text
    assert "40 is over the limit" in text
    assert re.search(r'<td class="fault">-5<span class="why">', checked.text)
    assert not (await works.operations.list()).items
    (draft,) = re.findall(r'name="draft" value="(\w+)"', checked.text)
    start = {**given, "do": "start", "draft": draft}
    done = await pages.post("/dashboard/upload/payments", data=start)
    assert done.status_code == 303
    (made,) = (await works.operations.list()).items
    assert done.headers["location"] == f"/dashboard/operations/{made.id}"
    assert (made.file_name, made.created_by, made.metadata["priority"], made.metadata["extra"]) == (
        "march.csv", "ana", "urgent", {"a": "b"},
    )  # fmt: skip
    again = await pages.post("/dashboard/upload/payments", data=start)
    assert (again.status_code, "choose it again" in again.text) == (422, True)


async def test_a_secret_that_was_given_for_the_check_is_there_at_the_start(works: Engine, pages: httpx.AsyncClient):
    file = {"file": ("march.csv", CSV)}
    given = {"meta.account": "DE-1", "meta.pin": "pin-4711"}
    checked = await pages.post("/dashboard/upload/payments", data={**given, "do": "check"}, files=file)
    corrected = {"meta.account": "DE-1", "meta.pin": "", "draft": drafted(checked), "do": "check"}
    other_file = await pages.post("/dashboard/upload/payments", data=corrected, files=file)
    for page in (checked, other_file):
        assert "kept from before" in page.text
        assert "pin-4711" not in page.text
    start = {"meta.account": "DE-1", "meta.pin": "", "draft": drafted(other_file), "do": "start"}
    assert (await pages.post("/dashboard/upload/payments", data=start)).status_code == 303
    (made,) = (await works.operations.list()).items
    assert made.metadata["pin"] == "**********"


async def test_a_secret_that_is_given_again_takes_the_place_of_the_one_before(works: Engine):
    found = list[str]()

    @operation("dial")
    async def dial(row: Payment, ctx: Context[PaymentRun]) -> None:
        assert ctx.meta.pin is not None
        found.append(ctx.meta.pin.get_secret_value())

    async with engine([dial]) as other, client_of(other) as pages:
        draft = ""
        for pin, do in (("first", "check"), ("second", "check"), ("", "start")):
            form = {"meta.account": "x", "meta.pin": pin, "draft": draft, "do": do}
            files = None if draft else {"file": ("march.csv", b"invoice,amount\nA1,1\n")}
            page = await pages.post("/dashboard/upload/dial", data=form, files=files)
            draft = draft or drafted(page)
        await other.work_until_idle()
    assert found == ["second"]


def drafted(page: httpx.Response) -> str:
    (draft,) = re.findall(r'name="draft" value="(\w+)"', page.text)
    return str(draft)


async def test_what_is_wrong_with_a_form_stands_beside_its_field(works: Engine, pages: httpx.AsyncClient):
    file = {"file": ("march.csv", CSV)}
    wrong = {"meta.account": "", "meta.limit": "many", "meta.extra": "{}", "do": "check"}
    page = await pages.post("/dashboard/upload/payments", data=wrong, files=file)
    assert page.status_code == 422
    assert 'id="meta.account-why">Field required' in page.text
    assert 'id="meta.limit-why">Input should be a valid integer' in page.text
    assert 'value="many"' in page.text
    no_json = await pages.post("/dashboard/upload/payments", data={"meta.extra": "{", "do": "start"}, files=file)
    assert 'id="meta.extra-why">is no JSON' in no_json.text
    nothing = await pages.post("/dashboard/upload/payments", data={"meta.account": "x", "do": "start"})
    assert 'id="file-why">choose a file' in nothing.text
    empty = {"file": ("march.xml", b"<a/>")}
    other = await pages.post("/dashboard/upload/payments", data={"meta.account": "x", "do": "start"}, files=empty)
    assert other.status_code == 422
    assert not (await works.operations.list()).items


async def test_a_draft_is_only_for_who_sent_it(works: Engine):
    app_of = client_of(works, access=Trusted(Principal("ana", frozenset({"operate"}))))
    async with app_of as ana:
        page = await ana.post(
            "/dashboard/upload/payments",
            data={"meta.account": "x", "do": "check"},
            files={"file": ("march.csv", CSV)},
        )
        (draft,) = re.findall(r'name="draft" value="(\w+)"', page.text)
        ana._transport.app.state.access = Trusted(Principal("eve", frozenset({"operate"})))  # type: ignore[attr-defined]
        stolen = await ana.post("/dashboard/upload/payments", data={"meta.account": "x", "do": "start", "draft": draft})
        assert stolen.status_code == 422


# --- actions


async def test_an_operation_is_paused_resumed_cancelled_and_retried(works: Engine, pages: httpx.AsyncClient):
    id = await started(works)
    for action, status in (("pause", "Paused"), ("resume", "Running"), ("cancel", "Cancelled"), ("retry", "Retrying")):
        done = await pages.post(f"/dashboard/operations/{id}/{action}", data={"cause": "because"})
        assert done.status_code == 303, action
        assert (await works.operations.get(id)).status == status
    events = await works.operations.events(id)
    assert {event.actor for event in events if event.event == "paused"} == {"ana"}
    assert {event.cause for event in events if event.event == "cancel_requested"} == {"because"}
    page = await pages.get(f"/dashboard/operations/{id}")
    assert "will run again" in page.text
    assert (await pages.post(f"/dashboard/operations/{id}/resume")).status_code in (303, 409)
    assert (await pages.post(f"/dashboard/operations/{id}/explode")).status_code == 422


async def test_waits_are_approved_and_declined_one_or_many(works: Engine, pages: httpx.AsyncClient):
    id = await started(works)
    page = await pages.get("/dashboard/waits")
    keys = re.findall(r'name="wait" value="([^"]+)"', page.text)
    assert keys == [f"{id}:pay-A1:1", f"{id}:pay-A4:4"]
    assert "Give a reason" in await answered(pages, keys[:1], do="decline")
    assert "Choose at least one" in await answered(pages, [], do="approve")
    assert "1 row declined" in await answered(pages, keys[1:], do="decline", reason="the goods never came")
    assert "1 row approved" in await answered(pages, keys[:1], do="approve", payload='{"by": "the boss"}')
    await works.work_until_idle()
    paid, refused = await works.operations.row(id, 1), await works.operations.row(id, 4)
    assert (paid.state, paid.steps[2].output) == ("Completed", {"by": "the boss"})
    assert (refused.state, refused.steps[2].message) == ("Failed", "the goods never came")
    assert "1 could not be" in await answered(pages, keys[:1], do="approve")
    wrong = await pages.post("/dashboard/waits", data={"wait": keys, "do": "approve", "payload": "{"})
    assert wrong.status_code == 422


async def answered(pages: httpx.AsyncClient, keys: list[str], **form: str) -> str:
    done = await pages.post("/dashboard/waits", data={"wait": keys, **form})
    assert done.status_code == 303
    return text_of(await pages.get(done.headers["location"]))


async def test_a_row_tells_every_attempt_and_is_corrected(works: Engine, pages: httpx.AsyncClient):
    id = await started(works)
    await works.operations.cancel(id)
    await works.work_until_idle()
    at = f"/dashboard/operations/{id}/rows/2"
    assert "greater than 0" in text_of(await pages.get(at))
    fields = {"field.invoice": "A2", "field.amount": "0", "field.note": "", "generation": "0"}
    refused = await pages.post(f"{at}/fix", data=fields)
    assert (refused.status_code, 'value="0" aria-invalid' in refused.text) == (422, True)
    assert (await pages.post(f"{at}/fix", data={"field.amount": "-5", "generation": "0"})).status_code == 303
    done = await pages.post(f"{at}/fix", data={**fields, "field.amount": "5"})
    assert done.status_code == 303
    await works.work_until_idle()
    page = text_of(await pages.get(at))
    for said in ("First pass", "Retry 1", "amount: -5 → 5", "by ana", "Waits for pay-A2"):
        assert said in page
    stale = await pages.post(f"{at}/fix", data={**fields, "field.amount": "7"})
    assert stale.status_code == 409
    blocked = await pages.post(f"/dashboard/operations/{id}/rows/3/retry", data={})
    assert blocked.status_code in (303, 409)


async def test_an_instance_is_shown_where_its_definition_is_in_two_environments(
    works: Engine, pages: httpx.AsyncClient
):
    lifecycles = works.penstock.lifecycles
    await lifecycles.import_text(ORDER)
    await lifecycles.import_text(ORDER.replace("{", '{"environment": "Production", ', 1))
    instance = await lifecycles.start("order", "PO-1", environment="Production")
    shown = await pages.get(f"/dashboard/instances/{instance.guid}")
    assert shown.status_code == 200
    assert "Production" in shown.text


async def test_lifecycles_show_their_states_and_take_events(works: Engine, pages: httpx.AsyncClient):
    lifecycles = works.penstock.lifecycles
    made = await lifecycles.import_text(ORDER)
    await works.penstock.deliveries.register("ledger", attempts_max=1)
    instance = await lifecycles.start("order", "PO-1", data={"total": 5})
    assert "order" in (await pages.get("/dashboard/lifecycles")).text
    shown = await pages.get(f"/dashboard/lifecycles/{made.definition_id}")
    assert "PO-1" in shown.text
    assert "New goes to Done by finish" in shown.text
    at = f"/dashboard/instances/{instance.guid}"
    assert "finish → Done" in text_of(await pages.get(at))
    assert (await pages.post(f"{at}/suspend", data={})).status_code == 303
    assert "it is active, suspended" in text_of(await pages.get(at)).lower()
    assert (await pages.post(f"{at}/resume", data={})).status_code == 303
    assert (await pages.post(f"{at}/trigger", data={"event": "finish", "cause": "all there"})).status_code == 303
    await pages.post(f"{at}/trigger", data={"event": "finish"})
    said = text_of(await pages.get(at))
    assert "all there" in said
    assert "terminal" in said
    (claimed, *_) = await works.penstock.deliveries.claim("ledger")
    await works.penstock.deliveries.fail(claimed.message_id, "HTTP 503", claim=claimed.claim)
    assert "HTTP 503" in (await pages.get("/dashboard/deliveries?state=Failed")).text
    assert (await pages.post("/dashboard/deliveries/resend", data={"do": "failed"})).status_code == 303
    assert not (await works.penstock.deliveries.list(state="Failed")).items


# --- who may


async def test_who_may_only_read_sees_no_buttons_and_changes_nothing(works: Engine):
    id = await started(works)
    async with client_of(works, "read") as reader:
        page = await reader.get(f"/dashboard/operations/{id}")
        assert 'method="post" action="' not in page.text.replace('action="' + f"/dashboard/operations/{id}/retry", "")
        assert (await reader.post(f"/dashboard/operations/{id}/pause")).status_code == 403
        assert (await reader.get("/dashboard/upload")).status_code == 403
        assert (await reader.get("/dashboard/system")).status_code == 403
    assert (await works.operations.get(id)).status == "Running"


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES if route.method == "POST"}))
async def test_no_page_of_another_site_can_change_anything(works: Engine, path: str):
    async with client_of(works) as client:
        address = re.sub(r"{\w+}", "1", path)
        for foreign in ({"origin": "https://evil.test"}, {"origin": "null"}):
            assert (await client.post(address, headers=foreign)).status_code == 403


async def test_people_log_in_with_a_key_and_come_where_they_wanted_to(works: Engine):
    _, key = await works.penstock.keys.create("ben", role="operate")
    async with client_of(works, access=Credentials(works.penstock)) as client:
        sent = await client.get("/dashboard/waits?key=a")
        assert sent.headers["location"] == "/dashboard/login?then=%2Fdashboard%2Fwaits%3Fkey%3Da"
        assert (await client.get(sent.headers["location"])).status_code == 200
        wrong = await client.post("/dashboard/login", data={"key": "pk_no", "then": "/dashboard/waits"})
        assert (wrong.status_code, "wrong, expired or revoked" in wrong.text) == (422, True)
        done = await client.post("/dashboard/login", data={"key": key, "then": "//evil.test"})
        assert done.headers["location"] == "/dashboard"
        assert "ben" in (await client.get("/dashboard")).text
        assert (await client.post("/dashboard/logout")).status_code == 303
        assert (await client.get("/dashboard")).status_code == 303


async def test_a_tenant_sees_nothing_of_another(works: Engine):
    id = await started(works)
    stranger = Trusted(Principal("eve", frozenset({"operate"}), tenant="other"))
    async with client_of(works, access=stranger) as eve:
        assert "march.csv" not in (await eve.get("/dashboard")).text
        assert "pay-A1" not in (await eve.get("/dashboard/waits")).text
        for path in ("", "/rows/1", "/live"):
            assert (await eve.get(f"/dashboard/operations/{id}{path}")).status_code == 404
        assert (await eve.post(f"/dashboard/operations/{id}/cancel")).status_code == 404


# --- text, never markup


async def test_hostile_text_stays_text(works: Engine, pages: httpx.AsyncClient):
    rows = [{"invoice": HOSTILE, "amount": 1, "note": f"blocked {HOSTILE}"}, {"invoice": "B", "amount": HOSTILE}]
    made = await works.create(
        Payments, rows, file_name=f"{HOSTILE}.jsonl".replace("/", ""), metadata={"account": HOSTILE}
    )
    await works.work_until_idle()
    for path in (
        "/dashboard",
        f"/dashboard/operations/{made.id}",
        *(f"/dashboard/operations/{made.id}/rows/{n}" for n in (1, 2)),
    ):
        page = await pages.get(path)
        assert "window.pwned" in page.text, path
        assert "<img src=x" not in page.text, path
        assert "<script>" not in page.text, path


# --- files and webhooks


async def test_files_are_listed_downloaded_and_deleted_for_a_reason(works: Engine, pages: httpx.AsyncClient):
    id = await started(works)
    listed = await pages.get("/dashboard/blobs")
    (at,) = set(re.findall(r'href="(/dashboard/blobs/[\w-]+)"', listed.text))
    page = await pages.get(at)
    assert f'href="/dashboard/operations/{id}"' in page.text
    file = await pages.get(f"{at}/file")
    assert (file.content, file.headers["content-disposition"]) == (CSV, "attachment; filename*=UTF-8''march.csv")
    assert (await pages.post(f"{at}/delete", data={"reason": "GDPR"})).status_code == 409
    free = await works.penstock.blobs.upload(b"a,b\n1,2\n", file_name="free.csv")
    assert (await pages.post(f"/dashboard/blobs/{free.id}/delete", data={})).status_code == 422
    done = await pages.post(f"/dashboard/blobs/{free.id}/delete", data={"reason": "GDPR"})
    assert done.status_code == 303
    assert "Deleted: GDPR" in text_of(await pages.get(f"/dashboard/blobs/{free.id}"))
    bound = Principal("ben", frozenset({"admin"}), operations=frozenset({"other"}))
    async with client_of(works, access=Trusted(bound)) as other:
        assert "/dashboard/blobs" not in (await other.get("/dashboard")).text
        assert (await other.get("/dashboard/blobs")).status_code == 403
        assert (await other.get(f"{at}/file")).status_code == 403


async def test_webhooks_show_their_deliveries(works: Engine, pages: httpx.AsyncClient):
    await works.penstock.webhooks.add("mailto:ops@example.com")
    page = await pages.get("/dashboard/webhooks")
    assert "ops@example.com" in page.text
    assert (await pages.post("/dashboard/webhooks/resend", data={"do": "failed"})).status_code == 303
    assert (await pages.post("/dashboard/webhooks/resend", data={})).status_code == 422
