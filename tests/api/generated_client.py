"""`python tests/api/generated_client.py`: a client that openapi-python-client makes from our OpenAPI runs an operation.

The generator gets an environment of its own, because it needs another release of a library that we use.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

APP = """
from pydantic import BaseModel
from penstock import Context, Pipeline, StepFailed, operation, step

class Member(BaseModel):
    number: int
    name: str

@operation("import-members", row_key="name")
class ImportMembers(Pipeline[Member]):
    @step
    async def create(self, member: Member, ctx: Context) -> int:
        if member.number == 3 and ctx.generation == 0:
            raise StepFailed("no")
        return member.number

    @step.signal(key="ok-{row.name}", timeout=3600)
    async def approve(self, member: Member, ctx: Context) -> None: ...
"""

# Upload, wait for approvals, approve, see what failed, retry it, approve that too, download the results.
DRIVER = """
import io, sys, time
from penstock_client import Client
from penstock_client.api.bulks import create_bulk, get_bulk
from penstock_client.api.files import get_results
from penstock_client.api.retries import retry_bulk
from penstock_client.api.rows import list_errors, list_rows, list_waits
from penstock_client.api.signals import complete_signal
from penstock_client.models import CreateBulkBody, SignalBody
from penstock_client.models.get_results_result import GetResultsResult
from penstock_client.types import File

client = Client(base_url=sys.argv[1])

def until(look):
    for _ in range(600):
        if found := look():
            return found
        time.sleep(0.1)
    raise SystemExit("it takes too long")

def ends_as(status):
    return until(lambda: next((b for b in [get_bulk.sync(id, client=client)] if b.status == status), None))

def approve(*names):
    until(lambda: len(list_waits.sync(id, client=client).items) == len(names))
    for name in names:
        complete_signal.sync(id, f"ok-{name}", client=client, body=SignalBody())

file = File(io.BytesIO(b"number,name\\n1,a\\n2,b\\n3,c\\n"), "members.csv", "text/csv")
body = CreateBulkBody(file=file, operation_name="import-members")
id = create_bulk.sync(client=client, body=body, idempotency_key="first").operation_id
approve("a", "b")
ends_as("CompletedWithErrors")
assert [(e.row_number, e.error_message) for e in list_errors.sync(id, client=client).items] == [(3, "no")]
assert retry_bulk.sync(id, client=client).rows_submitted == 1
approve("c")
ends_as("Completed")
assert [row.state for row in list_rows.sync(id, client=client).items] == ["Completed"] * 3
results = get_results.sync_detailed(id, GetResultsResult("successful"), client=client)
assert results.content.count(b"\\n") == 4, results.content
print("a generated client has run operation", id)
"""


def main() -> None:
    """Serve, generate, drive."""
    with tempfile.TemporaryDirectory(prefix="penstock-client-") as name:
        folder = Path(name)
        python = folder / "environment" / "bin" / "python"
        venv.create(folder / "environment", with_pip=True)
        needs = ("openapi-python-client>=0.29", "httpx", "attrs", "python-dateutil", "ruff")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *needs], check=True)
        with served(folder) as url:
            (folder / "openapi.json").write_bytes(fetched(f"{url}/openapi.json"))
            generate = ["generate", "--path", "openapi.json", "--output-path", "client"]
            generator = python.with_name("openapi-python-client")
            environment = {"PATH": f"{python.parent}:/usr/bin:/bin"}
            done = subprocess.run(
                [generator, *generate], cwd=folder, env=environment, capture_output=True, text=True, check=True
            )
            if "warning" in done.stdout.lower():
                sys.exit(done.stdout)
            (folder / "client" / "drive.py").write_text(DRIVER)
            subprocess.run([python, "drive.py", url], cwd=folder / "client", check=True)


def fetched(url: str) -> bytes:
    """What is at an address, as soon as its server is ready."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                content: bytes = answer.read()
                return content
        except OSError:
            time.sleep(1)
    sys.exit(f"{url} does not answer")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A server with a worker in it, for everybody on this machine."""
    (folder / "app.py").write_text(APP)
    command = [sys.executable, "-m", "penstock", "serve", "--app", "app.py", "--insecure", "--port", "0"]
    log = folder / "server.log"
    with log.open("w") as lines, subprocess.Popen(command, cwd=folder, stderr=lines) as process:
        try:
            while "serving on" not in log.read_text():
                time.sleep(0.2)
            yield log.read_text().partition("serving on ")[2].split()[0]
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
