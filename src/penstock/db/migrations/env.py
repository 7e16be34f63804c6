"""Runs the migrations on the connection, and inside the transaction, of the caller."""

from __future__ import annotations

from alembic import context

from penstock.db.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=False,
)
context.run_migrations()
