"""`python -m tests.dataverse --port 0 --rate 50`: a remote to point a client at; the first line printed is its URL.

Tokens come from `{url}/organizations/oauth2/v2.0/token` by client credentials: the user's name and any secret.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from contextlib import suppress

from . import Column, DataverseServer, Lookup, Pace, Quota, Table

TABLES = (
    Table("account", "accounts", columns=("name", "code", Column("size", "Integer")), keys={"by_code": ("code",)}),
    Table("contact", "contacts", columns=("name", "email"), lookups=(Lookup("parentid", "account"),)),
    Table("reading", "readings", columns=("name", Column("value", "Decimal")), elastic=True),
)


def main() -> None:
    """Serve until interrupted."""
    given = _arguments()
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(given))


async def _serve(given: argparse.Namespace) -> None:
    quota = Quota(dop_hint=given.dop, concurrency=given.concurrency)
    if given.rate:
        requests = round(given.rate * given.window_s)
        quota = Quota(requests=requests, window_s=given.window_s, dop_hint=given.dop, concurrency=given.concurrency)
    pace = Pace(given.call_ms / 1000, given.row_ms / 1000, given.single_ms / 1000)
    users = dict.fromkeys(given.users, quota)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with DataverseServer(TABLES, users, port=given.port, pace=pace, sleep=asyncio.sleep) as server:
        print(server.url, flush=True)
        print(f"{server.secure_url} with {server.certificate}, users {', '.join(users)}", flush=True)
        await stop.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.dataverse", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    parser.add_argument(
        "--rate", type=float, default=0, help="requests a second for each user before 429; 0: no such limit"
    )
    parser.add_argument("--window-s", type=float, default=1, help="over how many seconds the rate is counted")
    parser.add_argument("--users", nargs="+", default=["app-1"])
    parser.add_argument("--dop", type=int, default=5, help="the parallelism recommended to each user")
    parser.add_argument("--concurrency", type=int, default=52, help="calls at once of each user before 429")
    parser.add_argument("--call-ms", type=float, default=0, help="what every call costs")
    parser.add_argument("--row-ms", type=float, default=0, help="what every row of a bulk action costs")
    parser.add_argument("--single-ms", type=float, default=0, help="what every single operation costs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
