"""Pictures of every page for the documents: `python tests/dashboard/screenshots.py FOLDER [ADDRESS]`.

Without an address it serves the sample operations of the demo itself.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

import uvicorn
from playwright.sync_api import Page, sync_playwright

from penstock import Penstock
from penstock.api import Trusted, create_app

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import showcase

SIZES = {"desktop": (1280, 860), "phone": (390, 844)}


def main(folder: Path, address: str | None = None) -> None:
    """Take every picture: light and dark, desktop and phone."""
    folder.mkdir(parents=True, exist_ok=True)
    if address is None:
        address = serve()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for size, (width, height) in SIZES.items():
                context = browser.new_context(
                    base_url=address,
                    viewport={"width": width, "height": height},
                    color_scheme=scheme,
                )
                for name, path in paths(address).items():
                    page = context.new_page()
                    page.goto(path)
                    if name == "check":
                        check(page)
                    page.wait_for_timeout(700)
                    page.screenshot(path=folder / f"{name}-{scheme}-{size}.png", full_page=size == "phone")
                    page.close()
                context.close()
        browser.close()


def paths(address: str) -> dict[str, str]:
    """Every page, by the name of its picture."""
    front = urllib.request.urlopen(f"{address}/dashboard").read().decode()
    found = re.findall(r'href="(/dashboard/operations/[\w-]+)">[^<]+</a><span class="sub">([^<]+)<', front)
    of = {file: path for path, file in found}
    listed = urllib.request.urlopen(f"{address}/dashboard/lifecycles/1").read().decode()
    instance = re.findall(r'href="(/dashboard/instances/[\w-]+)"', listed)[2]
    return {
        "operations": "/dashboard",
        "operation": of["hall-2.csv"],
        "operation-waiting": of["march.csv"],
        "row": f"{of['march.csv']}/rows/12",
        "row-retried": f"{of['devices.csv']}/rows/7",
        "upload": "/dashboard/upload",
        "check": "/dashboard/upload/supplier-payments",
        "waits": "/dashboard/waits",
        "lifecycle": "/dashboard/lifecycles/1",
        "instance": instance,
        "blobs": "/dashboard/blobs",
        "deliveries": "/dashboard/deliveries?state=Failed",
        "webhooks": "/dashboard/webhooks",
        "system": "/dashboard/system",
        "machines": "/dashboard/machines",
    }


def check(page: Page) -> None:
    """A file with errors, checked."""
    file = showcase.payments_csv(60, bad_every=9)
    page.set_input_files("#file", {"name": "april.csv", "mimeType": "text/csv", "buffer": file})
    page.get_by_label("account").fill("DE-4711")
    page.get_by_label("due").fill("2031-04-30")
    page.get_by_role("button", name="Check", exact=True).click()
    page.get_by_text("rows checked").wait_for()


def serve() -> str:
    """Serve the sample operations on a thread that ends with this process."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    ready = threading.Event()

    async def run() -> None:
        url = f"sqlite:///{Path(tempfile.mkdtemp()) / 'penstock.db'}"
        await showcase.leave_one_pending(url)
        async with Penstock.open(url, operations=showcase.OPERATIONS) as penstock:
            app = create_app(penstock, access=Trusted(), worker=True)
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve(sockets=[listening]))
                await showcase.show(penstock)
                ready.set()

    threading.Thread(target=lambda: asyncio.run(run()), daemon=True).start()
    ready.wait()
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
