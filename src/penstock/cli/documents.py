"""Stdout carries JSON documents alone: what steps, their libraries or their child processes print goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from typing import TextIO

__all__ = ["print_document", "stdout_for_documents"]

STDOUT, STDERR = 1, 2
_stdout = ContextVar[TextIO | None]("stdout", default=None)  # the process's own, while others have stderr for it


@contextmanager
def stdout_for_documents() -> Iterator[None]:
    """Until the end, only `print_document` writes to stdout."""
    with _set_apart() as own, redirect_stdout(sys.stderr):
        token = _stdout.set(own)
        try:
            yield
        finally:
            _stdout.reset(token)


def print_document(text: str) -> None:
    """Print a document at once."""
    print(text, file=_stdout.get() or sys.stdout, flush=True)


@contextmanager
def _set_apart() -> Iterator[TextIO]:
    """The stdout of this process; its number is stderr's for a while, so that child processes inherit that."""
    own = sys.stdout
    try:
        is_real = own.fileno() == STDOUT
        own.flush()
        kept = os.dup(STDOUT) if is_real else None
        if kept is not None:
            os.dup2(STDERR, STDOUT)
    except (OSError, ValueError):  # it is no file, or stderr is closed
        kept = None
    if kept is None:
        yield own
        return
    apart = os.fdopen(os.dup(kept), "w", encoding="utf-8", errors=own.errors)  # JSON is, whatever the terminal
    try:
        yield apart
    finally:
        with suppress(BrokenPipeError):
            apart.close()
        os.dup2(kept, STDOUT)
        os.close(kept)
