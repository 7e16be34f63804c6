"""Signatures as Standard Webhooks defines them: HMAC-SHA256 over id, time and body, one for each secret in use."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable

from penstock.errors import InvalidInput

__all__ = ["PREFIX", "check_secret", "new_secret", "signature"]

PREFIX = "whsec_"
BYTES_NEW = 32
BYTES_MIN, BYTES_MAX = 24, 64


def new_secret(bits: Callable[[int], int]) -> str:
    """A secret that nobody knows yet, from so many random bits."""
    return PREFIX + base64.b64encode(bits(8 * BYTES_NEW).to_bytes(BYTES_NEW, "big")).decode()


def check_secret(secret: str) -> str:
    """The secret itself, or `InvalidInput`; what was found is not repeated."""
    try:
        size = len(_key(secret))
    except (binascii.Error, ValueError):
        size = 0
    if not secret.startswith(PREFIX) or not BYTES_MIN <= size <= BYTES_MAX:
        raise InvalidInput(f"a secret is {PREFIX!r} and {BYTES_MIN} to {BYTES_MAX} bytes in base64")
    return secret


def signature(secrets: Iterable[str], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: receivers accept a message if they know one of the secrets."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.new(_key(secret), signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
