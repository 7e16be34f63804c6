"""A client of the REST API: the calls of `Penstock.operations` and `Penstock.signals`, answered by a server.

    async with AsyncClient("https://bulk.example.com", key) as client:
        made = await client.operations.create("price-update", file="prices.csv")
        done = await client.operations.wait(made.id)

`Client` is the same for code without an event loop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.asynchronous import AsyncClient
    from penstock.client.synchronous import Client

__all__ = ["AsyncClient", "Client"]

# Imported when first asked for: the command line needs no HTTP unless it is told an address.
_HOMES = {"AsyncClient": "penstock.client.asynchronous", "Client": "penstock.client.synchronous"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
