"""Idempotency keys: a request is carried out once, however often it is sent."""

from penstock.idempotency.claim import Claim
from penstock.idempotency.model import Address, KeyRecord
from penstock.idempotency.service import Attempt, Idempotency, Replay

__all__ = ["Address", "Attempt", "Claim", "Idempotency", "KeyRecord", "Replay"]
