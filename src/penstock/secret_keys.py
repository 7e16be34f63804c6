"""The keys that encrypt secrets before they are stored: those of the setting, and one in a file beside the database."""

from __future__ import annotations

import base64
import os
import secrets
from contextlib import suppress
from pathlib import Path

from penstock.errors import SecretsUnreadable, SettingsInvalid

__all__ = ["SecretKeys", "is_key", "new_key"]

SETTING = "PENSTOCK_SECRET_KEY"
KEY_BYTES = 32


def new_key() -> str:
    """A key for the setting `secret_key`."""
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def is_key(text: str) -> bool:
    """Whether this is a key, as `new_key` makes them."""
    try:
        return len(base64.urlsafe_b64decode(text)) == KEY_BYTES
    except ValueError:
        return False


class SecretKeys:
    """One key or several: the first encrypts, all decrypt.

    `given` are the setting's keys, with commas or spaces between them. Where there are none, a key file is made when
    the first secret comes. One that is there decrypts in any case, so that a key can be set later.
    """

    def __init__(self, given: str | None, file: Path | None = None) -> None:
        self._given, self._file = tuple((given or "").replace(",", " ").split()), file

    def encrypt(self, clear: bytes) -> str:
        """The text to store; `SettingsInvalid` when there is no key."""
        from cryptography.fernet import Fernet

        if not self._given and self._file is None:
            raise SettingsInvalid(
                f"there is no key to encrypt them with: set {SETTING} (or secret_key in penstock.toml) to the same key "
                "in every process; `penstock config --new-key` makes one"
            )
        key = self._given[0] if self._given else self._read_file() or self._make_file()
        return Fernet(key).encrypt(clear).decode()

    def decrypt(self, stored: str) -> bytes:
        """What was encrypted; `SecretsUnreadable` when no key fits."""
        from cryptography.fernet import Fernet, InvalidToken, MultiFernet

        keys = [*self._given, *filter(None, [self._read_file()])]
        if not keys:
            where = f", and there is no file {self._file}" if self._file is not None else ""
            raise SecretsUnreadable(
                f"{SETTING} (secret_key) is not set{where}: set it to the key of the other processes"
            )
        try:
            return MultiFernet([Fernet(key) for key in keys]).decrypt(stored)
        except (InvalidToken, ValueError):  # text that is not ASCII is no token either
            where = SETTING if self._given else str(self._file)
            raise SecretsUnreadable(
                f"they were encrypted with another key than that of {where}: set {SETTING} (secret_key) to that key; "
                "it takes several, separated by commas"
            ) from None

    def _read_file(self) -> str | None:
        if self._file is None:
            return None
        try:
            key = self._file.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise SecretsUnreadable(f"the key file {self._file} cannot be read: {error}") from error
        if not is_key(key):
            raise SecretsUnreadable(f"the key file {self._file} does not hold a key; restore it from a backup")
        return key

    def _make_file(self) -> str:
        """A key file, complete from its first moment; of two processes that make it, the first wins."""
        assert self._file is not None
        made = self._file.with_name(f"{self._file.name}.{secrets.token_hex(8)}")
        try:
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, f"{new_key()}\n".encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with suppress(FileExistsError):
                os.link(made, self._file)
            _sync(self._file.parent)
        except OSError as error:
            raise SettingsInvalid(f"no key file {self._file} can be made: {error}; set {SETTING} instead") from error
        finally:
            made.unlink(missing_ok=True)
        key = self._read_file()
        assert key is not None
        return key


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
