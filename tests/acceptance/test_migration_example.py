"""The example of a migration runs by itself, prints what the document shows, and leaves a manifest that fits."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path

import forked
import pytest
from patience import HANG_S
from test_documents import ROOT, blocks, pattern

from penstock.targets import RetryManifest

DOCUMENT = ROOT / "docs" / "how-to" / "load-dataverse.md"
EXAMPLE = "examples/migrate_to_dataverse.py"


def shown() -> str:
    """What the document says that the example prints."""
    command = f"$ python {EXAMPLE}\n"
    (text,) = [block.text for block in blocks(DOCUMENT) if block.text.startswith(command)]
    return text.removeprefix(command)


@pytest.mark.covers("BX-003", "BX-005", "BX-056", "BX-106")
def test_the_migration_example_prints_what_is_shown_and_keeps_what_is_left(tmp_path: Path):
    command = [*forked.python(), str(ROOT / EXAMPLE)]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 3, done.stdout
    assert re.fullmatch(pattern(shown()), done.stdout), done.stdout
    waits = re.search(r"told to wait (\d+) times", done.stdout)
    assert waits
    assert int(waits[1]) > 0

    with (tmp_path / "migration" / "accounts.csv").open(newline="") as file:
        records = list(csv.DictReader(file))
    left = RetryManifest.load(tmp_path / "migration" / "retry.json").select(records)
    assert [record["size"] for record in left] == ["unknown"] * 3
    report = json.loads((tmp_path / "migration" / "report.json").read_text())
    assert report["summary"]["failed"] == 3
    assert "Company" not in json.dumps(report)
