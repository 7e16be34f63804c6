"""What every call for one tenant works with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.access.audit import Act, record
from penstock.clock import Clock, Entropy, operation_id
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import InvalidInput
from penstock.lifecycles.guards import Guard
from penstock.lifecycles.model import Handler
from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.tables import TENANT_CHARS

__all__ = ["Scope"]


@dataclass(frozen=True)
class Scope:
    """A database seen by one tenant. The graphs of published versions never change, so they are kept."""

    db: Database
    clock: Clock
    entropy: Entropy
    actor: str
    guards: Mapping[str, Guard]
    page_max: int
    call_timeout_s: float
    effects: Mapping[str, Handler] = field(default_factory=dict)
    tenant: str = ""
    graphs: dict[int, Graph] = field(default_factory=dict)
    missing_guards: set[str] = field(default_factory=set)  # that were told of
    tally: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if len(self.tenant) > TENANT_CHARS or not self.tenant.isprintable():
            raise InvalidInput(f"a tenant is printable text of at most {TENANT_CHARS} characters: {self.tenant!r:.80}")

    def new_guid(self) -> str:
        """A new guid; they sort by the time they are made."""
        return operation_id(self.clock, self.entropy)

    async def audit(
        self, tx: Connection, action: str, subject: str, *, actor: str | None = None, **details: Any
    ) -> None:
        """Note in the audit log what somebody did; the last thing in the transaction that does it."""
        known = {name: value for name, value in details.items() if value is not None}
        act = Act(self.tenant, actor or self.actor, f"lifecycle.{action}", subject, known or None)
        await record(self.db, tx, act)

    def page(self, limit: int) -> int:
        """How many entries a page of this wanted size has."""
        if limit < 1:
            raise InvalidInput(f"limit is {limit}; a page has at least 1 entry")
        return min(limit, self.page_max)
