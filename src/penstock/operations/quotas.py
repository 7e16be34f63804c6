"""How much a tenant may submit: files of a day, and operations under way. Looked at before a file is stored."""

from __future__ import annotations

from sqlalchemy import func, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Throttled
from penstock.operations.operation_ids import IS_THERE
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations
from penstock.operations.visibility import Visible
from penstock.settings import Settings

__all__ = ["require_room"]

DAY_US = 86_400_000_000
AGAIN_S = 60


async def require_room(db: Database, tenant: str, settings: Settings) -> None:
    """`Throttled` when the tenant has used up what it may submit. Uploads at the same time may each find room."""
    bytes_max, open_max = settings.tenant_bytes_per_day, settings.tenant_open_operations_max
    if not bytes_max and not open_max:
        return

    async def used(tx: Connection) -> tuple[int, int]:
        mine = (*Visible(tenant).conditions, IS_THERE)
        is_new = operations.c.created_at > db.now() - DAY_US
        is_open = operations.c.state.not_in(sorted(OPERATION.settled))
        size = (await tx.execute(select(func.sum(operations.c.file_bytes)).where(*mine, is_new))).scalar()
        many = (await tx.execute(select(func.count()).select_from(operations).where(*mine, is_open))).scalar_one()
        return int(size or 0), many

    sent, under_way = await db.look(used)
    if bytes_max and sent >= bytes_max:
        raise Throttled(
            f"{sent:,} bytes were submitted within a day; the limit is {bytes_max:,}", retry_after_s=AGAIN_S
        )
    if open_max and under_way >= open_max:
        raise Throttled(f"{under_way} operations are under way; the limit is {open_max}", retry_after_s=AGAIN_S)
