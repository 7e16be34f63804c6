"""The dashboard in a real browser: the operator's way from a file to its results, hostile text, accessibility."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from patience import HANG_S
from payments import CSV, HOSTILE, Payments
from playwright.sync_api import Browser, Page, expect, sync_playwright

from penstock import Penstock
from penstock.access.model import Principal
from penstock.api import Trusted, create_app
from penstock.settings import Settings

PATIENCE_MS = HANG_S * 1000
expect.set_options(timeout=PATIENCE_MS)
LIFECYCLE = {
    "definition": {"name": f"order {HOSTILE}"[:90], "description": HOSTILE},
    "states": [{"name": "New", "is_initial": True}, {"name": "<b>Open</b>"}, {"name": "Done", "is_final": True}],
    "events": ["<i>open</i>", "finish"],
    "transitions": [
        {"from": "New", "event": "<i>open</i>", "to": "<b>Open</b>"},
        {"from": "<b>Open</b>", "event": "finish", "to": "Done"},
    ],
}


class Server:
    """The application on a port of its own, with a worker, on a thread; `do` runs a coroutine there."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ready = folder, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="dashboard")

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(HANG_S)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._thread.join(HANG_S)

    async def _main(self) -> None:
        url = f"sqlite:///{self._folder / 'penstock.db'}"
        settings = Settings(database_url=url, lease_s=3600, stall_s=3600)
        async with Penstock.open(settings=settings, operations=[Payments]) as self.penstock:
            ana = Principal(f"ana {HOSTILE}", frozenset({"admin"}))
            app = create_app(self.penstock, access=Trusted(ana), worker=True)
            listening = socket.socket()
            listening.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            self._loop = asyncio.get_running_loop()
            config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
            self._server = uvicorn.Server(config)
            self._ready.set()
            await self._server.serve(sockets=[listening])
            listening.close()

    def do(self, work: Callable[[Penstock], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(self.penstock), self._loop).result(HANG_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("dashboard")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    servers.install("chromium", "chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    context = browser.new_context(base_url=server.address)
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    yield opened
    context.close()
    assert not [each for each in complaints if "status of 4" not in each]


@pytest.fixture(scope="module")
def sample(server: Server) -> dict[str, str]:
    """An operation with hostile text in every field, and a lifecycle likewise."""

    async def make(penstock: Penstock) -> dict[str, str]:
        lines = [
            {"invoice": f"A {HOSTILE}", "amount": 1, "note": f"blocked {HOSTILE}"},
            {"invoice": f"B {HOSTILE}", "amount": HOSTILE},
            {"invoice": f"C {HOSTILE}", "amount": 3, "note": HOSTILE},
        ]
        made = await penstock.operations.create(
            Payments,
            file="\n".join(map(json.dumps, lines)).encode(),
            file_name=f"{HOSTILE.replace('/', '')}.jsonl",
            metadata={"account": HOSTILE, "extra": {HOSTILE: HOSTILE}},
            created_by=HOSTILE,
        )
        while (now := await penstock.operations.get(made.id)).waiting_rows != 1 or now.failed_rows != 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await penstock.operations.pause(made.id, cause=HOSTILE, actor=HOSTILE)
        imported = await penstock.lifecycles.import_text(json.dumps(LIFECYCLE))
        await penstock.deliveries.register(HOSTILE[:90], attempts_max=1)
        instance = await penstock.lifecycles.start(
            imported.definition_id, HOSTILE, data={HOSTILE: HOSTILE}, actor=HOSTILE, cause=HOSTILE
        )
        for claimed in await penstock.deliveries.claim(HOSTILE[:90]):
            await penstock.deliveries.fail(claimed.message_id, HOSTILE, claim=claimed.claim)
        of = f"/dashboard/operations/{made.id}"
        return {
            "operations": "/dashboard",
            "operation": of,
            "failed row": f"{of}/rows/1",
            "invalid row": f"{of}/rows/2",
            "waiting row": f"{of}/rows/3",
            "upload": "/dashboard/upload",
            "upload form": "/dashboard/upload/payments",
            "waits": "/dashboard/waits",
            "lifecycles": "/dashboard/lifecycles",
            "lifecycle": f"/dashboard/lifecycles/{imported.definition_id}",
            "instance": f"/dashboard/instances/{instance.guid}",
            "blobs": "/dashboard/blobs",
            "blob": f"/dashboard/blobs/{(await penstock.blobs.list()).items[0].id}",
            "webhooks": "/dashboard/webhooks",
            "deliveries": "/dashboard/deliveries",
            "system": "/dashboard/system",
            "machines": "/dashboard/machines",
            "missing": "/dashboard/nowhere",
        }

    found: dict[str, str] = server.do(make)
    return found


def test_from_a_file_to_its_results(page: Page, server: Server):
    page.goto("/dashboard")
    page.get_by_role("link", name="Upload a file").first.click()
    page.get_by_role("link", name="Choose payments").click()
    page.set_input_files("#file", {"name": "march.csv", "mimeType": "text/csv", "buffer": CSV})
    page.get_by_label("account").fill("DE-1")
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("4 rows checked:")).to_be_visible()
    expect(page.locator("td.fault").first).to_contain_text("greater than 0")
    page.get_by_role("button", name="Start with 3 valid rows").click()

    # It is live: nobody reloads the page.
    waiting = page.get_by_role("link", name="2 Waiting")
    expect(waiting).to_be_visible()
    operation = page.url
    page.get_by_role("link", name="Waits", exact=True).click()
    for row in (1, 4):
        page.get_by_label(f"Row {row} of payments").check()
    page.get_by_label("Reason").fill("seen and approved")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("2 rows approved.")).to_be_visible()

    page.goto(operation)
    expect(page.get_by_role("main").get_by_text("Completed with errors").first).to_be_visible()
    page.get_by_role("link", name="first in row 3").click()
    page.get_by_label("note").fill("cleared")
    page.get_by_role("button", name="Correct and retry").click()
    expect(page.get_by_text("the row runs again")).to_be_visible()
    page.goto(f"{operation}/rows/2".replace("#rows", ""))
    page.get_by_label("amount").fill("5")
    page.get_by_role("button", name="Correct and retry").click()
    expect(page.get_by_text("the row runs again")).to_be_visible()

    page.goto(operation)
    expect(page.get_by_role("link", name="2 Waiting")).to_be_visible()
    page.get_by_role("link", name="Waits", exact=True).click()
    page.get_by_label("All waits on this page").check()
    for box in page.get_by_role("checkbox").all()[1:]:
        if "payments" not in (box.get_attribute("aria-label") or ""):
            box.uncheck()
    page.get_by_role("button", name="Approve").click()
    page.goto(operation)
    expect(page.locator("[data-live=status]")).to_have_text("Completed")

    page.locator("summary", has_text="Download").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Successful rows", exact=True).click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert len(rows) == 4


@pytest.mark.parametrize(
    "name",
    [
        "operations", "operation", "failed row", "invalid row", "waiting row", "upload", "upload form", "waits",
        "lifecycles", "lifecycle", "instance",
        "blobs", "blob", "deliveries", "webhooks", "system", "machines", "missing",
    ],
)  # fmt: skip
def test_a_page_is_accessible_in_light_and_dark_and_runs_nothing_of_what_it_shows(
    page: Page, sample: dict[str, str], name: str
):
    page.goto(sample[name])
    for scheme, rules in (("light", None), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page, options=rules)
        assert not found.response["violations"], found.generate_report()
    assert page.evaluate("window.pwned") is None
    assert page.locator("img[src=x], main script").count() == 0
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.evaluate(
        "[...document.querySelectorAll('.cards-on-phone td .badge')]"
        ".filter(badge => badge.getBoundingClientRect().right > badge.closest('tr').getBoundingClientRect().right)"
        ".map(badge => badge.textContent)"
    )


def test_what_is_live_stays_text_too(page: Page, sample: dict[str, str]):
    page.goto(sample["operation"])
    expect(page.locator("[data-live-state]")).to_have_text("Live")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("[data-live=status]")).to_have_text("Running")
    assert page.evaluate("window.pwned") is None
    assert page.locator("img[src=x]").count() == 0


def test_everything_is_reached_by_the_keyboard(page: Page):
    page.goto("/dashboard")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Operation", exact=True)).to_be_focused()


def test_a_theme_that_was_chosen_stays(page: Page):
    page.goto("/dashboard")
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    page.goto("/dashboard/waits")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"


def test_without_a_script_everything_can_still_be_done(browser: Browser, server: Server):
    context = browser.new_context(base_url=server.address, java_script_enabled=False)
    context.set_default_timeout(PATIENCE_MS)
    try:
        page = context.new_page()
        page.goto("/dashboard/upload/payments")
        page.set_input_files("#file", {"name": "april.csv", "mimeType": "text/csv", "buffer": CSV})
        page.get_by_label("account").fill("DE-1")
        page.get_by_role("button", name="Start without a check").click()
        expect(page.get_by_text("Started.")).to_be_visible()
        page.locator("summary", has_text="Cancel…").click()
        page.get_by_role("button", name="Cancel the operation").click()
        expect(page.get_by_text("no row begins any more", exact=False).first).to_be_visible()
    finally:
        context.close()
