"""What users give on the command line: a file, metadata, options. All of it is checked before work starts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.completion import complete_operation_name
from penstock.cli.problems import WrongUsage
from penstock.errors import FileRejected, MetadataInvalid

if TYPE_CHECKING:
    from penstock.pipeline import Definition

__all__ = [
    "FILE_ARGUMENT",
    "NAME_ARGUMENT",
    "InputFile",
    "Meta",
    "MetaFile",
    "OperationName",
    "Set",
    "age",
    "existing_file",
    "metadata",
    "output_file",
    "overrides",
]

NAME_ARGUMENT = typer.Argument(
    metavar="OPERATION", help="The operation's name.", autocompletion=complete_operation_name
)
FILE_ARGUMENT = typer.Argument(metavar="FILE", help="The file: .csv, .tsv, .json, .jsonl or .ndjson.")
OperationName = Annotated[str, NAME_ARGUMENT]
InputFile = Annotated[str, FILE_ARGUMENT]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Meta = Annotated[
    list[str] | None, typer.Option("--meta", metavar="NAME=VALUE", help="One metadata field; can be repeated.")
]
MetaFile = Annotated[
    str | None,
    typer.Option("--meta-file", metavar="FILE", help="A JSON file with the metadata; --meta overrides single fields."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="STEP.OPTION=VALUE",
        help="Override an option for this operation only, such as book.retries=5; can be repeated.",
    ),
]


def existing_file(written: str) -> Path:
    """The file, which must be there."""
    path = Path(written)
    if not written:
        raise FileRejected("the name of the file is empty", code="missing")
    if path.is_dir():
        raise FileRejected(f"{written} is a folder, not a file", code="missing")
    if not path.exists():
        raise FileRejected(f"file not found: {written}", code="missing")
    if not os.access(path, os.R_OK):
        raise FileRejected(f"{written}: Permission denied", code="unreadable")
    return path


def output_file(option: str, written: str | Path) -> Path:
    """The file to write: what keeps it from being written is told before anything is done."""
    path = Path(written)
    if path.is_dir():
        raise WrongUsage(f"{option}: {written} is a folder, not a file")
    if not path.parent.is_dir():
        raise WrongUsage(f"{option}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise WrongUsage(f"{option}: this user may not write {written}")
    return path


def metadata(
    written: Iterable[str] | None, file: str | None, definitions: Iterable[Definition] = ()
) -> dict[str, Any] | None:
    """Metadata from a file and from single fields; None when nothing was given.

    A single field that the operation does not have is a slip of the pen, where a model would ignore it.
    """
    given = _json_object(file) if file is not None else {}
    single = dict(_pairs("--meta", written))
    if faults := [fault for definition in definitions for fault in definition.meta.unknown(single)]:
        raise MetadataInvalid("--meta " + "; ".join(map(str, faults)), faults)
    return given | single or None


def overrides(written: Iterable[str] | None) -> dict[str, str]:
    """Options by their dotted names."""
    return dict(_pairs("--set", written))


def age(option: str, written: str) -> timedelta:
    """A span of time such as 90d or 12h."""
    found = re.fullmatch(r"(\d{1,6})([smhdw])", written.strip())
    if found is None:
        raise WrongUsage(f"{option} takes a number and s, m, h, d or w, such as 90d; found {written!r}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _json_object(file: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileRejected(f"file not found: {file} (--meta-file)", code="missing") from None
    except (OSError, ValueError) as error:
        raise FileRejected(f"--meta-file {file} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise FileRejected(f"--meta-file {file} must contain a JSON object; found {type(document).__name__}")
    return document


def _pairs(option: str, written: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    for text in written or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongUsage(f"{option} takes NAME=VALUE; found {text!r}")
        yield name, value
