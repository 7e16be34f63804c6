"""SQLite's write-ahead log: when it is folded back into the file, and why nobody may write meanwhile.

Releases before 3.51.3 can corrupt a file when a checkpoint begins just as a writer starts the log anew: the checkpoint
goes on with what it knew of the old log, and marks as done what it never saw. One checkpoint and one writer are enough,
so no connection of ours folds the log by itself (`wal_autocheckpoint=0`); it is done here, under the write lock. The
checkpoint that SQLite makes when the last connection closes is safe: it happens only while no other one is open.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from penstock.failpoints import hit

__all__ = ["LOG_BYTES", "WriteAheadLog"]

log = logging.getLogger("penstock.db")

# About a thousand pages. SQLite cuts a log that begins anew to this size (`journal_size_limit`): a longer file is a
# longer log, and below it space is written over, which is cheaper than appending.
LOG_BYTES = 4 << 20
# Readers that follow each other closely would keep a log from ever beginning anew. From this size on the write lock is
# kept for a moment: who begins to read now needs no log, and the others leave.
CROWDED_BYTES = 4 * LOG_BYTES
READERS_S = 0.2
LOOK_S = 0.01


class WriteAheadLog:
    """The log beside one database file, as one process sees it."""

    def __init__(self, file: Path) -> None:
        self._file = file.resolve()  # as SQLite does, which names the log after it
        self._path = f"{self._file}-wal"
        self._due_bytes = LOG_BYTES

    def tend(self) -> None:
        """Fold the log if it has grown long. Call it after a commit, on any thread; it never fails, and gives way."""
        size = self._size()
        if size <= LOG_BYTES:
            self._due_bytes = LOG_BYTES
        elif size > self._due_bytes:
            try:
                self._try_to_fold(size)
            except sqlite3.Error as error:  # what was committed is safe in the log
                log.warning("the write-ahead log of %s could not be folded: %s", self._file, error)

    def _size(self) -> int:
        # Never open the file to look: closing it would drop the locks that SQLite has on it in this process.
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _try_to_fold(self, size: int) -> None:
        with closing(self._connect()) as holder, closing(self._connect()) as folder:
            try:
                holder.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                return  # somebody is writing, and will see after the commit what we see
            hit("fold:before")
            _fold(folder, patience_s=READERS_S if size > CROWDED_BYTES else 0.0)
            holder.execute("ROLLBACK")
        # A reader may keep the log from beginning anew: try again when it has grown by a quarter.
        self._due_bytes = size + max(LOG_BYTES, size) // 4

    def _connect(self) -> sqlite3.Connection:
        # Not one that would be made: the file may have been moved away.
        return sqlite3.connect(f"{self._file.as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None)


def _fold(connection: sqlite3.Connection, *, patience_s: float) -> None:
    """Copy what no reader still needs from the log into the file, again and again while there is patience."""
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA schema_version").fetchall()  # opens the log
    ends = time.monotonic() + patience_s
    while True:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if time.monotonic() >= ends:
            return
        time.sleep(LOOK_S)
