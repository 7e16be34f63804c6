"""An answer on its way to the client: held back until it is kept, or passed on when it cannot be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.errors import KeyRefused, Unavailable
from penstock.idempotency.answers import KeptAnswer
from penstock.idempotency.claim import Claim
from penstock.idempotency.routes import Rule

__all__ = ["Answering", "Send"]

log = logging.getLogger("penstock.idempotency")

Message = Any
Send = Callable[[Message], Awaitable[None]]
Instead = Callable[[KeyRefused | Unavailable], Awaitable[None]]


class Answering:
    """Takes the messages of one application call. The client sees nothing of an answer before its key is settled.

    An answer that grows beyond `bytes_max`, is a stream of events, or by its rule is not kept, settles the key without
    its body and is passed on as it comes. `instead` answers in place of one that does not count.
    """

    def __init__(self, send: Send, claim: Claim, rule: Rule, *, bytes_max: int, instead: Instead) -> None:
        self._send, self._claim, self._rule, self._bytes_max = send, claim, rule, bytes_max
        self._instead = instead
        self._start: Message = None
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._is_refused = False
        self.is_settled = asyncio.Event()

    async def send(self, message: Message) -> None:
        """A message of the application."""
        if self.is_settled.is_set():
            if not self._is_refused:
                await self._send(message)
            return
        match message["type"]:
            case "http.response.start":
                self._start = message
                if _is_event_stream(message):
                    await self._pass_on()
            case "http.response.body":
                await self._add(message.get("body", b""), is_more=message.get("more_body", False))
            case _:
                await self._send(message)

    async def _add(self, piece: bytes, *, is_more: bool) -> None:
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._bytes > self._bytes_max or not self._rule.keep_body:
            await self._pass_on(is_more=is_more)
        elif not is_more:
            await self._settle(b"".join(self._pieces), is_more=False)

    async def _pass_on(self, *, is_more: bool = True) -> None:
        await self._settle(None, is_more=is_more)

    async def _settle(self, body: bytes | None, *, is_more: bool) -> None:
        """Keep the answer, or give the key back; then let the client have what there is of it."""
        refusal = await self._keep(body)
        self._is_refused = refusal is not None
        self.is_settled.set()
        if refusal is not None:
            await self._instead(refusal)
            return
        await self._send(self._start)
        held, self._pieces = b"".join(self._pieces) if body is None else body, []
        if held or not is_more:
            await self._send({"type": "http.response.body", "body": held, "more_body": is_more})

    async def _keep(self, body: bytes | None) -> KeyRefused | Unavailable | None:
        """Settle the key; the reason if the answer must not be given."""
        status, has_transaction = self._start["status"], self._claim.has_transaction
        try:
            if not self._rule.keep(status):
                await self._claim.release()
                return None
            headers = tuple((bytes(name), bytes(value)) for name, value in self._start.get("headers", ()))
            await self._claim.complete(KeptAnswer(status, headers, body).to_bytes())
        except KeyRefused as error:
            return error
        except Exception as error:
            if has_transaction:
                await self._claim.release()
                if isinstance(error, Unavailable):
                    return error
                raise
            # What was done is done, and its client shall know. A repeat is told that nobody knows.
            log.exception("an answer could not be kept")
            await self._claim.abandon()
        return None


def _is_event_stream(start: Message) -> bool:
    types = [bytes(value) for name, value in start.get("headers", ()) if bytes(name).lower() == b"content-type"]
    return any(value.lower().startswith(b"text/event-stream") for value in types)
