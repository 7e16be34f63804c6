"""Lifecycles from the command line: definitions drawn, instances moved, timelines told."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
from patience import HANG_S

from penstock.cli import main

ORDER = {
    "environment": "Production",
    "definition": {"name": "Order", "version": "1.0.0", "description": "What becomes of an order"},
    "states": [
        {"name": "New", "is_initial": True, "timeout": "P3D", "timeout_event": "expire"},
        {"name": "Paid", "category": "money"},
        {"name": "Shipped", "is_final": True},
        {"name": "Expired", "is_final": True, "category": "error"},
    ],
    "transitions": [
        {"from": "New", "event": "pay", "to": "Paid", "when": {"field": "total", "op": "<=", "value": 1000}},
        {"from": "New", "event": "expire", "to": "Expired", "flags": ["Auto"]},
        {"from": "Paid", "event": "ship", "to": "Shipped", "guard": "in_stock"},
    ],
}
APP = "guards = {'in_stock': lambda context: True}\n"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command in a folder that has an imported definition; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "order.json").write_text(json.dumps(ORDER, indent=1))
    (tmp_path / "shop.py").write_text(APP)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    assert run("lifecycle", "import", "order.json")[0] == 0
    return run


def ask(penstock: Run, *words: str) -> Any:
    code, out, err = penstock("lifecycle", *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def started(penstock: Run, reference: str = "A-1", *words: str) -> str:
    return str(ask(penstock, "start", "order", reference, "--data", "total:=99", *words)["guid"])


def test_an_import_says_what_was_made_and_what_is_odd_and_a_second_one_that_nothing_was(penstock: Run, tmp_path: Path):
    code, out, _ = penstock("lifecycle", "import", "order.json")
    assert code == 0
    assert out.startswith("Order 1.0.0 in Production is there already; nothing was changed.\n")
    odd = {**ORDER, "definition": {"name": "Odd"}, "states": [{"name": "A"}], "transitions": []}
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    _, out, _ = penstock("lifecycle", "import", "odd.json")
    assert "Imported Odd 10000 in Production: 1 state, 0 events, 0 transitions." in out
    assert "warning: states: no state is marked as initial; 'A', the first, is" in out
    code, _, err = penstock("lifecycle", "import", "odd.json", "--strict")
    assert code == 1
    assert "  - states[0]: 'A' is a dead end: it is not final and has no exit" in err


def test_a_document_with_faults_is_refused_with_each_on_a_line(penstock: Run, tmp_path: Path):
    wrong = {**ORDER, "transitions": [{"from": "New", "event": "pay", "to": "Payd"}, {"from": "Nw"}]}
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    code, out, err = penstock("lifecycle", "import", "wrong.json")
    assert (code, out) == (1, "")
    assert "  - transitions[0].to: no state 'Payd'; did you mean 'Paid'?\n" in err
    code, out, _ = penstock("lifecycle", "import", "wrong.json", "--json")
    problem = json.loads(out)
    assert (code, problem["type"]) == (1, "urn:penstock:problem:definition-invalid")
    assert [fault["field"] for fault in problem["faults"]] == [
        "transitions[0].to", "transitions[1].from", "transitions[1].to", "transitions[1].event",
        "states[0].timeout_event",
    ]  # fmt: skip


def test_an_instance_is_named_by_its_reference_and_the_environment_of_its_definition(penstock: Run, tmp_path: Path):
    (tmp_path / "test.json").write_text(json.dumps({**ORDER, "environment": "Test"}))
    assert penstock("lifecycle", "import", "test.json")[0] == 0
    here, there = (ask(penstock, "start", "order", "A-1", "--env", each) for each in ("Production", "Test"))
    assert (here["environment"], there["environment"]) == ("Production", "Test")
    code, _, err = penstock("lifecycle", "history", "order/A-1")
    assert code == 1
    assert "in several environments" in err
    assert ask(penstock, "suspend", "order/A-1", "--env", "Test")["guid"] == there["guid"]
    assert ask(penstock, "trigger", "order/A-1", "expire", "--env", "prod")["guid"] == here["guid"]
    assert ask(penstock, "history", "order/A-1", "--env", "Test")["items"][0]["guid"] == there["guid"]


def test_a_definition_is_drawn_with_its_moves_and_how_many_are_where(penstock: Run):
    guids = [started(penstock, f"A-{n}") for n in range(3)]
    assert penstock("lifecycle", "trigger", guids[0], "pay")[0] == 0
    code, out, _ = penstock("lifecycle", "show", "order")
    assert code == 0
    assert out == (
        "Order 1.0.0  Production, published\n"
        "What becomes of an order\n"
        "\n"
        "▶ New      ████████████████████████ 2  initial, expire after P3D\n"
        "    pay    → Paid  when total <= 1000\n"
        "    expire → Expired  auto\n"
        "● Paid     ████████████ 1  money\n"
        "    ship → Shipped  if in_stock\n"
        "■ Shipped  final\n"
        "■ Expired  final, error\n"
        "\n"
        "3 instances: 3 active\n"
    )
    shown = ask(penstock, "show", "order")
    assert [(each["state"], each["instances"]) for each in shown["counts"]] == [("New", 2), ("Paid", 1)]
    assert shown["document"]["transitions"][2]["guard"] == "in_stock"


def test_definitions_and_versions_are_listed_exported_compared_and_drawn(penstock: Run, tmp_path: Path):
    newer = {**ORDER, "definition": {"name": "Order", "version": "1.1.0"}, "transitions": ORDER["transitions"][:2]}
    (tmp_path / "newer.json").write_text(json.dumps(newer))
    assert penstock("lifecycle", "import", "newer.json")[0] == 0
    assert re.search(
        r"^Order\s+Production\s+1.1.0\s+Published\s+0\s+What becomes", penstock("lifecycle", "list")[1], re.M
    )
    assert [each["version"] for each in ask(penstock, "versions", "order")["items"]] == ["1.1.0", "1.0.0"]
    assert penstock("lifecycle", "export", "order", "--version", "1.0.0")[1] == (tmp_path / "order.json").read_text()
    assert penstock("lifecycle", "export", "order", "--out", "copy.json")[0] == 0
    assert (tmp_path / "copy.json").read_bytes() == (tmp_path / "newer.json").read_bytes()
    assert penstock("lifecycle", "diff", "order", "1.0.0")[1] == "- event ship\n- transition Paid --ship-->\n"
    assert penstock("lifecycle", "diff", "order", "1.0.0", "1.0.0")[1] == "The two versions are the same.\n"
    assert penstock("lifecycle", "diagram", "order")[1].startswith("stateDiagram-v2\n    Shipped\n    [*] --> New\n")
    assert penstock("lifecycle", "diagram", "order", "--svg")[1].startswith("<svg")
    assert ask(penstock, "diagram", "order")["form"] == "mermaid"
    assert [each["name"] for each in ask(penstock, "categories")["items"]] == ["error", "money"]


def test_a_trigger_says_where_the_instance_went_or_why_not(penstock: Run):
    guid = started(penstock)
    code, out, _ = penstock("lifecycle", "trigger", guid, "ship")
    assert (code, out) == (1, "refused, not allowed: ship\nin New it can take: pay, expire\n")
    code, out, _ = penstock("lifecycle", "trigger", guid, "pay", "--check")
    assert (code, out) == (0, "New → Paid, could be moved by pay\n")
    assert penstock("lifecycle", "trigger", "order/A-1", "pay", "--check")[0] == 0
    code, _, err = penstock("lifecycle", "trigger", "order/A-2", "pay")
    assert (code, err) == (1, "penstock: no instance of 'order' has the reference 'A-2'\n")
    words = ("lifecycle", "trigger", guid[:30], "PAY", "--key", "r-1", "--actor", "ana", "--meta", "till:=3")
    assert penstock(*words)[:2] == (0, "New → Paid, moved by pay\n")
    assert penstock(*words)[:2] == (0, "New → Paid, was moved before by pay\n")
    code, out, _ = penstock("lifecycle", "trigger", guid, "ship")
    assert code == 1
    assert "guard denied: no guard 'in_stock' is registered" in out
    code, out, _ = penstock("lifecycle", "trigger", guid, "ship", "--app", "shop.py", "--json")
    answer = json.loads(out)
    assert (code, answer["outcome"], answer["to"], answer["sequence"]) == (0, "applied", "Shipped", 3)


def test_the_timeline_of_an_instance_is_told(penstock: Run):
    guid = started(penstock, "A-1", "--actor", "shop")
    penstock("lifecycle", "trigger", guid, "pay", "--actor", "ana", "--cause", "card", "--correlation", "req-7")
    penstock("lifecycle", "suspend", guid, "--cause", "storm")
    code, out, _ = penstock("lifecycle", "history", guid)
    assert code == 0
    lines = [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "AT", line) for line in out.splitlines() if "│" not in line]
    assert lines == [
        f"A-1  Order  Paid  Active, Suspended  {guid[:13]}",
        "",
        "AT  ● New   started by shop",
        "AT  ● Paid  pay by ana  card · req-7",
        f"AT  ○       suspended by {ask(penstock, 'history', guid)['items'][2]['actor']}  storm",
    ]
    penstock("lifecycle", "resume", guid)
    assert "It can take: ship" in penstock("lifecycle", "history", guid, "--app", "shop.py")[1]


def test_instances_are_listed_by_state_and_flags_page_by_page(penstock: Run):
    guids = [started(penstock, f"A-{n}") for n in range(3)]
    for action in ("suspend", "complete", "fail", "archive", "reopen", "resume"):
        assert penstock("lifecycle", action, guids[1])[0] == 0
    penstock("lifecycle", "suspend", guids[2])

    def found(*words: str) -> list[str]:
        return [each["reference"] for each in ask(penstock, "instances", *words)["items"]]

    assert found("order", "--with", "archived") == ["A-1"]
    assert found("order", "--without", "suspended", "--without", "archived") == ["A-0"]
    assert found("--state", "new", "--reference", "A-2") == ["A-2"]
    first = ask(penstock, "instances", "--limit", "2")
    assert found("--limit", "2", "--cursor", first["nextCursor"]) == ["A-2"]
    assert "A-0" in penstock("lifecycle", "instances", "order")[1]
    assert penstock("lifecycle", "instances", "--state", "Paid")[1].strip() == "0 instances found"
    code, _, err = penstock("lifecycle", "instances", "--with", "happy")
    assert code == 2
    assert "takes active, suspended, completed, failed or archived; found 'happy'" in err


def test_old_entries_are_purged_timers_fired_and_all_is_verified(penstock: Run):
    guid = started(penstock)
    penstock("lifecycle", "trigger", guid, "pay")
    assert ask(penstock, "purge", "--older-than", "0s", "--dry-run") == {"entries": 2, "isDryRun": True}
    assert penstock("lifecycle", "purge", "--older-than", "0s")[1] == "Removed 2 log entries.\n"
    assert penstock("verify")[0] == 0
    assert ask(penstock, "tick")["timersFired"] == 0
    assert penstock("lifecycle", "purge", "--older-than", "soon")[0] == 2


def test_verify_names_an_instance_that_its_log_does_not_explain(penstock: Run, tmp_path: Path):
    import sqlite3

    guid = started(penstock)
    with sqlite3.connect(tmp_path / "penstock.db") as database:
        database.execute("UPDATE penstock_lifecycle_instance SET flags = 9")
    database.close()
    code, out, _ = penstock("verify")
    assert code == 1
    assert f"instance {guid}: its log leads to" in out


def test_tenants_are_apart(penstock: Run):
    assert penstock("lifecycle", "show", "order", "--tenant", "acme")[0] == 1
    assert penstock("lifecycle", "import", "order.json", "--tenant", "acme")[0] == 0
    started(penstock, "A-1", "--tenant", "acme")
    assert ask(penstock, "instances")["items"] == []
    assert len(ask(penstock, "instances", "--tenant", "acme")["items"]) == 1


def test_deliveries_are_listed_and_sent_again(penstock: Run, tmp_path: Path):
    import asyncio

    from penstock import Penstock

    guid = started(penstock)

    async def give_up() -> str:
        async with Penstock.open(f"sqlite:///{tmp_path / 'penstock.db'}") as opened:
            await opened.deliveries.register("billing", attempts_max=1)
            await opened.lifecycles.trigger(guid, "pay")
            (claimed,) = await opened.deliveries.claim("billing")
            return (await opened.deliveries.fail(claimed.message_id, "no paper")).message_id

    message = asyncio.run(give_up())
    code, out, _ = penstock("deliveries", "list", "--state", "Failed")
    assert code == 0
    assert re.search(rf"^{message}\s+Failed\s+1/1\s+New → Paid\s+no paper$", out, re.MULTILINE)
    assert penstock("deliveries", "resend")[0] == 2
    assert penstock("deliveries", "resend", "--failed", "--consumer", "billing")[1] == "1 delivery is due now.\n"
    assert penstock("deliveries", "resend", message, "--json")[1] == '{\n  "deliveries": 1\n}\n'
    assert penstock("deliveries", "list", "--overdue", "--json")[0] == 0
    assert penstock("deliveries", "list", "--older-than", "1d")[1] == "No delivery fits.\n"


def test_a_monitor_that_stays_fires_timers_until_it_is_told_to_stop(penstock: Run, tmp_path: Path):
    timed = {
        "definition": {"name": "Egg"},
        "states": [{"name": "Raw", "timeout": "PT0.1S", "timeout_event": "boil"}, {"name": "Done", "is_final": True}],
        "transitions": [{"from": "Raw", "event": "boil", "to": "Done"}],
    }
    (tmp_path / "egg.json").write_text(json.dumps(timed))
    assert penstock("lifecycle", "import", "egg.json", "--tenant", "kitchen")[0] == 0
    guid = ask(penstock, "start", "egg", "--tenant", "kitchen")["guid"]
    command = [*forked.python(), "-m", "penstock", "lifecycle", "tick", "--every", "0.1", "--json"]
    monitor = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        until = time.monotonic() + HANG_S
        while ask(penstock, "history", guid, "--tenant", "kitchen")["items"][-1]["event"] != "boil":
            assert time.monotonic() < until
        monitor.send_signal(signal.SIGTERM)
        out, _ = monitor.communicate(timeout=HANG_S)
    finally:
        monitor.kill()
        monitor.wait()
    assert json.loads(out)["timersFired"] == 1
    assert monitor.returncode == 0


def test_operations_blobs_and_deliveries_are_drawn_and_told_like_lifecycles(penstock: Run, tmp_path: Path):
    code, out, _ = penstock("lifecycle", "show", "blob")
    assert code == 0
    assert out == (
        "blob  built in\n\n"
        "▶ Pending    initial\n    uploading → Uploading\n    expired   → Rejected\n"
        "● Uploading\n    validated → Valid\n    rejected  → Rejected\n    expired   → Rejected\n"
        "■ Rejected   settled\n    deleted → Deleted\n■ Valid      settled\n    deleted → Deleted\n"
        "■ Deleted    settled\n"
    )
    assert penstock("lifecycle", "diagram", "row-step")[1] == penstock("machines", "row-step", "--mermaid")[1]
    assert penstock("lifecycle", "diagram", "operation", "--svg")[1].startswith("<svg")
    shown = ask(penstock, "show", "delivery")
    assert shown["document"]["states"][0]["name"] == "Pending"
    mine = {**ORDER, "definition": {"name": "Delivery", "description": "mine"}}
    (tmp_path / "mine.json").write_text(json.dumps(mine))
    assert penstock("lifecycle", "import", "mine.json")[0] == 0
    assert "mine" in penstock("lifecycle", "show", "delivery")[1], "a definition of that name comes first"


def test_the_history_of_an_operation_and_of_a_delivery_reads_like_that_of_an_instance(penstock: Run, tmp_path: Path):
    (tmp_path / "greet.py").write_text(
        "from pydantic import BaseModel\nfrom penstock import Context, operation\n\n\n"
        "class Person(BaseModel):\n    name: str\n\n\n"
        "@operation('greet')\nasync def greet(row: Person, ctx: Context) -> None: ...\n"
    )
    (tmp_path / "people.csv").write_text("name\nAda\n")
    code, out, _ = penstock("run", "greet", "people.csv", "--app", "greet.py", "--json")
    operation = json.loads(out)["id"]
    moves = ask(penstock, "history", operation)["items"]
    assert [(move["event"], move["to"]) for move in moves[1:]] == [
        ("picked_up", "Validating"), ("validated", "Running"), ("finished", "Completed"),
    ]  # fmt: skip
    out = penstock("lifecycle", "history", operation)[1]
    assert out.startswith(f"operation  greet  Completed  {operation}\n\n")
    assert re.search(r"^\S+ \S+  ● Completed   finished by \S+$", out, re.MULTILINE)
    effects = [{**ORDER["states"][0], "on_entry": [{"effect": "mail"}]}, *ORDER["states"][1:]]
    mailed = {**ORDER, "definition": {"name": "Order", "version": "2.0.0"}, "states": effects}
    (tmp_path / "mailed.json").write_text(json.dumps(mailed))
    (tmp_path / "shop.py").write_text(f"{APP}effects = {{'mail': print}}\n")
    assert penstock("lifecycle", "import", "mailed.json")[0] == 0
    message = f"{started(penstock)}:1:effect:000:mail"
    assert "    on entry: effect mail\n" in penstock("lifecycle", "show", "order")[1]
    assert penstock("lifecycle", "tick", "--app", "shop.py")[0] == 0
    out = penstock("lifecycle", "history", message)[1]
    assert out.startswith(f"delivery  Processed  {message}\n\n")
    assert out.count("●") == 2
    code, _, err = penstock("lifecycle", "history", "nobody")
    assert (code, err) == (1, "penstock: no instance has the guid 'nobody'\n")


def test_a_long_cause_stands_below_its_entry(penstock: Run):
    guid, cause = started(penstock), "because " * 11
    assert penstock("lifecycle", "suspend", guid, "--cause", cause.strip())[0] == 0
    out = penstock("lifecycle", "history", guid)[1]
    assert re.search(r"○ +suspended by \S+ *\n {23}because because", out)
