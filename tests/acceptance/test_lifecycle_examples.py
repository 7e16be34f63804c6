"""The large definitions in examples/lifecycles, from their import to the end of an instance, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "lifecycles"
APP = ("--app", str(EXAMPLES / "functions.py"))

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls `penstock lifecycle … --json`; the exit code and the document."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, Any]:
        code = main(("lifecycle", *words, "--json"))
        out, _ = capsys.readouterr()
        return code, json.loads(out)

    return run


class Story:
    """One instance of an example on its way."""

    def __init__(self, run: Run, file: str, name: str, *data: str) -> None:
        self.run, self.name = run, name
        assert run("import", str(EXAMPLES / file), "--strict")[0] == 0, "nothing about it is odd"
        words = [word for each in data for word in ("--data", each)]
        code, made = run("start", name, "first", *words)
        assert code == 0
        self.guid, self.state = made["guid"], made["state"]

    def goes(self, *moves: str) -> None:
        """Each move is `event > state`; the actor stands before a colon."""
        for move in moves:
            who, _, rest = move.rpartition(": ")
            event, _, target = rest.partition(" > ")
            actor = ("--actor", who) if who else ()
            code, outcome = self.run("trigger", f"{self.name}/first", event, *actor, *APP)
            assert (code, outcome["outcome"], outcome["to"]) == (0, "applied", target), outcome
            self.state = target

    def is_refused(self, event: str, reason: str, *words: str) -> None:
        code, outcome = self.run("trigger", self.guid, event, *words, *APP)
        assert code != 0
        assert reason in json.dumps(outcome)

    def ends(self, *, entries: int, effects: int) -> None:
        """The log has all of it, the effects are done, and the instance is complete."""
        code, done = self.run("tick", *APP)
        assert (code, done["processed"], done["failed"]) == (0, effects, 0)
        _, log = self.run("history", self.guid)
        assert [entry["sequence"] for entry in log["items"]] == list(range(1, entries + 1))
        assert log["items"][-1]["to"] == self.state
        _, listed = self.run("instances", self.name, "--state", self.state)
        assert [(each["guid"], each["flags"]) for each in listed["items"]] == [(self.guid, ["Completed"])]
        assert self.run("show", self.name)[1]["counts"][0]["state"] == self.state
        assert "[*] -->" in self.run("diagram", self.name)[1]["diagram"]


def test_an_order_is_paid_shipped_in_parts_returned_and_refunded(penstock: Run):
    order = Story(penstock, "order_with_returns.json", "order with returns", "total:=120", 'missing:=["lamp"]')
    order.goes("check_out > Awaiting payment", "pay_for_review > Payment review")
    order.is_refused("approve", "is no reviewer", "--actor", "clerk/ana")
    order.goes("reviewer/bo: approve > Paid")
    order.is_refused("pick", "not in stock: lamp")
    order.goes("out_of_stock > Backordered", "remind_supplier > Backordered", "cancel > Refund due")
    order.goes("refund_failed > Refund failed", "retry_refund > Refund due", "refund > Refunded")
    order.is_refused("refund", "terminal")
    order.ends(entries=10, effects=3)


def test_a_loan_is_checked_approved_paid_out_and_repaid(penstock: Run):
    data = ("amount:=12000", "term_months:=36", "score:=700", "free_income:=1500", "approved_by=senior/ida")
    loan = Story(penstock, "loan_application.json", "loan application", *data)
    loan.goes("submit > Submitted", "begin_checks > Identity check", "documents_missing > Documents missing")
    loan.goes("documents_received > Identity check", "identified > Credit check", "scored > Underwriting")
    loan.is_refused("decline_politely", "unknown_event")
    loan.goes("refer > Second opinion", "senior/ida: approve > Approved", "accept > Contract out", "sign > Signed")
    loan.is_refused("disburse", "somebody else has to pay it out", "--actor", "senior/ida")
    loan.goes("disburse > Disbursing", "paid_out > Repaying", "instalment_missed > In arrears", "catch_up > Repaying")
    loan.goes("settle > Repaid")
    loan.ends(entries=16, effects=3)


def test_a_pod_is_scheduled_crashes_comes_back_is_ready_and_is_deleted(penstock: Run):
    pod = Story(penstock, "pod.json", "pod", "restart_policy=Always", "memory_mb:=512", "node_free_mb:=2048")
    pod.goes("bind > Scheduled", "accept > Mounting volumes", "mounted > Pulling image")
    pod.goes("pull_failed > Image pull back-off", "pull_again > Pulling image", "pulled > Init containers")
    pod.goes("init_done > Container creating", "created > Starting", "exit_error > Crash-loop back-off")
    pod.goes("restart > Container creating", "created > Starting", "started > Running not ready")
    pod.goes("readiness_passed > Ready")
    pod.is_refused("exit_ok", "restart_policy")
    pod.goes("delete > Terminating", "stopped > Deleted")
    pod.ends(entries=16, effects=3)
