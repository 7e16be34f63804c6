"""A faithful stand-in for a Dataverse environment, with scripted faults and a ledger of what really happened.

async with DataverseServer([Table("account", "accounts", columns=["name"])], {"app-1": Quota()}) as server:
    server.faults.add(throttled("requests", retry_after_s=2), table="account", call=1)
    ...  # drive a client against server.url with server.credential("app-1")
    assert not server.ledger.doubled("account", "name")
"""

from .credentials import EndpointCredential
from .faults import Drop, Held, MissingParts, Slow, Truncated
from .ledger import Ledger
from .limits import Pace, Quota
from .problems import (
    Problem,
    deadlock,
    plugin_aborted,
    privilege_missing,
    race,
    sql_timeout,
    throttled,
    token_refused,
    too_large,
)
from .server import DataverseServer
from .tables import Column, Lookup, Table

__all__ = [
    "Column",
    "DataverseServer",
    "Drop",
    "EndpointCredential",
    "Held",
    "Ledger",
    "Lookup",
    "MissingParts",
    "Pace",
    "Problem",
    "Quota",
    "Slow",
    "Table",
    "Truncated",
    "deadlock",
    "plugin_aborted",
    "privilege_missing",
    "race",
    "sql_timeout",
    "throttled",
    "token_refused",
    "too_large",
]
