"""Who calls, and what they may do: frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ROLES", "Principal", "Role"]

Role = Literal["read", "operate", "admin"]

# Each role includes those before it.
ROLES: tuple[Role, ...] = ("read", "operate", "admin")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request: a name for the log, roles, the operations they may see (None: all), and their tenant."""

    name: str
    roles: frozenset[Role]
    operations: frozenset[str] | None = None
    tenant: str = ""

    def has_role(self, role: Role) -> bool:
        """Whether they have this role, or one that includes it."""
        return any(ROLES.index(own) >= ROLES.index(role) for own in self.roles)

    def may_see(self, operation: str) -> bool:
        """Whether they may see operations of this name; names ignore case."""
        return self.operations is None or operation.casefold() in {name.casefold() for name in self.operations}
