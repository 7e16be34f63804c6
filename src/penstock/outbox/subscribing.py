"""How a subscription is stored: its address says by which channel events are sent, and is kept secret where it is one.

`https://…` is a webhook, `slack+https://…` takes Slack's JSON, `mailto:…` is an e-mail address; `handler:NAME` is
code of an application's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.errors import InvalidInput, SettingsInvalid
from penstock.outbox.addresses import Network, parse_endpoint
from penstock.outbox.events import check_types
from penstock.outbox.signing import check_secret
from penstock.outbox.states import ACTIVE
from penstock.secret_keys import SecretKeys

__all__ = [
    "SLACK",
    "Credentials",
    "Secret",
    "channel_of",
    "credentials",
    "encrypted",
    "handler_id",
    "handler_row",
    "shown_address",
    "subscription_row",
]

SLACK = "slack+"
MAIL = "mailto:"
HANDLER = "handler:"
SECRETS_MAX = 5
_MAIL_ADDRESS = re.compile(r"[^@\s,;<>\"()]{1,64}@[A-Za-z0-9.-]{1,253}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that messages are signed with, until an instant if it was replaced."""

    secret: str
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What of a subscription is stored encrypted: the address as it is called, and the secrets, the newest first."""

    url: str
    secrets: tuple[Secret, ...] = ()

    def in_use(self, now_us: int) -> list[str]:
        """The secrets to sign with now."""
        return [each.secret for each in self.secrets if each.until is None or each.until > now_us]


def channel_of(url: str, allowed: Sequence[Network]) -> str:
    """By which channel events are sent to this address; `InvalidInput` when to none."""
    if url.startswith(MAIL):
        if not url.isprintable() or not _MAIL_ADDRESS.fullmatch(url.removeprefix(MAIL)):
            raise InvalidInput(f"{url!r:.80} is no e-mail address; write mailto:name@example.com")
        return "email"
    parse_endpoint(url.removeprefix(SLACK), allowed)
    return "slack" if url.startswith(SLACK) else "webhook"


def subscription_row(
    subscription_id: str,
    url: str,
    *,
    types: Iterable[str],
    secret: str | None,
    keys: SecretKeys,
    allowed: Sequence[Network],
    created_by: str,
    tenant: str = "",
    operation: str | None = None,
) -> dict[str, Any]:
    """The columns of a new subscription but its times and position; `InvalidInput` when it cannot work."""
    channel = channel_of(url, allowed)
    if channel == "webhook":
        if secret is None:
            raise InvalidInput("a webhook is signed: give the secret that its receiver knows, 'whsec_…'")
        check_secret(secret)
    elif secret is not None:
        raise InvalidInput(f"messages to {channel} are not signed; leave the secret out")
    known = Credentials(url, () if secret is None else (Secret(secret),))
    return {
        "id": subscription_id,
        "tenant": tenant,
        "channel": channel,
        "url": shown_address(url),
        "encrypted": None if channel == "email" else encrypted(known, keys),
        "types": check_types(types),
        "operation": operation,
        "subject": None,
        "state": ACTIVE,
        "created_by": created_by,
    }


def handler_id(name: str) -> str:
    """The id of the subscription of a handler."""
    return f"{HANDLER}{name}"


def handler_row(name: str, types: Iterable[str], operation: str | None) -> dict[str, Any]:
    """The columns of the subscription of a handler but its times and position."""
    return {
        "id": handler_id(name),
        "tenant": "",
        "channel": "handler",
        "url": handler_id(name),
        "types": check_types(types),
        "operation": operation,
        "state": ACTIVE,
        "created_by": "code",
    }


def encrypted(known: Credentials, keys: SecretKeys) -> str:
    """Credentials as they are stored."""
    try:
        return keys.encrypt(msgspec.json.encode(known))
    except SettingsInvalid as error:
        raise SettingsInvalid(f"a webhook has secrets, and {error}") from error


def credentials(stored: str, keys: SecretKeys) -> Credentials:
    """What `encrypted` wrote; `SecretsUnreadable` when this process has not the key."""
    return msgspec.json.decode(keys.decrypt(stored), type=Credentials)


def shown_address(url: str) -> str:
    """The address for people: without what may be secret in it. What is shown already stays as it is.

    Secret may be Slack's path, what follows the first part of any other, and every query.
    """
    if url.startswith((MAIL, HANDLER)):
        return url
    parts = urlsplit(url.removeprefix(SLACK))
    root = f"{parts.scheme}://{parts.netloc}"
    if url.startswith(SLACK):
        return f"{SLACK}{root}/…"
    first, _, rest = parts.path.removeprefix("/").partition("/")
    if rest:
        return f"{root}/{first}/…"
    return f"{root}{parts.path}{'?…' if parts.query else ''}"
