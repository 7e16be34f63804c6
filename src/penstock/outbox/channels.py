"""One attempt: an event goes out by the channel of its subscription, and an `Answer` comes back, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from penstock.clock import Clock, from_micros
from penstock.errors import PenstockError, SecretsUnreadable
from penstock.outbox.claiming import Claimed
from penstock.outbox.mailing import Mailer
from penstock.outbox.signing import signature
from penstock.outbox.subscribing import SLACK, Credentials, credentials
from penstock.outbox.threads import on_thread
from penstock.outbox.transport import Poster, has_httpx
from penstock.outbox.verdicts import Answer, retry_after_s
from penstock.outbox.wording import slack_text
from penstock.secret_keys import SecretKeys

__all__ = ["Channels", "HandlerCall"]

HandlerCall = Callable[[Mapping[str, Any]], Awaitable[None]]
"""A handler that is called with a CloudEvent."""

FAULT_CHARS = 500


class Channels:
    """What this process can send by."""

    def __init__(
        self,
        poster: Poster,
        mailer: Mailer | None,
        handlers: Mapping[str, HandlerCall],
        keys: SecretKeys,
        *,
        clock: Clock,
        handler_timeout_s: float,
    ) -> None:
        self._poster, self._mailer, self.handlers, self._keys = poster, mailer, handlers, keys
        self._clock, self._handler_timeout_s = clock, handler_timeout_s

    @property
    def names(self) -> tuple[str, ...]:
        """The channels that any process with these settings has."""
        web = ("webhook", "slack") if has_httpx() else ()
        return (*web, "email") if self._mailer is not None else web

    def lacks(self, channel: str) -> str | None:
        """Why this process cannot send by a channel."""
        if channel in self.names:
            return None
        return "smtp_url is not set" if channel == "email" else "httpx is not installed (pip install 'penstock[http]')"

    async def send(self, claimed: Claimed) -> Answer:
        """Make one attempt. It ends in time, and whatever goes wrong is the answer's fault."""
        try:
            match claimed.channel:
                case "webhook":
                    return await self._post_signed(claimed)
                case "slack":
                    known = self._credentials(claimed)
                    body = msgspec.json.encode({"text": slack_text(claimed.body)})
                    return await self._post(known.url.removeprefix(SLACK), body, {"Content-Type": "application/json"})
                case "email":
                    assert self._mailer is not None
                    async with asyncio.timeout(self._handler_timeout_s):
                        await on_thread(self._mailer.send, claimed.url.removeprefix("mailto:"), claimed.body)
                case _:
                    async with asyncio.timeout(self._handler_timeout_s):
                        await self.handlers[claimed.subscription](claimed.body)
            return Answer()
        except TimeoutError:
            return Answer(fault="it took too long, and was given up")
        except Exception as error:
            return Answer(fault=_described(error))

    async def _post_signed(self, claimed: Claimed) -> Answer:
        """CloudEvents in structured mode, with the headers of Standard Webhooks."""
        known, now_us = self._credentials(claimed), self._clock.now_us()
        body = msgspec.json.encode(claimed.body)
        timestamp = now_us // 1_000_000
        headers = {
            "Content-Type": "application/cloudevents+json; charset=UTF-8",
            "webhook-id": claimed.event_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(known.in_use(now_us), claimed.event_id, timestamp, body),
        }
        return await self._post(known.url, body, headers)

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> Answer:
        status, wait = await self._poster.post(url, body, headers)
        return Answer(status, retry_after_s=retry_after_s(wait, from_micros(self._clock.now_us())))

    def _credentials(self, claimed: Claimed) -> Credentials:
        if claimed.encrypted is None:
            raise SecretsUnreadable("the subscription holds no address")
        return credentials(claimed.encrypted, self._keys)


def _described(error: Exception) -> str:
    text = str(error) if isinstance(error, PenstockError | OSError) else f"{type(error).__name__}: {error}"
    return (text or type(error).__name__)[:FAULT_CHARS]
