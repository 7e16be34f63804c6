"""Lists, a page at a time: one way to answer for all commands that have one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.cli.session import Place, ask, exact_id

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.engine import Penstock
    from penstock.operations.model import Page
    from penstock.resources import Document

__all__ = ["Part", "answer_page"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a list that is asked for: so many entries behind a cursor, of one operation where one is named."""

    operation: str
    cursor: str | None
    limit: int


Question = Callable[["Penstock", Part], Coroutine[Any, Any, "Page[T]"]]


def answer_page(
    place: Place,
    question: Question[T],
    resource: Callable[[T], Document],
    view: Callable[[Sequence[T]], RenderableType],
    *,
    operation: str | None = None,
    cursor: str | None,
    limit: int,
    noun: str,
    as_json: bool,
) -> None:
    """Print part of a list, and how to get the next part. `question` may answer with less than it is asked for."""
    from penstock.cli import views
    from penstock.cli.screen import Screen
    from penstock.resources import listing

    async def collect(penstock: Penstock) -> Page[T]:
        of = "" if operation is None else await exact_id(penstock, operation)
        return await _collected(penstock, question, Part(of, cursor, limit))

    page = ask(place, collect)

    def people() -> Iterator[RenderableType]:
        yield view(page.items) if page.items else views.nothing(noun)
        yield from views.more(page.next_cursor)

    Screen(as_json=as_json).answer(lambda: listing(page.items, resource, page.next_cursor), people)


async def _collected(penstock: Penstock, question: Question[T], part: Part) -> Page[T]:
    """As many entries as were asked for; the engine's own pages are smaller (`page_max`)."""
    from penstock.operations.model import Page

    items: list[T] = []
    while True:
        page = await question(penstock, replace(part, limit=part.limit - len(items)))
        items += page.items
        if page.next_cursor is None or len(items) >= part.limit:
            return Page(items, page.next_cursor)
        part = replace(part, cursor=page.next_cursor)
