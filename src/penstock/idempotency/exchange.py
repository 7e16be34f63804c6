"""One guarded request: read, claimed, carried out or answered from what is kept."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

from penstock.errors import KeyRefused, Unavailable
from penstock.idempotency import problems
from penstock.idempotency.answering import Answering, Send
from penstock.idempotency.answers import KeptAnswer
from penstock.idempotency.body import BodyTooLarge, Disconnected, Receive, SpooledBody
from penstock.idempotency.claim import Claim, Observe
from penstock.idempotency.fingerprint import Fingerprint
from penstock.idempotency.model import Address
from penstock.idempotency.routes import Rule, Scope
from penstock.idempotency.service import Idempotency, Replay

__all__ = ["SCOPE_KEY", "Application", "Exchange", "Guarded", "Limits"]

log = logging.getLogger("penstock.idempotency")

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SCOPE_KEY = "penstock.idempotency"
# They would carry parts of an answer past us.
BYPASSES = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})
RETRY_UNAVAILABLE_S = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a body is kept in memory, how long a body may be, and how long an answer that is kept."""

    memory_bytes: int
    body_bytes_max: int
    answer_bytes_max: int


@dataclass(frozen=True, slots=True)
class Guarded:
    """Whom a request is for, and how it is guarded."""

    app: Application
    keys: Idempotency
    address: Address
    rule: Rule


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the way to its client."""

    scope: Scope
    receive: Receive
    send: Send
    limits: Limits
    observe: Observe
    help_url: str | None

    async def guard(self, guarded: Guarded) -> None:
        """Have the application carry the request out, unless it was, or may not be."""
        async with SpooledBody(memory_bytes=self.limits.memory_bytes, bytes_max=self.limits.body_bytes_max) as body:
            try:
                claimed = await self._claim(guarded, body)
            except Disconnected:
                return
            except BodyTooLarge as error:
                await self.refuse("too_large", str(error))
            except KeyRefused as error:
                await self._refuse(error.reason, str(error), retry_after_s=error.retry_after_s)  # counted by the keys
            except Unavailable as error:
                await self.unavailable(error)
            else:
                if isinstance(claimed, Replay):
                    await self._replay(claimed.answer)
                else:
                    await self._carry_out(guarded, claimed, body)

    async def _claim(self, guarded: Guarded, body: SpooledBody) -> Claim | Replay:
        scope = self.scope
        content_type = next((value for name, value in scope["headers"] if name.lower() == b"content-type"), b"")
        fingerprint = Fingerprint(scope["method"], scope["path"], scope.get("query_string", b""), content_type)
        await body.fill(self.receive, fingerprint)
        return await guarded.keys.claim(
            guarded.address,
            fingerprint.end(),
            label=f"{scope['method']} {scope['path']}",
            may_take_over=guarded.rule.may_run_again,
            retention=guarded.rule.retention,
        )

    async def _carry_out(self, guarded: Guarded, claim: Claim, body: SpooledBody) -> None:
        async def instead(error: KeyRefused | Unavailable) -> None:
            await self._answer_of_others(guarded, error)

        answering = Answering(self.send, claim, guarded.rule, bytes_max=self.limits.answer_bytes_max, instead=instead)

        async def receive_again() -> Any:
            message = await body.next_message()
            if message is not None:
                return message
            # A client that leaves stops nothing: its answer is kept for when it comes again.
            await answering.is_settled.wait()
            return await self.receive()

        extensions = self.scope.get("extensions") or {}
        extensions = {name: value for name, value in extensions.items() if name not in BYPASSES}
        try:
            await guarded.app({**self.scope, "extensions": extensions, SCOPE_KEY: claim}, receive_again, answering.send)
        except Exception as error:
            await claim.release()
            if answering.is_settled.is_set() or not _is_about(error, claim):
                raise
            await self._answer_of_others(guarded, error)
        except BaseException:
            await claim.abandon()
            raise
        finally:
            answering.is_settled.set()
        await claim.release()  # does nothing, unless the application gave no answer

    # --- answers that are not the application's

    async def _answer_of_others(self, guarded: Guarded, error: KeyRefused | Unavailable) -> None:
        """Our attempt does not count. If another's does, its answer is the answer."""
        if isinstance(error, Unavailable):
            await self.unavailable(error)
            return
        entry = (await guarded.keys.store.read(guarded.address)).entry
        if entry is not None and entry.state == "Completed":
            await self._replay(entry.answer)
        else:
            await self._refuse("in_flight", str(error), retry_after_s=1)

    async def _replay(self, stored: bytes | None) -> None:
        if stored is None:
            await self.refuse("not_kept", "its answer was erased")
            return
        answer = KeptAnswer.from_bytes(stored)
        if answer.body is None:
            location = [(name, value) for name, value in answer.headers if name.lower() == b"location"]
            told = (
                f"its answer, with status {answer.status}, is not kept: it was too large, a stream, or holds a secret"
            )
            await self.refuse("not_kept", told, headers=location, answeredStatus=answer.status)
            return
        headers = [*answer.headers, (b"idempotent-replayed", b"true")]
        await self.send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": answer.body})

    async def unavailable(self, error: Unavailable) -> None:
        """Refuse a request because its key cannot be looked up: carried out unguarded, it might be so twice."""
        log.warning("a request was refused: %s", error)
        await self.refuse("unavailable", "try again later", retry_after_s=RETRY_UNAVAILABLE_S)

    async def refuse(self, reason: str, detail: str, **more: Any) -> None:
        """Answer with a problem, and count it."""
        self.observe(reason)
        await self._refuse(reason, detail, **more)

    async def _refuse(self, reason: str, detail: str, **more: Any) -> None:
        for message in problems.messages(reason, detail, help_url=self.help_url, **more):
            await self.send(message)


def _is_about(error: Exception, claim: Claim) -> TypeGuard[KeyRefused | Unavailable]:
    """Whether an application's error says that its attempt does not count, or that it found nothing to work with."""
    is_ours = isinstance(error, KeyRefused) and (error.reason, error.key) == ("lost", claim.key)
    return is_ours or isinstance(error, Unavailable)
