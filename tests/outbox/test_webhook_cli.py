"""`penstock webhooks` and `penstock deliveries`: who is told of events, from the terminal."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from penstock.cli import main

Run = Callable[..., tuple[int, str, str]]

APP = """
from pathlib import Path

from pydantic import BaseModel

from penstock import Context, operation


class Parcel(BaseModel):
    name: str


@operation("send-parcels")
async def send_parcels(parcel: Parcel, ctx: Context) -> None: ...


class Listener:
    def on_completed(self, event):
        with Path("heard.txt").open("a") as file:
            file.write(f"{event.operation_name} {event.status}\\n")


handlers = {"listener": Listener()}
"""


class Hook(BaseHTTPRequestHandler):
    status = 200
    bodies: list[dict] = []  # noqa: RUF012

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def hook_url() -> Iterator[str]:
    Hook.status, Hook.bodies[:] = 200, []
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_WEBHOOK_NETWORKS", "127.0.0.0/8")
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "parcels.csv").write_text("name\na\n")

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    assert run("db", "upgrade")[0] == 0
    return run


def ask(penstock: Run, *words: str) -> dict:
    code, out, err = penstock(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_webhook_is_added_tested_listed_told_and_removed(penstock: Run, hook_url: str, tmp_path: Path):
    code, out, _ = penstock("webhooks", "add", hook_url, "--type", "penstock.operation.finished")
    assert code == 0
    secret = next(line.split()[-1] for line in out.splitlines() if "whsec_" in line)
    (shown,) = ask(penstock, "webhooks", "list")["items"]
    everything = json.dumps(shown) + penstock("webhooks", "list")[1] + penstock("webhooks", "show", shown["id"])[1]
    assert secret not in everything
    assert (shown["url"], shown["state"], shown["channel"]) == (hook_url, "Active", "webhook")
    assert ask(penstock, "webhooks", "test", shown["id"][:13])["state"] == "Processed"
    assert penstock("run", "send-parcels", "parcels.csv", "--app", "app.py")[0] == 0
    assert [body["type"] for body in Hook.bodies] == ["penstock.webhook.test", "penstock.operation.finished"]
    assert (tmp_path / "heard.txt").read_text() == "send-parcels Completed\n"
    listed = ask(penstock, "deliveries", "list", "--consumer", shown["id"])["items"]
    assert [item["state"] for item in listed] == ["Processed", "Processed"]
    full = ask(penstock, "deliveries", "show", listed[1]["messageId"])
    assert full["event"]["id"] == full["eventId"] == Hook.bodies[1]["id"]
    assert [each["status"] for each in full["log"]] == [200]
    assert "taken" in penstock("deliveries", "show", listed[1]["messageId"])[1]
    assert penstock("verify")[0] == 0
    assert ask(penstock, "webhooks", "rotate", shown["id"])["secret"] != secret
    assert ask(penstock, "webhooks", "disable", shown["id"])["state"] == "Disabled"
    assert ask(penstock, "webhooks", "enable", shown["id"])["state"] == "Active"
    assert ask(penstock, "webhooks", "remove", shown["id"]) == {"cancelled": 0}
    assert penstock("webhooks", "show", shown["id"])[0] == 1
    assert [item["id"] for item in ask(penstock, "webhooks", "list")["items"]] == ["handler:listener"]


def test_what_was_given_up_is_listed_and_sent_again(penstock: Run, hook_url: str):
    Hook.status = 500
    added = ask(penstock, "webhooks", "add", hook_url)
    code, out, _ = penstock("webhooks", "test", added["id"])
    assert code == 1
    assert "the receiver answered 500" in out
    code, out, _ = penstock("deliveries", "list", "--state", "Failed")
    assert "Failed" in out
    (failed,) = ask(penstock, "deliveries", "list", "--state", "Failed")["items"]
    assert (failed["type"], failed["error"]) == ("penstock.webhook.test", "the receiver answered 500")
    assert penstock("deliveries", "resend", "--failed")[1] == "1 delivery is due now.\n"
    page = ask(penstock, "deliveries", "list", "--limit", "1")
    assert (len(page["items"]), page["nextCursor"]) == (1, "c")
    assert ask(penstock, "deliveries", "list", "--cursor", "c") == {"items": [], "nextCursor": None}
    assert penstock("deliveries", "list", "--cursor", "x")[0] == 2
    assert penstock("deliveries", "show", "none")[0] == 1


def test_an_address_inside_is_refused(penstock: Run):
    code, _, err = penstock("webhooks", "add", "http://169.254.169.254/latest/meta-data")
    assert code == 1
    assert "private or reserved network" in err
