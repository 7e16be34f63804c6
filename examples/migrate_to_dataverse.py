"""Migrate a CSV file to Dataverse with two application users: `python examples/migrate_to_dataverse.py`.

Without a URL it starts a throttled remote of its own to migrate to, makes a file with some bad lines, and is done in a
few seconds. With `--url https://yours.crm.dynamics.com` it takes the users from AZURE_TENANT_ID, AZURE_CLIENT_IDS and
AZURE_CLIENT_SECRETS, the latter two with commas between the users.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import logging
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.targets import (
    BulkExecutor,
    BulkResult,
    DataverseOptions,
    DataverseTarget,
    ErrorReport,
    ProgressDisplay,
    RetryManifest,
)

ROOT = Path(__file__).parents[1]
FOLDER = Path("migration")
FILE, RETRY, REPORT = FOLDER / "accounts.csv", FOLDER / "retry.json", FOLDER / "report.json"
LINES = 3000
USERS = ("app-1", "app-2")
OPTIONS = DataverseOptions(alternate_key=["code"], tell_created=True, deadline_s=3600)
EXIT_INCOMPLETE = 3


def make_file(path: Path) -> None:
    """Accounts by code; every thousandth has a size that is none."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("code", "name", "size"))
        for n in range(LINES):
            lines.writerow((f"C-{n:05}", f"Company {n}", "unknown" if n % 1000 == 500 else n % 250))


def read_file(path: Path) -> list[dict[str, Any]]:
    """The file as records; what is no number is left for the remote to judge."""
    with path.open(newline="") as file:
        return [
            {**row, "size": int(row["size"]) if row["size"].isdigit() else row["size"]} for row in csv.DictReader(file)
        ]


@contextmanager
def own_remote() -> Generator[str]:
    """A remote in another process that lets each user make ten requests in two seconds."""
    limits = ("--rate", "5", "--window-s", "2", "--call-ms", "10", "--row-ms", "1")
    command = [sys.executable, "-m", "tests.dataverse", *limits, "--users", *USERS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as remote:
        assert remote.stdout is not None
        try:
            yield remote.stdout.readline().strip()
        finally:
            remote.terminate()


def own_credentials(url: str) -> Mapping[str, Any]:
    """The users of our own remote."""
    sys.path.insert(0, str(ROOT))
    from tests.dataverse import EndpointCredential

    return {user: EndpointCredential(url, user) for user in USERS}


def credentials() -> Mapping[str, Any]:
    """The application users that the environment names."""
    from azure.identity import ClientSecretCredential

    ids, secrets = (os.environ[name].split(",") for name in ("AZURE_CLIENT_IDS", "AZURE_CLIENT_SECRETS"))
    tenant = os.environ["AZURE_TENANT_ID"]
    return {id: ClientSecretCredential(tenant, id, secret) for id, secret in zip(ids, secrets, strict=True)}


async def migrate(url: str, users: Mapping[str, Any], records: list[dict[str, Any]]) -> BulkResult:
    """Upsert the records by their code, with all users at once."""
    target = DataverseTarget(url, users)
    try:
        with ProgressDisplay("accounts") as display:
            return await BulkExecutor(target).upsert_multiple("account", records, OPTIONS, progress=display)
    finally:
        await target.aclose()


def show(result: BulkResult) -> None:
    """What became of the records, and what it took."""
    told = {
        "created": result.created_count,
        "updated": result.updated_count,
        "failed": result.failure_count,
        "unknown": result.unknown_count,
        "not run": result.not_run_count,
    }
    table = Table("accounts", "records")
    for name, count in told.items():
        table.add_row(name, f"{count:,}")
    console = Console()
    console.print(table)
    cost = result.statistics
    console.print(f"{cost.calls} batches in {result.duration_s:.0f} s, told to wait {cost.throttles} times")
    for error in result.errors[:10]:
        console.print(f"line {error.index + 2}: {error.message}", markup=False, highlight=False, soft_wrap=True)


def keep(result: BulkResult) -> int:
    """Write down what is left to do; the exit code."""
    if result.is_success:
        return 0
    RetryManifest.of({"account": result}).save(RETRY)
    ErrorReport.of({"account": result}, file=str(FILE)).save(REPORT)
    print(f"what is left to do is in {RETRY}, what went wrong in {REPORT}")
    return EXIT_INCOMPLETE


def main() -> int:
    """Migrate, show, keep."""
    arguments = _arguments()
    logging.getLogger("penstock.targets").setLevel(logging.ERROR)  # the display shows when we must wait
    if not FILE.exists():
        make_file(FILE)
    records = read_file(FILE)
    if arguments.url:
        result = asyncio.run(migrate(arguments.url, credentials(), records))
    else:
        with own_remote() as url:
            result = asyncio.run(migrate(url, own_credentials(url), records))
    show(result)
    return keep(result)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="the environment; without it a remote is started")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
