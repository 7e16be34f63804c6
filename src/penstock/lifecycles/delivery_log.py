"""The moves of deliveries in the one transition log, written in the transactions that make them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import delete, insert

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.db.types import shortened
from penstock.journal.numbering import start_counter
from penstock.journal.queries import entries
from penstock.journal.tables import transitions
from penstock.lifecycles.model import DeliveryMove
from penstock.lifecycles.scope import Scope
from penstock.outbox.states import DELIVERY

__all__ = ["forget_moves", "log_move", "log_moves", "moves_of"]

SUBJECT_CHARS = 64
MOVES_READ = 1000
SUBJECTS_EACH = 1000


async def log_moves(
    tx: Connection, scope: Scope, moved: Iterable[tuple[str, str]], event: str, *, actor: str, cause: str | None = None
) -> None:
    """Log an event of many deliveries, each named by its message id with the state it was in."""
    lines = [
        {
            "machine": DELIVERY.name,
            "subject": shortened(message_id, SUBJECT_CHARS),
            "source": source,
            "event": event,
            "target": DELIVERY.after(source, event, subject=f"delivery {message_id}"),
            "actor": actor,
            "cause": cause,
            "details": {"messageId": message_id, **({"tenant": scope.tenant} if scope.tenant else {})},
        }
        for message_id, source in moved
    ]
    if lines:
        await tx.execute(insert(transitions).values(at=scope.db.now()), lines)


async def log_move(
    tx: Connection, scope: Scope, message_id: str, source: str, event: str, *, actor: str, cause: str | None = None
) -> None:
    """Log an event of one delivery."""
    await log_moves(tx, scope, [(message_id, source)], event, actor=actor, cause=cause)


async def moves_of(tx: Connection, message_id: str) -> list[DeliveryMove]:
    """What has happened to a delivery since it was written, oldest first."""
    found = await entries(tx, machine=DELIVERY.name, subject=shortened(message_id, SUBJECT_CHARS), limit=MOVES_READ)
    return [
        DeliveryMove(each.source, each.event, each.target, each.actor, each.cause, from_micros(each.at))
        for each in found
    ]


async def forget_moves(tx: Connection, scope: Scope, message_ids: Sequence[str]) -> None:
    """Remove the moves of deliveries that are removed themselves."""
    if not message_ids:
        return
    await start_counter(scope.db, tx)
    subjects = [shortened(each, SUBJECT_CHARS) for each in message_ids]
    for first in range(0, len(subjects), SUBJECTS_EACH):
        some = transitions.c.subject.in_(subjects[first : first + SUBJECTS_EACH])
        await tx.execute(delete(transitions).where(transitions.c.machine == DELIVERY.name, some))
