"""The benchmark itself: it measures what it says, refuses wrong results, and fills its page. Sizes are tiny."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import HANG_S

ROOT = Path(__file__).parents[2]
PAGE = "before\n\n<!-- measured -->\nold figures\n<!-- end -->\n\nafter\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_a_run_compares_all_with_the_floor_and_fills_the_page(tmp_path: Path):
    page, numbers = tmp_path / "speed.md", tmp_path / "bench.json"
    page.write_text(PAGE)
    tiny = ("--rows", "300", "--repeat", "1", "--db", "sqlite", "--out", str(numbers), "--write-docs", str(page))
    done = run("bench", "main", "retry", *tiny)
    assert done.returncode == 0, done.stderr

    main, retry = json.loads(numbers.read_text())["sections"]
    shares = {line["label"]: line["cells"]["of the floor"]["value"] for line in main["lines"]}
    assert {"Penstock, SQLite", "Penstock, SQLite, two workers", "script, SQLite"} < shares.keys()
    rates = {label: sample["rows"] / sample["seconds"] for label, (sample,) in main["samples"].items()}
    floor = rates["no tracking (the floor)"]
    assert shares == pytest.approx({label: rates[label] / floor for label in shares})
    disk = next(verdict for verdict in main["verdicts"] if "bytes of database" in verdict["goal"]["text"])
    assert disk["is_reached"] == (disk["found"]["value"] <= 60)
    assert retry["samples"]["SQLite, retry of all"][0]["rows"] == 99

    text = page.read_text()
    assert text.startswith("before\n\n<!-- measured -->\n")
    assert text.endswith("<!-- end -->\n\nafter\n")
    assert "old figures" not in text
    assert "| Penstock, SQLite | 300 |" in text
    assert "Penstock, SQLite" in page.with_suffix(".svg").read_text()


def test_a_measurement_with_wrong_results_is_refused(tmp_path: Path):
    file = tmp_path / "rows.csv"
    file.write_text("id,name,email,amount,quantity,country,signup,active\r\n1,Ann,a@b.c,1,1,DE,2020-01-01,true\r\n")
    right = {"file": str(file), "rows": 1}
    assert run("bench.one", "bench.floor:no_tracking", json.dumps(right)).returncode == 0
    wrong = run("bench.one", "bench.floor:no_tracking", json.dumps({**right, "rows": 2}))
    assert wrong.returncode != 0
    assert "1 rows were good; 2 are" in wrong.stderr


def test_a_section_that_does_not_exist_is_named_with_those_that_do():
    done = run("bench", "speed")
    assert done.returncode == 2
    assert "there is no section speed; there are: main, peers" in done.stderr
