"""Names of tables and columns: how callers write them and how SQL must."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from penstock.targets.model import BadInput

__all__ = ["Quote", "ansi", "backticks", "listed", "split_name"]

Quote = Callable[[str], str]
PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def split_name(name: str) -> tuple[str | None, str]:
    """The schema, if one is named, and the table of `table`, `schema.table` or `"a.b"."c"`; case matters."""
    parts, at = [], 0
    while at <= len(name):
        found = PART.match(name, at)
        if found is None or name[found.end() : found.end() + 1] not in ("", "."):
            break
        parts.append(found[1].replace('""', '"') if found[1] else found[2].strip())
        at = found.end() + 1
    if at != len(name) + 1 or not 1 <= len(parts) <= 2 or not all(parts) or "\0" in name:
        raise BadInput(f'{name!r} is not the name of a table; write table, schema.table or "a.b"."c"')
    return (parts[0] if len(parts) == 2 else None), parts[-1]


def ansi(name: str) -> str:
    """A name for PostgreSQL and SQLite."""
    return '"' + name.replace('"', '""') + '"'


def backticks(name: str) -> str:
    """A name for MariaDB, in a statement whose values are put in with `%s`."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def listed(names: Iterable[str], quote: Quote = ansi) -> str:
    """Names with commas between."""
    return ", ".join(map(quote, names))
