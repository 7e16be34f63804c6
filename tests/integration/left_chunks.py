"""Files of which a reader leaves chunks to other workers: what the tests of their validation share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from approvals import Paper, Wall, chunks_of, papers

from penstock import Context, Pipeline, RowInvalid, operation, step
from penstock.operations.model import Operation, RowView
from penstock.settings import Settings
from penstock.testing import Engine

__all__ = ["SMALL", "Bench", "csv_of", "every_row", "left_rows", "mixed", "raw_chunks", "read_for_others"]

SMALL = Settings(chunk_rows=4, flush_rows=4, cancel_grace_s=0)


class Bench:
    """A pipeline whose validation can be held up, and that writes down what it checked and ran."""

    def __init__(self, name: str = "bench", **options: Any) -> None:
        self.wall = Wall()
        self.checked: list[str] = []
        self.ran: list[str] = []
        bench = self

        @operation(name, row_key="code", **options)
        class Kind(Pipeline[Paper]):
            async def validate_row(self, paper: Paper, meta: None) -> None:
                bench.checked.append(paper.code)
                if paper.desk == "wall":
                    await bench.wall.stop()
                if paper.desk == "bad":
                    raise RowInvalid("not a desk", field="desk")

            @step
            async def work(self, paper: Paper, ctx: Context) -> None:
                bench.ran.append(paper.code)

        self.kind = Kind


async def read_for_others(e: Engine) -> None:
    """Read files to their end, leaving chunks for a worker that does not come."""
    await e.worker.look_round()
    await e.worker.dispatcher.readers.start()
    while e.worker.readings:
        e.worker.wake.clear()
        await e.worker.wake.wait()


async def raw_chunks(e: Engine, made: Operation) -> int:
    """How many chunks nobody has validated yet."""
    return sum(chunk.is_raw for chunk in await chunks_of(e, made))


async def left_rows(e: Engine, made: Operation) -> list[int]:
    """The numbers of the rows that nobody has validated yet."""
    left = [chunk for chunk in await chunks_of(e, made) if chunk.is_raw]
    return [chunk.first_row + i for chunk in left for i in range(chunk.row_count)]


async def every_row(e: Engine, made: Operation) -> list[RowView]:
    """All rows with their data, in row order."""
    page = await e.operations.rows(made.id, data=True, limit=1000)
    found = list(page.items)
    while page.next_cursor is not None:
        page = await e.operations.rows(made.id, data=True, limit=1000, cursor=page.next_cursor)
        found += page.items
    return found


def mixed(count: int) -> list[dict[str, str]]:
    """So many papers, of which every fifth has no desk."""
    rows = papers(count)
    for row in rows[2::5]:
        row["desk"] = "bad"
    return rows


def csv_of(rows: Iterable[Mapping[str, str]]) -> bytes:
    """Papers as a plain CSV file."""
    return ("code,desk\n" + "".join(f"{row['code']},{row['desk']}\n" for row in rows)).encode()
