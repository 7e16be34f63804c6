"""The text of an API key: `psk_`, an id by which it is found, and a secret of 256 random bits.

The bits are as many as the hash has, so a fast hash will do: there is nothing to be guessed that a slow one would
protect. The hash is keyed with the id, so that it says nothing about another key.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from penstock.clock import Entropy

__all__ = ["ID_CHARS", "digest", "fits", "new_key", "parse"]

PREFIX = "psk"
ID_CHARS = 12
SECRET_CHARS = 64
TEXT = re.compile(rf"{PREFIX}_([0-9a-f]{{{ID_CHARS}}})_([0-9a-f]{{{SECRET_CHARS}}})", re.ASCII)


def new_key(entropy: Entropy) -> tuple[str, str]:
    """A new key: its id, and the whole text, which is shown once."""
    id, secret = f"{entropy.bits(4 * ID_CHARS):0{ID_CHARS}x}", f"{entropy.bits(4 * SECRET_CHARS):0{SECRET_CHARS}x}"
    return id, f"{PREFIX}_{id}_{secret}"


def parse(text: str) -> tuple[str, str] | None:
    """The id and the secret of a key; None when it is not one."""
    found = TEXT.fullmatch(text)
    return None if found is None else (found[1], found[2])


def digest(id: str, secret: str) -> str:
    """What is stored of the secret."""
    return hashlib.blake2b(secret.encode(), key=id.encode(), person=b"penstock api key", digest_size=32).hexdigest()


def fits(id: str, secret: str, stored: str) -> bool:
    """Whether the secret is the one that was stored; takes the same time either way."""
    return hmac.compare_digest(digest(id, secret), stored)
