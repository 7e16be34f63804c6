"""Those who run the job; each in a process of its own, so that memory and start-up are its own too."""

from __future__ import annotations

import asyncio
import csv
import json
import resource
import sys
import time
from pathlib import Path

from pydantic import ValidationError

from bench.job import Bench, Row
from penstock import Penstock
from penstock.settings import Settings


def floor(file: Path) -> int:
    """The same parse, validate and step loop with nothing recorded."""

    async def step(row: Row) -> None: ...

    async def go() -> int:
        validate = Row.__pydantic_validator__.validate_python
        good = 0
        with file.open(newline="") as lines:
            reader = csv.reader(lines)
            header = next(reader)
            for cells in reader:
                try:
                    row = validate(dict(zip(header, cells, strict=False)))
                except ValidationError:
                    continue
                await step(row)
                await step(row)
                await step(row)
                good += 1
        return good

    return asyncio.run(go())


def penstock(file: Path, url: str, folder: Path) -> int:
    """Everything validated first and every outcome durable."""

    async def go() -> int:
        settings = Settings(database_url=url, storage_url=str(folder / "files"))
        async with Penstock.open(operations=[Bench], settings=settings) as engine:
            made = await engine.operations.create(Bench, file=file)
            done = await engine.run_until_done(made.id)
            return done.successful_rows

    return asyncio.run(go())


def main() -> None:
    """`python -m bench.contenders NAME FILE [URL FOLDER]` prints seconds, rows and peak memory as JSON."""
    name, file, *rest = sys.argv[1:]
    began, cpu = time.perf_counter(), time.process_time()
    good = floor(Path(file)) if name == "floor" else penstock(Path(file), rest[0], Path(rest[1]))
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu,
                "good": good,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
