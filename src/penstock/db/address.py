"""Database URLs: which database is meant, and whether its driver is there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from penstock.db.dialects import DIALECTS, Dialect, Postgresql
from penstock.errors import SettingsInvalid

__all__ = ["file_of", "parse", "schema_of"]

SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
KNOWN = "sqlite:///file.db, postgresql://user:password@host/name, mariadb://user:password@host/name"


def parse(url: str) -> tuple[URL, Dialect]:
    """The URL as the driver wants it, and its dialect; `SettingsInvalid` says what would be right."""
    try:
        given = make_url(url)
    except (ArgumentError, ValueError):
        raise SettingsInvalid(f"the database URL cannot be read; known forms are: {KNOWN}") from None
    scheme = given.drivername.partition("+")[0]
    for dialect in DIALECTS:
        if scheme in dialect.schemes:
            _require_driver(dialect)
            _require_place(dialect, given)
            return dialect.arrange(given.set(drivername=dialect.driver).difference_update_query(["schema"])), dialect
    raise SettingsInvalid(f"the database URL begins with {scheme!r}; known forms are: {KNOWN}")


def schema_of(url: str) -> str | None:
    """The schema that a URL names (`?schema=acme`); `SettingsInvalid` where there are none, or none is called so."""
    given = make_url(url)
    schema = given.query.get("schema")
    if schema is None:
        return None
    scheme = given.drivername.partition("+")[0]
    if scheme not in Postgresql.schemes:
        raise SettingsInvalid(
            f"the setting database_schema is {schema!r}, and only PostgreSQL has schemas; "
            "here give each tenant a database of its own in database_url"
        )
    if not isinstance(schema, str) or not SCHEMA.fullmatch(schema):
        raise SettingsInvalid(
            "a schema is named by small letters, digits and underscores, and does not begin with a digit or pg_; "
            f"found {schema!r}"
        )
    return schema


def file_of(url: URL) -> Path:
    """The file of a SQLite database, named plainly or as SQLite's own kind of URI."""
    name = url.database or ""
    return Path(unquote(name.removeprefix("file:")) if name.startswith("file:") else name).absolute()


def _require_driver(dialect: Dialect) -> None:
    if find_spec(dialect.module) is None:
        raise SettingsInvalid(
            f'{dialect.name} needs the driver {dialect.module}: pip install "penstock[{dialect.extra}]"'
        )


def _require_place(dialect: Dialect, url: URL) -> None:
    if not dialect.is_file:
        if not url.database:
            raise SettingsInvalid(f"the database URL {url} names no database; known forms are: {KNOWN}")
        return
    if not url.database or ":memory:" in url.database or url.query.get("mode") == "memory":
        raise SettingsInvalid("a SQLite database in memory forgets everything; name a file: sqlite:///penstock.db")
    if file_of(url).is_dir():
        raise SettingsInvalid(f"{file_of(url)} is a folder; name a database file")
    folder = file_of(url).parent
    if not folder.is_dir():
        raise SettingsInvalid(f"the folder of the database does not exist: {folder}")
