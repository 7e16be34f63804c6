"""What went wrong, for people and for machines: one line and an exit code, or a problem document."""

from __future__ import annotations

import json
import sys

import typer

from penstock.cli.documents import print_document
from penstock.errors import InvalidInput, PenstockError
from penstock.printable import printable

__all__ = [
    "EXIT_CODES",
    "EXIT_MEANINGS",
    "INTERRUPTED",
    "ONLY_SIGNALS_AWAITED",
    "WrongUsage",
    "exit_code",
    "report",
    "report_usage",
    "sentence",
]

ONLY_SIGNALS_AWAITED = 5
INTERRUPTED = 130

EXIT_MEANINGS = {
    0: "Completed; or the command did what it was asked, and found nothing wrong",
    1: "Failed, refused or not found; or a check found problems (verify, doctor, db check, ops validate)",
    2: "the command line is wrong",
    3: "CompletedWithErrors",
    4: "Cancelled",
    ONLY_SIGNALS_AWAITED: "all rows that are left wait for signals (run --no-wait); the operation can be continued",
    75: "a step blocked its process for longer than the setting stall_s; another worker goes on with the rows",
    INTERRUPTED: "interrupted; the operation can be continued, and the command for that was printed",
}


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
