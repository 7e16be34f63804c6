"""Where in a storage the bytes of a blob are. Names are made of ids alone; a user's file name is never part of one.

    staged/<id>                          bytes that are not checked yet
    sealed/shared/<id>.<sha256>          bytes of a Valid blob of no tenant
    sealed/tenant-<name>/<id>.<sha256>   the same of a tenant
    storage-<mark>, marks/<mark>         tells this folder or bucket from all others

Each blob has an object of its own, also when two hold the same bytes: so deleting one never concerns another. Ids begin
with the time, so a list of a tenant's objects is in the order in which they were made.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

__all__ = ["SEALED", "STAGED", "blob_of", "sealed_name", "staged_name", "tenant_folder"]

STAGED = "staged/"
SEALED = "sealed/"
TENANT_CHARS_MAX = 80  # as it is written in a name; longer ones are hashed, so that a key has room for it

_OBJECT = re.compile(r"(?:staged/|sealed/[^/]+/)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:\.[0-9a-f]{64})?")


def staged_name(blob: str) -> str:
    """Where bytes are until they were checked."""
    return f"{STAGED}{blob}"


def sealed_name(tenant: str, blob: str, sha256: str) -> str:
    """Where the checked bytes of a blob are."""
    return f"{tenant_folder(tenant)}{blob}.{sha256}"


def tenant_folder(tenant: str) -> str:
    """What the names of a tenant's sealed objects begin with."""
    if not tenant:
        return f"{SEALED}shared/"
    written = quote(tenant, safe="")
    if len(written) > TENANT_CHARS_MAX:
        return f"{SEALED}tenants-{hashlib.sha256(tenant.encode()).hexdigest()}/"
    return f"{SEALED}tenant-{written}/"


def blob_of(name: str) -> str | None:
    """The id of the blob that an object belongs to; None when the name is none of ours."""
    found = _OBJECT.fullmatch(name)
    return found.group(1) if found else None
