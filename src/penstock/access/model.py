"""Who asks, and with which key: values without a database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from penstock.errors import Fault, InvalidInput

__all__ = ["NAME_CHARS", "ROLES", "TENANT_CHARS", "ApiKey", "Principal", "Role", "implied", "require_grant"]

Role = Literal["read", "operate", "admin"]

ROLES: tuple[Role, ...] = ("read", "operate", "admin")  # each may do what those before it may
NAME_CHARS = 200
TENANT_CHARS = 64


def implied(role: str) -> frozenset[Role]:
    """The roles that this one amounts to: admin may operate, and who operates may read."""
    return frozenset(ROLES[: ROLES.index(role) + 1]) if role in ROLES else frozenset()


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: their roles, the operations they may use (None: all), and the one tenant whose things they see."""

    name: str
    roles: frozenset[Role]
    operations: frozenset[str] | None = None
    tenant: str = ""

    def has_role(self, role: Role) -> bool:
        """Whether they have this role, or one that includes it."""
        return any(ROLES.index(own) >= ROLES.index(role) for own in self.roles)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as it is listed: everything but the secret, of which only a hash is stored."""

    id: str
    name: str
    role: str
    operations: frozenset[str] | None
    tenant: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    last_used_at: datetime | None

    def state_at(self, now: datetime) -> str:
        """Active, Expired or Revoked."""
        if self.revoked_at is not None:
            return "Revoked"
        return "Expired" if self.expires_at is not None and self.expires_at <= now else "Active"

    @property
    def principal(self) -> Principal:
        """Who asks with this key."""
        return Principal(self.name, implied(self.role), self.operations, self.tenant)


def _faults(name: str, role: str, tenant: str, operations: Iterable[str] | None) -> list[Fault]:
    """Everything that is wrong with what a key should be given."""
    faults = []
    if not (1 <= len(name) <= NAME_CHARS and name.isprintable() and name.strip()):
        faults.append(Fault(f"takes 1 to {NAME_CHARS} printable characters; found {name!r:.80}", "name"))
    if role not in ROLES:
        faults.append(Fault(f"is one of {', '.join(ROLES)}; found {role!r:.80}", "role"))
    if len(tenant) > TENANT_CHARS or not tenant.isprintable():
        faults.append(Fault(f"is printable text of at most {TENANT_CHARS} characters; found {tenant!r:.80}", "tenant"))
    for operation in operations or ():
        if not 1 <= len(operation) <= NAME_CHARS:
            faults.append(Fault(f"takes names of operations; found {operation!r:.80}", "operations"))
    return faults


def require_grant(name: str, role: str, tenant: str, operations: Iterable[str] | None) -> None:
    """`InvalidInput` with every fault when no key can be made so."""
    faults = _faults(name, role, tenant, operations)
    if faults:
        raise InvalidInput("API key: " + "; ".join(map(str, faults)), faults)
