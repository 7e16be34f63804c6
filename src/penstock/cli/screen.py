"""The one place that prints: renderables for people, one JSON document for machines."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from penstock.cli.documents import print_document

__all__ = ["PIPE_COLUMNS", "Screen"]

# A pipe has no width: lines are as long as what they say, so that grep and cut find whole values.
PIPE_COLUMNS = 4000


class Screen:
    """Where a command's answer goes. With `as_json` stdout carries the document alone, people's text goes to stderr."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    def answer(self, document: Callable[[], Any], people: Callable[[], Iterable[RenderableType]]) -> None:
        """Print the command's answer in the form that was asked for."""
        if self.as_json:
            self.document(document())
        else:
            self.show(*people())

    def document(self, document: Any) -> None:
        """Print the JSON document."""
        print_document(json.dumps(document, indent=2, ensure_ascii=False, default=str))

    def show(self, *parts: RenderableType) -> None:
        """Print for people."""
        target = sys.stderr if self.as_json else sys.stdout
        if target.isatty():
            _print(Console(file=target, highlight=False), parts)
            return
        text = io.StringIO()
        _print(Console(file=text, highlight=False, width=_pipe_columns(), no_color=True), parts)
        print("\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n")), file=target)


def _print(console: Console, parts: Iterable[RenderableType]) -> None:
    # One by one: joined, texts would lose what each says about wrapping.
    for part in parts:
        is_command = isinstance(part, Text) and part.no_wrap  # rich would break it: a command must stay one line
        console.print(part, soft_wrap=bool(is_command))


def _pipe_columns() -> int:
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdigit() and int(given) > 0 else PIPE_COLUMNS
