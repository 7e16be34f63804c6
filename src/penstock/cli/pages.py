"""Lists, a page at a time: one way to answer for all commands that have one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.cli.session import Place, ask

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.engine import Penstock
    from penstock.operations.model import Page
    from penstock.resources import Document

__all__ = ["answer_page"]

T = TypeVar("T")


def answer_page(
    place: Place,
    question: Callable[[Penstock], Coroutine[Any, Any, Page[T]]],
    resource: Callable[[T], Document],
    view: Callable[[Sequence[T]], RenderableType],
    *,
    noun: str,
    as_json: bool,
) -> None:
    """Print part of a list, and how to get the next part."""
    from penstock.cli import views
    from penstock.cli.screen import Screen
    from penstock.resources import listing

    page = ask(place, question)

    def people() -> Iterator[RenderableType]:
        yield view(page.items) if page.items else views.nothing(noun)
        yield from views.more(page.next_cursor)

    Screen(as_json=as_json).answer(lambda: listing(page.items, resource, page.next_cursor), people)
