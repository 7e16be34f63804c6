"""What is asked and done when an instance of a lifecycle enters or leaves a state; instances found by their flags."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.db.changes import add_column, create_index
from penstock.db.types import Json

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    add_column("penstock_lifecycle_state", sa.Column("on_entry", Json))
    add_column("penstock_lifecycle_state", sa.Column("on_exit", Json))
    create_index("ix_penstock_lifecycle_instance_flags", "penstock_lifecycle_instance", ["tenant", "flags", "id"])
