"""Tables that fit the terminal: columns give way in a stated order, and what stays is never cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from penstock.printable import printable

__all__ = ["FittedTable", "table"]

GAP = 2
LAST_CHARS_MIN = 24

Cell = str | Text


@dataclass(frozen=True)
class FittedTable:
    """Rows of text under headings. The last column wraps; the others keep their width or, one by one, go."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    numbers: frozenset[str]
    may_go: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        yield self.fitted(options.max_width)

    def fitted(self, width: int) -> Table:
        """The table with the columns that have room in this width."""
        kept = self.kept(width)
        made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for place in kept:
            name, is_last = self.columns[place], place == kept[-1]
            made.add_column(
                name,
                justify="right" if name in self.numbers else "left",
                no_wrap=not is_last,
                min_width=None if is_last else self.width_of(place),
                overflow="fold",
            )
        for cells in self.rows:
            made.add_row(*(cells[place] for place in kept))
        return made

    def kept(self, width: int) -> list[int]:
        """Which columns are shown: not those that say nothing, and only as many as fit."""
        kept = [place for place in range(len(self.columns)) if any(cells[place].plain for cells in self.rows)]
        for name in self.may_go:
            if self._needed(kept) <= width:
                break
            kept = [place for place in kept if self.columns[place] != name]
        return kept

    def width_of(self, place: int) -> int:
        """What a column needs to show everything on one line."""
        return max(cell_len(text) for text in (self.columns[place], *(cells[place].plain for cells in self.rows)))

    def _needed(self, kept: Sequence[int]) -> int:
        widths = [self.width_of(place) for place in kept]
        return sum(widths[:-1]) + min(widths[-1], LAST_CHARS_MIN) + GAP * (len(kept) - 1) if kept else 0


def table(
    *columns: str, rows: Iterable[Sequence[Cell]], numbers: Iterable[str] = (), may_go: Iterable[str] = ()
) -> FittedTable:
    """A table; `numbers` are set flush right, and those in `may_go` give way in that order where it is narrow."""
    made = tuple(tuple(Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells) for cells in rows)
    return FittedTable(columns, made, frozenset(numbers), tuple(may_go))
