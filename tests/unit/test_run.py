"""`penstock.run`, for scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

import penstock
from penstock import Context, operation


class Guest(BaseModel):
    name: str


@operation("greet")
async def greet(guest: Guest, ctx: Context) -> None: ...


def test_a_script_runs_a_file_and_gets_the_verdict(tmp_path: Path):
    (tmp_path / "guests.csv").write_text("name\nAnn\n")
    report = penstock.run(greet, tmp_path / "guests.csv", url=f"sqlite:///{tmp_path / 'penstock.db'}")
    assert (report.status, report.successful_rows) == ("Completed", 1)


@pytest.mark.filterwarnings("error")
async def test_where_a_loop_runs_the_error_names_what_to_await_instead(tmp_path: Path):
    with pytest.raises(RuntimeError) as refused:
        penstock.run(greet, tmp_path / "guests.csv")
    assert "cannot be called while an event loop runs" in str(refused.value)
    assert "await engine.run_until_done(" in str(refused.value)
    assert "operations=[greet]" in str(refused.value)
