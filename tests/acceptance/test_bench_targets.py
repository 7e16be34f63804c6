"""The benchmark of bulk calls runs and tells memory and ratios. Sizes are tiny."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_bench import run


@pytest.mark.covers("BX-108")
def test_streams_and_ways_of_sending_are_measured(tmp_path: Path):
    numbers = tmp_path / "bench.json"
    tiny = ("--rows", "1000", "--repeat", "1", "--db", "sqlite", "--out", str(numbers))
    done = run("bench", "streaming", "bulk", *tiny)
    assert done.returncode == 0, done.stderr

    streaming, bulk = json.loads(numbers.read_text())["sections"]
    assert streaming["samples"]["5,000 records, ids kept"][0]["rows"] == 5000
    assert [line["label"] for line in bulk["lines"]] == [
        "a request for each record",
        "100 in a batch request",
        "100 in a bulk action",
    ]
    assert bulk["samples"]["100 in a bulk action"][0]["calls"] == 1
