"""Why a database cannot be used, in our own words: what was found, where, and what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.exc import DBAPIError, InvalidRequestError

from penstock.db.dialects import Dialect
from penstock.errors import (
    DatabaseDamaged,
    DatabaseRefused,
    DatabaseUnsafe,
    DiskFull,
    PenstockError,
    SettingsInvalid,
    Unavailable,
)

__all__ = ["Refusals", "option_refused"]

RIGHTS = "this user must be able to read and write it, its folder and the files -wal and -shm beside it"


class Refusals:
    """The errors of one database; `file` is that of a SQLite database."""

    def __init__(self, dialect: Dialect, file: Path | None) -> None:
        self._dialect, self._file = dialect, file
        self.place = dialect.name if file is None else f"the database file {file}"

    @property
    def restore(self) -> str:
        """What to do about damage."""
        if self._file is None:
            return "restore it from a backup"
        return (
            "stop all processes that use it and restore it from a backup, or save what can be read into a new file: "
            f'sqlite3 "{self._file}" .recover | sqlite3 recovered.db'
        )

    def in_use(self, error: DBAPIError) -> PenstockError | None:
        """What an error of a statement means; None when it is about the statement."""
        match self._dialect.trouble(error):
            case "full":
                return DiskFull(f"the disk of {self.place} is full: {error.orig}")
            case "damaged":
                return self._damaged(error)
            case "unavailable" if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
                return Unavailable(f"{self.place} cannot be written: {error.orig}; {RIGHTS}")
            case "unavailable":
                return Unavailable(f"{self.place} is away: {error.orig}")
        return None

    def at_connect(self, error: Exception) -> PenstockError:
        """Why there is no connection."""
        match error:
            case DBAPIError():
                return self._not_connected(error)
            case TypeError() | ValueError():
                return option_refused(error)
            case InvalidRequestError():  # a MySQL server behind a mariadb URL
                return DatabaseUnsafe(f"this server is not the database its URL names: {error}")
        return Unavailable(f"{self._dialect.name} cannot be reached: {str(error) or 'it does not answer'}")

    def _not_connected(self, error: DBAPIError) -> PenstockError:
        match self._dialect.trouble(error):
            case "damaged":
                return self._damaged(error)
            case "refused":
                return DatabaseRefused(f"{self._dialect.name} refused the connection: {error.orig}")
        if self._file is None:
            return Unavailable(f"{self._dialect.name} cannot be reached: {error.orig}")
        return Unavailable(f"{self.place} cannot be opened: {error.orig}; {RIGHTS}")

    def _damaged(self, error: DBAPIError) -> DatabaseDamaged:
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
            return DatabaseDamaged(
                f"{self._file} is no SQLite database, or its first page is damaged ({error.orig}): name the right file "
                f"(--db, PENSTOCK_DATABASE_URL), or {self.restore}"
            )
        return DatabaseDamaged(f"{self.place} is damaged ({error.orig}): {self.restore}")


def option_refused(error: Exception) -> SettingsInvalid:
    """What stands behind the question mark of a URL is not the driver's, or has a wrong value."""
    return SettingsInvalid(f"the database URL has an option the driver does not take: {error}")
