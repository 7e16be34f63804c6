"""`python -m tests.torture --db sqlite --kills 1000`: prints findings as they come, then the figures; exit 1 on any."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import servers
from . import client_main, proxy, worker_main
from .campaign import Campaign, Wanted
from .faults import Switches
from .nursery import Nursery

DATABASES = ("sqlite", *servers.KINDS)


def main() -> int:
    """Run one campaign."""
    given = _arguments()
    seed = given.seed if given.seed is not None else time.time_ns() % 1_000_000
    wanted = Wanted(
        given.kills, given.freezes, given.restarts, given.signals, given.seconds, given.round_s, given.patience
    )
    folder = Path(tempfile.mkdtemp(prefix="penstock-torture-", dir=given.folder))
    # Before any loop, thread or server handle exists that a fork could inherit.
    nursery = Nursery({"worker": worker_main.live, "client": client_main.live, "proxy": proxy.live})
    print(f"seed {seed}, {given.db}, journals in {folder}", flush=True)
    with _database(given.db, folder) as (url, restart):
        switches = Switches(**{name: getattr(given, name) for name in Switches.names()})
        campaign = Campaign(nursery, folder, url, wanted, seed, restart=restart, say=_say, switches=switches)
        asyncio.run(_run(campaign, nursery))
    tally = campaign.tally
    if not given.quiet:
        for line in (*tally.table(), *tally.figures()):
            print(line)
    if tally.unreached:
        print(f"never passed: {', '.join(tally.unreached)}")
    print(f"{given.db} seed {seed}: {tally.summary()}; {len(campaign.findings)} findings")
    if not (campaign.findings or given.keep):
        shutil.rmtree(folder)
    return bool(campaign.findings)


def _say(text: str) -> None:
    print(text, flush=True)


async def _run(campaign: Campaign, nursery: Nursery) -> None:
    close = await nursery.connect()
    try:
        await campaign.run()
    finally:
        await close()


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[tuple[str, Callable[[], None] | None]]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'penstock.db'}", None
        return
    with servers.private(kind) as server:

        def restart() -> None:
            server.kill()
            server.start()

        yield server.url, restart


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--db", choices=DATABASES, default="sqlite")
    parser.add_argument("--kills", type=int, default=1000, help="processes to kill")
    parser.add_argument("--freezes", type=int, default=50, help="workers to freeze past their lease")
    parser.add_argument(
        "--restarts", type=int, default=50, help="times to kill the database server, where there is one"
    )
    parser.add_argument("--signals", type=int, default=2000, help="acknowledged signals to follow")
    parser.add_argument("--seconds", type=float, default=600, help="stop after this time, whatever was reached")
    parser.add_argument("--round-s", type=float, default=30, help="how long a storm lasts before the oracle looks")
    parser.add_argument("--patience", type=float, default=1, help="how many times slower than usual all may be")
    parser.add_argument("--seed", type=int, help="chosen and printed unless given")
    parser.add_argument("--folder", type=Path, help="where journals go; they are kept when something was found")
    parser.add_argument("--keep", action="store_true", help="keep the journals in any case")
    parser.add_argument("--quiet", action="store_true", help="findings and the summary only")
    for name in Switches.names():
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
