"""Sessions of people who logged in with an API key: a sealed cookie that names the key and when it was opened.

Nothing is stored, and the key is looked at with every request: when it is revoked or expires, so are its sessions.
"""

from __future__ import annotations

import msgspec

from penstock.access.key_text import parse
from penstock.access.keys import ApiKeys
from penstock.access.model import Principal
from penstock.clock import Clock
from penstock.errors import SecretsUnreadable
from penstock.secret_keys import SecretKeys

__all__ = ["COOKIE", "SECURE_COOKIE", "Sessions", "cookie_header"]

COOKIE = "penstock-session"
SECURE_COOKIE = "__Host-penstock-session"  # browsers take it by https alone, and from this host alone
COOKIE_CHARS = 1000


class _Sealed(msgspec.Struct, array_like=True, frozen=True):
    purpose: str
    key: str
    opened_us: int


class Sessions:
    """Opens and reads sessions."""

    def __init__(self, keys: ApiKeys, secrets: SecretKeys, *, clock: Clock, lasts_s: float) -> None:
        self._keys, self._secrets, self._clock, self._lasts_s = keys, secrets, clock, lasts_s

    async def open(self, key: str) -> tuple[str, Principal] | None:
        """The cookie's value and who has logged in; None when the key is not accepted.

        `SettingsInvalid` when there is no secret key to seal it with.
        """
        principal, parsed = await self._keys.principal(key), parse(key)
        if principal is None or parsed is None:
            return None
        content = _Sealed("session", parsed[0], self._clock.now_us())
        sealed = self._secrets.encrypt(msgspec.json.encode(content))
        await self._keys.note_login(parsed[0], principal)
        return sealed, principal

    async def principal(self, cookie: str) -> Principal | None:
        """Whose session it is; None when it is none of ours, is over, or its key may not be used any more."""
        if not cookie or len(cookie) > COOKIE_CHARS:
            return None
        try:
            found = msgspec.json.decode(self._secrets.decrypt(cookie), type=_Sealed)
        except (SecretsUnreadable, msgspec.MsgspecError, UnicodeError):
            return None
        age_s = (self._clock.now_us() - found.opened_us) / 1e6
        if found.purpose != "session" or not -60 <= age_s < self._lasts_s:
            return None
        return await self._keys.owner(found.key)


def cookie_header(value: str, *, is_secure: bool, lasts_s: float, path: str = "/") -> str:
    """The header that sets the cookie, or with an empty value and no time removes it.

    `path` counts only without https: the secure one belongs to the whole host by its name.
    """
    if is_secure:
        return f"{SECURE_COOKIE}={value}; Max-Age={round(lasts_s)}; Path=/; HttpOnly; SameSite=Lax; Secure"
    return f"{COOKIE}={value}; Max-Age={round(lasts_s)}; Path={path or '/'}; HttpOnly; SameSite=Lax"
