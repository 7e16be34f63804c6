"""The REST API, as an ASGI application of its own or mounted into yours."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api.app import create_app
    from penstock.api.credentials import Credentials
    from penstock.api.guard import Authenticator, Closed, Trusted

__all__ = ["Authenticator", "Closed", "Credentials", "Trusted", "create_app"]

# Imported when first asked for: the dashboard uses the guard, and the application the dashboard.
_HOMES = {
    "penstock.api.app": ("create_app",),
    "penstock.api.credentials": ("Credentials",),
    "penstock.api.guard": ("Authenticator", "Closed", "Trusted"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
