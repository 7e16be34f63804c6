"""`make bench`: the floor and Penstock on SQLite (and on `PENSTOCK_TEST_POSTGRES_URL`), in turns, as ratios.

Figures are comparable within one run only: machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.job import BAD_EVERY, write_file

REPORT = Path("build/bench.json")


def run(name: str, file: Path, *rest: str) -> dict[str, Any]:
    """One run of one contender."""
    command = [sys.executable, "-m", "bench.contenders", name, str(file), *rest]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return answer


def measure(rows: int, repeat: int, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Each contender in turn, `repeat` times."""
    file = folder / "rows.csv"
    write_file(file, rows)
    servers = {"postgresql": os.environ.get("PENSTOCK_TEST_POSTGRES_URL")}
    found: dict[str, list[dict[str, Any]]] = {}
    for turn in range(repeat):
        place = folder / str(turn)
        place.mkdir()
        found.setdefault("floor", []).append(run("floor", file))
        found.setdefault("sqlite", []).append(run("penstock", file, f"sqlite:///{place / 'bench.db'}", str(place)))
        found["sqlite"][-1]["bytes_per_row"] = (place / "bench.db").stat().st_size / rows
        for name, url in servers.items():
            if url:
                found.setdefault(name, []).append(run("penstock", file, url, str(place)))
    expected = rows - rows // BAD_EVERY
    assert all(one["good"] == expected for runs in found.values() for one in runs), "a contender lost rows"
    return found


def main() -> None:
    """Measure, print a table and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        found = measure(arguments.rows, arguments.repeat, Path(folder))
    base = statistics.median(one["seconds"] for one in found["floor"])
    print(f"{arguments.rows:,} rows, 3 steps, median of {arguments.repeat}\n")
    print(f"{'':12}{'rows/s':>10}{'of floor':>10}{'spread':>8}{'peak MB':>9}{'bytes/row':>11}")
    for name, runs in found.items():
        seconds = [one["seconds"] for one in runs]
        median = statistics.median(seconds)
        spread = (max(seconds) - min(seconds)) / median
        disk = f"{runs[-1]['bytes_per_row']:.0f}" if "bytes_per_row" in runs[-1] else ""
        peak = max(one["peak_mb"] for one in runs)
        print(f"{name:12}{arguments.rows / median:10,.0f}{base / median:10.2f}{spread:8.0%}{peak:9.0f}{disk:>11}")
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"rows": arguments.rows, "runs": found}, indent=1))
    print(f"\nnumbers in {REPORT}")


if __name__ == "__main__":
    main()
