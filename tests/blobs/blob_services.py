"""Services of blobs for tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from penstock.blobs.checks.policy import BlobPolicy
from penstock.blobs.service import Blobs
from penstock.blobs.storage import Storage
from penstock.clock import Entropy, ManualClock
from penstock.db.database import Database


def blobs_on(db: Database, storage: Storage, clock: ManualClock, **policy: Any) -> Blobs:
    """A service of blobs."""
    return Blobs(db, storage, BlobPolicy(**policy), clock=clock, entropy=Entropy(), actor="ana", page_max=1000)


Opening = Callable[..., AbstractAsyncContextManager[Blobs]]
