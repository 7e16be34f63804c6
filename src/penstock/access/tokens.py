"""Bearer tokens of an OpenID Connect issuer: checked whole, and turned into who asks.

Only signatures that need a private key are accepted, and only the algorithms of the setting: a token's header does not
choose. Times are judged by our clock, which is the database's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from penstock.access.model import NAME_CHARS, ROLES, TENANT_CHARS, Principal, Role
from penstock.clock import Clock
from penstock.errors import SettingsInvalid, Unauthenticated

if TYPE_CHECKING:
    from jwt import PyJWK

    from penstock.settings import Settings

__all__ = ["Issuer", "KeySource", "TokenOutOfTime", "Tokens", "issuer_of", "principal_of"]

TOKEN_CHARS = 16_384
REMEMBERED_MAX = 10_000
REFUSED = "the token is not accepted"


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens are accepted, and what their claims mean."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway_s: float
    name_claim: str
    roles_claim: str
    roles: Mapping[str, Role]
    tenant_claim: str | None
    operations_claim: str | None


def issuer_of(settings: Settings) -> Issuer | None:
    """The issuer of the settings; None without one, `SettingsInvalid` when something of it is missing."""
    has_keys = settings.oidc_jwks_url is not None or settings.oidc_keys is not None
    given = (settings.oidc_issuer is not None, settings.oidc_audience is not None, has_keys)
    if not any(given):
        return None
    if settings.oidc_issuer is None or settings.oidc_audience is None or not has_keys:
        names = ("oidc_issuer", "oidc_audience", "oidc_jwks_url or oidc_keys")
        missing = ", ".join(name for name, is_given in zip(names, given, strict=True) if not is_given)
        raise SettingsInvalid(f"tokens need oidc_issuer, oidc_audience and the issuer's keys; not set: {missing}")
    return Issuer(
        settings.oidc_issuer,
        settings.oidc_audience,
        tuple(settings.oidc_algorithms.split()),
        settings.oidc_leeway_s,
        settings.oidc_name_claim,
        settings.oidc_roles_claim,
        settings.oidc_roles,
        settings.oidc_tenant_claim,
        settings.oidc_operations_claim,
    )


class KeySource(Protocol):
    """Where the issuer's public keys come from."""

    async def key(self, id: str | None) -> PyJWK | None:
        """The key with this id; without an id the only one there is. None when there is none such."""


class TokenOutOfTime(Unauthenticated):
    """The issuer has made this token, and its time is over or has not come: its sender guesses nothing."""


class Tokens:
    """Checks tokens of one issuer."""

    def __init__(self, issuer: Issuer, keys: KeySource, *, clock: Clock) -> None:
        self._issuer, self._keys, self._clock = issuer, keys, clock
        self._accepted: OrderedDict[bytes, float] = OrderedDict()  # digests of tokens, and when each ends

    async def principal(self, token: str) -> Principal:
        """Who asks with this token; `Unauthenticated` when it is not accepted, without saying why to the sender."""
        import jwt

        if len(token) > TOKEN_CHARS:
            raise Unauthenticated(REFUSED)
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in self._issuer.algorithms or "crit" in header:
                raise Unauthenticated(REFUSED)
            key = await self._keys.key(header.get("kid"))
            if key is None:
                raise Unauthenticated(REFUSED)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._issuer.audience,
                issuer=self._issuer.issuer,
                # The times are judged below, by our own clock.
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise Unauthenticated(REFUSED) from None
        if not _is_in_time(claims, self._clock.now_us() / 1e6, self._issuer.leeway_s):
            raise TokenOutOfTime("the token has expired, or is not valid yet")
        found = principal_of(self._issuer, claims)
        self._remember(token, claims["exp"])
        return found

    def is_at_hand(self, token: str) -> bool:
        """Whether this token was accepted before and is not over; it is checked again all the same."""
        return self._accepted.get(_digest(token), 0.0) > self._clock.now_us() / 1e6

    def _remember(self, token: str, until_s: float) -> None:
        digest = _digest(token)
        self._accepted[digest] = until_s
        self._accepted.move_to_end(digest)
        if len(self._accepted) > REMEMBERED_MAX:
            self._accepted.popitem(last=False)


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="replace")).digest()


def _is_in_time(claims: Mapping[str, Any], now_s: float, leeway_s: float) -> bool:
    if not _is_number(claims["exp"]) or claims["exp"] + leeway_s <= now_s:
        return False
    starts = [claims[name] for name in ("nbf", "iat") if name in claims]
    return all(_is_number(start) and start - leeway_s <= now_s for start in starts)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def principal_of(issuer: Issuer, claims: Mapping[str, Any]) -> Principal:
    """Who asks with these claims; `Unauthenticated` when they do not say what they have to."""
    name = _claim(claims, issuer.name_claim)
    if not isinstance(name, str) or not (1 <= len(name) <= NAME_CHARS and name.isprintable()):
        raise Unauthenticated(f"the token has no usable claim {issuer.name_claim!r} that names who asks")
    tenant: object = ""
    if issuer.tenant_claim is not None:
        tenant = _claim(claims, issuer.tenant_claim)
        if not isinstance(tenant, str) or not (1 <= len(tenant) <= TENANT_CHARS and tenant.isprintable()):
            raise Unauthenticated(f"the token has no usable claim {issuer.tenant_claim!r} that names the tenant")
    operations = None
    if issuer.operations_claim is not None:
        operations = frozenset(text.casefold() for text in _texts(_claim(claims, issuer.operations_claim)))
    given = _texts(_claim(claims, issuer.roles_claim))
    roles = {issuer.roles.get(value) for value in given} if issuer.roles else set(given)
    return Principal(name, frozenset(role for role in ROLES if role in roles), operations, str(tenant))


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """A claim by its name; one whose name has dots may also lie inside others, as in `realm_access.roles`."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _texts(value: Any) -> Sequence[str]:
    """Several texts: a list, or one text with spaces between, as in `scope`."""
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
