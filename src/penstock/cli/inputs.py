"""What users hand over on the command line: a file, metadata, options. Whatever is wrong is said before work begins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.problems import WrongUsage
from penstock.errors import FileRejected

__all__ = ["Meta", "MetaFile", "Set", "age", "existing_file", "metadata", "overrides"]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Meta = Annotated[
    list[str] | None, typer.Option("--meta", metavar="NAME=VALUE", help="One field of the metadata; repeatable.")
]
MetaFile = Annotated[
    str | None, typer.Option("--meta-file", metavar="FILE", help="A JSON object with metadata; --meta goes over it.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="STEP.OPTION=VALUE", help="An option for this run only, such as book.retries=5."),
]


def existing_file(written: str) -> Path:
    """The file, which must be there."""
    path = Path(written)
    if path.is_dir():
        raise FileRejected(f"{written} is a folder; name a file", code="missing")
    if not path.exists():
        raise FileRejected(f"there is no file {written}", code="missing")
    return path


def metadata(written: Iterable[str] | None, file: str | None) -> dict[str, Any] | None:
    """Metadata from a file and from single fields; None when nothing was given."""
    given = _json_object(file) if file is not None else {}
    return given | dict(_pairs("--meta", written)) or None


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
        raise FileRejected(f"there is no file {file} (--meta-file)", code="missing") from None
    except (OSError, ValueError) as error:
        raise FileRejected(f"--meta-file {file} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise FileRejected(f"--meta-file {file} must hold a JSON object; found {type(document).__name__}")
    return document


def _pairs(option: str, written: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    for text in written or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongUsage(f"{option} takes NAME=VALUE; found {text!r}")
        yield name, value
