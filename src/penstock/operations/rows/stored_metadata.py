"""The metadata of an operation, from its record."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import SecretsUnreadable
from penstock.pipeline import Definition
from penstock.secret_keys import SecretKeys

__all__ = ["load_metadata"]


def load_metadata(definition: Definition, operation: str, stored: Any, encrypted: str | None, keys: SecretKeys) -> Any:
    """The metadata of an operation, from its record; `SecretsUnreadable` when this process has not the key."""
    if encrypted is not None:
        try:
            stored = msgspec.json.decode(keys.decrypt(encrypted))
        except SecretsUnreadable as error:
            raise SecretsUnreadable(f"the secrets of operation {operation} cannot be decrypted: {error}") from error
    return definition.meta.load(stored)
