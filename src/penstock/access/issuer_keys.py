"""The public keys of a token issuer: given with the settings, or fetched from the issuer and kept for a while."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.clock import Clock
from penstock.errors import SettingsInvalid, Unavailable

if TYPE_CHECKING:
    import httpx
    from jwt import PyJWK

    from penstock.access.tokens import KeySource
    from penstock.settings import Settings

__all__ = ["FetchedKeys", "GivenKeys", "keys_of"]

log = logging.getLogger("penstock.access")

KEPT_S = 3600.0
AGAIN_S = 30.0  # how soon they are fetched again because of a key that is not among them, or because that failed
FETCH_S = 5.0
KEYS_BYTES_MAX = 256 * 1024

Keys: TypeAlias = "dict[str | None, PyJWK]"


def keys_of(settings: Settings, *, clock: Clock) -> KeySource:
    """The keys that the settings name."""
    if settings.oidc_keys is not None:
        return GivenKeys(settings.oidc_keys)
    assert settings.oidc_jwks_url is not None
    return FetchedKeys(settings.oidc_jwks_url, clock=clock)


class GivenKeys:
    """Keys that do not change: one in PEM, or a JWKS."""

    def __init__(self, text: str) -> None:
        try:
            self._keys = _from_pem(text) if text.lstrip().startswith("-----") else _from_jwks(text)
        except (ValueError, TypeError, KeyError) as error:
            raise SettingsInvalid(f"oidc_keys takes a public key in PEM, or a JWKS document: {error}") from error

    async def key(self, id: str | None) -> PyJWK | None:
        """The key with this id; one that was given in PEM has none, and fits all."""
        return _chosen(self._keys, id)


class FetchedKeys:
    """Keys that are fetched when needed, and again when a token names one that is not among them."""

    def __init__(self, url: str, *, clock: Clock, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url, self._clock, self._transport = url, clock, transport
        self._keys: Keys = {}
        self._fetched_s: float | None = None
        self._tried_s: float | None = None

    async def key(self, id: str | None) -> PyJWK | None:
        """The key with this id. `Unavailable` when there are no keys yet, and they cannot be fetched."""
        now_s = self._clock.monotonic()
        is_stale = self._fetched_s is None or now_s - self._fetched_s >= KEPT_S
        may_try = self._tried_s is None or now_s - self._tried_s >= AGAIN_S
        if (is_stale or _chosen(self._keys, id) is None) and may_try:
            self._tried_s = now_s
            await self._fetch()
        if self._fetched_s is None:
            raise Unavailable("the keys of the token issuer cannot be fetched now")
        return _chosen(self._keys, id)

    async def _fetch(self) -> None:
        import httpx

        try:
            # No redirects and no proxy from the environment: the answer decides who is let in.
            async with (
                httpx.AsyncClient(
                    timeout=FETCH_S, follow_redirects=False, trust_env=False, transport=self._transport
                ) as client,
                client.stream("GET", self._url, headers={"accept": "application/json"}) as answer,
            ):
                answer.raise_for_status()
                body = b""
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > KEYS_BYTES_MAX:
                        raise ValueError(f"more than {KEYS_BYTES_MAX:,} bytes")
            if not (200 <= answer.status_code < 300):
                raise ValueError(f"status {answer.status_code}")
            self._keys, self._fetched_s = _from_jwks(body.decode()), self._clock.monotonic()
        except (httpx.HTTPError, ValueError, TypeError, KeyError) as error:
            log.warning("the keys of the token issuer cannot be fetched from %s: %s", self._url, error)


def _chosen(keys: Keys, id: str | None) -> PyJWK | None:
    if id is None and len(keys) == 1:
        return next(iter(keys.values()))
    return keys.get(id) or keys.get(None)


def _from_jwks(text: str) -> Keys:
    import jwt

    try:
        listed = json.loads(text)["keys"]
    except (KeyError, TypeError):
        raise ValueError("a JWKS is an object with a list `keys`") from None
    found: Keys = {}
    for entry in listed:
        # Keys for encryption, and kinds that we do not know, are no reason to refuse the others.
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") not in KINDS:
            continue
        try:
            found[entry.get("kid")] = jwt.PyJWK.from_dict(entry)
        except jwt.PyJWTError as error:
            log.warning("a key of the token issuer cannot be used: %s", error)
    if not found:
        raise ValueError("there is no key for signatures in it")
    return found


KINDS = ("RSA", "EC", "OKP")  # never "oct": that is a shared secret


def _from_pem(text: str) -> Keys:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    key: Any = load_pem_public_key(text.encode())
    for algorithm in (RSAAlgorithm, ECAlgorithm, OKPAlgorithm):
        try:
            document = json.loads(algorithm.to_jwk(key))
        except Exception:  # each knows only its own kind
            continue
        return _from_jwks(json.dumps({"keys": [document]}))
    raise ValueError(f"a {type(key).__name__} cannot be used")
