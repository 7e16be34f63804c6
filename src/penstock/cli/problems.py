"""What went wrong, for people and for machines: one line and an exit code, or a problem document."""

from __future__ import annotations

import json
import sys

import typer

from penstock.cli.documents import print_document
from penstock.cli.printable import printable
from penstock.errors import InvalidInput, PenstockError

__all__ = ["EXIT_CODES", "INTERRUPTED", "WrongUsage", "exit_code", "report", "report_usage", "sentence"]

INTERRUPTED = 130


class WrongUsage(InvalidInput):
    """The command line itself is wrong."""


# The first class that fits an error decides.
EXIT_CODES: tuple[tuple[type[PenstockError], int], ...] = ((WrongUsage, 2), (PenstockError, 1))


def exit_code(error: PenstockError) -> int:
    """With which code the process ends after this error."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def report(error: PenstockError, *, as_json: bool) -> None:
    """Tell the user; with `--json` the problem document is the answer."""
    if as_json:
        from penstock.resources import problem

        _print_json(problem(error))
    else:
        print(f"penstock: {sentence(error)}", file=sys.stderr)


def report_usage(error: typer.TyperException, *, as_json: bool) -> None:
    """Tell the user what is wrong with the command line, and where help is."""
    message = error.format_message()
    if as_json:
        report(WrongUsage(message), as_json=True)
        return
    context = getattr(error, "ctx", None)
    if message:  # there is none after help was shown because nothing was given
        print(f"penstock: {printable(message)}", file=sys.stderr)
    if message and context is not None:
        print(f"{context.get_usage()}\nTry '{context.command_path} --help' for help.", file=sys.stderr)


def sentence(error: PenstockError) -> str:
    """The error's message; several faults stand on lines of their own."""
    message, faults = str(error), getattr(error, "faults", ())
    if len(faults) < 2:
        return printable(message)
    head = message.removesuffix("; ".join(map(str, faults))).rstrip(": ")
    return "\n".join([printable(head), *(f"  - {printable(str(fault))}" for fault in faults)])


def _print_json(document: object) -> None:
    print_document(json.dumps(document, indent=2, ensure_ascii=False, default=str))
