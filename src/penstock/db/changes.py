"""Changes of the schema beside workers that use it: nobody waits for one longer than for any other lock.

On a server each statement commits by itself and can be made again, so that an upgrade goes on after a kill.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from alembic import op
from sqlalchemy import Column, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util.concurrency import await_

from penstock.db.dialects import DIALECTS

__all__ = ["add_column", "create_index", "patiently"]

log = logging.getLogger("penstock.db")

PAUSE_S = 1.0


def patiently(change: Callable[[], object]) -> None:
    """Make a change, and make way when others hold what it needs.

    While a statement waits for a table, everybody else queues behind it: so it waits for a moment only (see
    `Dialect.before_change`), and comes again when they have been through.
    """
    bind = op.get_bind()
    dialect = next(dialect for dialect in DIALECTS if dialect.name == bind.dialect.name)
    has_waited = False
    while True:
        try:
            for statement in dialect.before_change:
                bind.exec_driver_sql(statement)
            change()
        except DBAPIError as error:
            if dialect.is_file or dialect.trouble(error) != "contended":
                raise
        else:
            return
        if not has_waited:
            log.warning("the upgrade waits for transactions that are under way; others are not held up")
            has_waited = True
        await_(asyncio.sleep(PAUSE_S))


def add_column(table: str, column: Column[object]) -> None:
    """Add a column that may be null, unless it is there."""
    # SQLite has no IF NOT EXISTS for columns; there, an upgrade is one transaction.
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    patiently(partial(op.add_column, table, column, if_not_exists=None if is_sqlite else True))


def create_index(name: str, table: str, columns: list[str]) -> None:
    """Index a table while others write to it, unless that was done."""
    if op.get_bind().dialect.name == "postgresql":
        patiently(partial(_index_concurrently, name, table, columns))
    else:
        patiently(partial(op.create_index, name, table, columns, if_not_exists=True))


def _index_concurrently(name: str, table: str, columns: list[str]) -> None:
    bind = op.get_bind()
    # It waits until all transactions that were under way have ended, and holds nobody up meanwhile.
    bind.exec_driver_sql("SET lock_timeout = 0")
    valid = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")
    if bind.execute(valid, {"name": name}).scalar() is False:  # given up half-way: it is there, but of no use
        op.drop_index(name, postgresql_concurrently=True)
    op.create_index(name, table, columns, postgresql_concurrently=True, if_not_exists=True)
