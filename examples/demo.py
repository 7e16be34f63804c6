"""`make demo`: 20,000 lines of a price list through a four-step operation, on SQLite; then the dashboard.

It calls the command line as you would; nothing here is special to the demo but the files it makes. The dashboard shows
sample operations in every state and runs until Ctrl-C; without a terminal it says what it showed, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import os
import random
import re
import shlex
import shutil
import socket
import sys
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI
from price_update import PriceUpdate
from remote_shop import usual_price
from showcase import OPERATIONS, leave_one_pending, show

from penstock import Penstock
from penstock.api import Trusted, create_app
from penstock.cli import main

HERE = Path(__file__).parent
FOLDER = Path("demo")
PRICES = FOLDER / "prices.csv"
DATABASE = f"sqlite:///{FOLDER / 'penstock.db'}"
APP = os.path.relpath(HERE / "price_update.py")
LINES = 20_000
HEADER = ("sku", "ean", "name", "price", "currency", "stock", "available_from")
NOUNS = ("lamp", "chair", "shelf", "table", "mirror", "carpet", "kettle", "clock")
COLOURS = ("red", "green", "blue", "white", "black", "oak", "brass")


def ean_of(number: int) -> str:
    """A valid EAN for an article."""
    digits = f"40{number:010}"
    checksum = sum(int(digit) * (3 if place % 2 else 1) for place, digit in enumerate(digits))
    return f"{digits}{-checksum % 10}"


def price_line(number: int, chance: random.Random) -> list[str]:
    """A line as a careful supplier would write it. Prices move by up to a third; a few are sold off."""
    name = f"{chance.choice(COLOURS)} {chance.choice(NOUNS)}"
    percent = chance.randint(67, 133) if chance.random() < 0.995 else 61
    price = usual_price(number) * percent / 100
    start = f"2026-{chance.randint(1, 12):02}-01" if chance.random() < 0.3 else ""
    return [f"ART-{number:05}", ean_of(number), name, f"{price:.2f}", "EUR", str(chance.randint(0, 500)), start]


def spoil(line: list[str], chance: random.Random) -> list[str]:
    """The same line with one of the mistakes that real lists have."""
    sku, ean, name, price, currency, stock, start = line
    return chance.choice(
        [
            [sku, ean, name, f"-{price}", currency, stock, start],
            [sku, ean, name, price.replace(".", ","), currency, stock, start],
            [sku, ean[:-1] + str((int(ean[-1]) + 1) % 10), name, price, currency, stock, start],
            [sku, ean[:11], name, price, "USD", "many", start],
            [sku, ean, name, price, "USD", stock, start],
            [sku.lower(), ean, "", price, currency, stock, start],
            [sku, ean, name, price, currency, stock, start, "discontinued"],
        ]
    )


def write_prices() -> None:
    """A list with about 1.5 % bad lines; the same list every time."""
    chance = random.Random(20_000)
    with PRICES.open("w", newline="", encoding="utf-8") as file:
        write = csv.writer(file).writerow
        write(HEADER)
        for number in range(1, LINES + 1):
            line = price_line(number, chance)
            write(spoil(line, chance) if chance.random() < 0.015 else line)


async def last_operation() -> tuple[str, int]:
    """The id of the newest operation, and a row of it that got far before it failed."""
    async with Penstock.open(DATABASE) as penstock:
        newest = (await penstock.operations.list(limit=1)).items[0]
        failed = await penstock.operations.rows(newest.id, state="Failed", step="publish", limit=1)
        return newest.id, failed.items[0].number


def call(*words: str) -> int:
    """Show a command and run it."""
    print(f"\n$ penstock {shlex.join(words)}", flush=True)
    return main(words)


def demo() -> int:
    """Make the file, run it, and look at one row that failed."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    write_prices()
    print(f"{PRICES}: {LINES:,} lines of a price list, some of them wrong.")
    code = call(
        "run", "price-update", str(PRICES), "--app", APP, "--db", DATABASE, *metadata("supplier=acme", "currency=EUR")
    )
    if code not in (0, 3):
        return code
    operation, row = asyncio.run(last_operation())
    call("ops", "show", operation[:13], "--row", str(row), "--db", DATABASE)
    with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
        asyncio.run(dashboard())
    return 0


async def dashboard() -> None:
    """Serve the dashboard on this machine alone, with sample operations in every state."""
    print("\nThe dashboard: making sample operations in every state …", flush=True)
    await leave_one_pending(DATABASE)
    async with Penstock.open(DATABASE, operations=[PriceUpdate, *OPERATIONS]) as penstock:
        app = create_app(penstock, access=Trusted(), worker=True, hosts=("127.0.0.1", "localhost"))
        listening = free_socket()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = Server(app)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[listening]))
            while not server.started and not serving.done():  # noqa: ASYNC110  # it has no event for it
                await asyncio.sleep(0.02)
            await show(penstock)
            if sys.stdin.isatty() and sys.stdout.isatty():
                print(f"\n  {address}/dashboard\n\nIt runs until you press Ctrl-C.", flush=True)
                await serving
            else:
                await tell(address)
                server.should_exit = True


class Server(uvicorn.Server):
    """Ends the live pages first: they would go on without an end."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving."""
        self._app.state.live.close()
        await super().shutdown(sockets)


def free_socket() -> socket.socket:
    """A port of this machine that nobody uses, and nobody else can reach: 8000 if it is free."""
    for port in (8000, 0):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            made.bind(("127.0.0.1", port))
            return made
        made.close()
    raise OSError("no port is free")


async def tell(address: str) -> None:
    """Fetch every page of the menu, and say what was shown."""
    async with httpx.AsyncClient(base_url=address) as client:
        front = await client.get("/dashboard")
        menu = re.findall(r'<li><a href="([^"]+)"[^>]*>([^<]+)</a>', front.text)
        states = re.findall(r'class="badge \w+">([^<]+)<', front.text)
        print(f"\nShown at {address}/dashboard, without a terminal only once:")
        print(f"  {len(states)} operations: {', '.join(sorted(set(states)))}")
        for path, title in menu:
            page = (await client.get(path)).raise_for_status()
            print(f"  {title}: {len(page.content):,} bytes")
    print("In a terminal, `make demo` leaves it running until Ctrl-C.")


def metadata(*fields: str) -> list[str]:
    """Each field as an option."""
    return [word for field in fields for word in ("--meta", field)]


if __name__ == "__main__":
    sys.exit(demo())
