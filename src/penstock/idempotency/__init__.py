"""Idempotency keys: a request is carried out once, however often it is sent."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.idempotency.claim import Claim
    from penstock.idempotency.middleware import IdempotencyMiddleware, one_caller
    from penstock.idempotency.model import Address, KeyRecord
    from penstock.idempotency.routes import Rule, for_methods, for_paths, idempotent, marked_routes
    from penstock.idempotency.service import Attempt, Idempotency, Replay

__all__ = [
    "Address",
    "Attempt",
    "Claim",
    "Idempotency",
    "IdempotencyMiddleware",
    "KeyRecord",
    "Replay",
    "Rule",
    "for_methods",
    "for_paths",
    "idempotent",
    "marked_routes",
    "one_caller",
]

# Imported when first asked for: who wants the table of states needs no database.
_HOMES = {
    "penstock.idempotency.claim": ("Claim",),
    "penstock.idempotency.middleware": ("IdempotencyMiddleware", "one_caller"),
    "penstock.idempotency.model": ("Address", "KeyRecord"),
    "penstock.idempotency.routes": ("Rule", "for_methods", "for_paths", "idempotent", "marked_routes"),
    "penstock.idempotency.service": ("Attempt", "Idempotency", "Replay"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
