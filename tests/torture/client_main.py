"""One client process: it creates, signals, pauses, cancels, retries and edits, and notes what it was told."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Literal

from penstock import Penstock
from penstock.errors import PenstockError, Unavailable
from penstock.settings import Settings

from .editors import edit_others, tend_revision
from .faults import Switches
from .inspectors import tend_inspection
from .journal import Journal, Said
from .kinds import OPERATIONS, Connected, Local
from .lifecycle_callers import move_for_ever
from .ordeal import SIGNAL_TIMEOUT_S, Brittle, Ordeal, csv_of, make_rows
from .senders import TIMES_MAX, tend_approval
from .worker_main import prepared

__all__ = ["PLAIN", "Client", "live"]

TRIES_MAX = 20
AWAY_S = 0.2
SETTLE_S = 15.0
ROWS_MAX = 18
PLAIN = Switches(**dict.fromkeys(Switches.names(), False))
INSPECTIONS, APPROVALS, LIFESPANS, REVISIONS = 0.25, 0.25, 0.2, 0.2  # of the operations that are left, in this order


def live(given: Mapping[str, Any]) -> None:
    """The life of a client: it tends several operations at once until SIGTERM."""
    with prepared(given) as journal:
        rng = random.Random(given["seed"])
        switches = Switches(**given["switches"])
        asyncio.run(_serve(journal, Settings(**given["settings"]), switches, rng, given["operations"]))


async def _serve(journal: Journal, settings: Settings, switches: Switches, rng: random.Random, operations: int) -> None:
    main = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with Penstock.open(operations=OPERATIONS, settings=settings) as penstock:
            client = Client(penstock, journal, switches=switches)
            async with asyncio.TaskGroup() as group:
                for _ in range(operations):
                    group.create_task(client.tend_for_ever(random.Random(rng.random())))
                if switches.lifecycles:
                    group.create_task(move_for_ever(client, random.Random(rng.random())))
                if switches.edits:
                    group.create_task(edit_others(client, random.Random(rng.random())))


class Client:
    """Callers of one process; every call is noted before it is made and again when it is answered."""

    def __init__(
        self,
        penstock: Penstock,
        journal: Journal,
        *,
        rows_max: int = ROWS_MAX,
        signal_timeout_s: float = SIGNAL_TIMEOUT_S,
        signal_delay_s: float = 0.0,
        shared: float = 0.2,
        switches: Switches = PLAIN,
    ) -> None:
        self.penstock, self.journal, self.rows_max, self.switches = penstock, journal, rows_max, switches
        self.signal_timeout_s, self.signal_delay_s, self.shared = signal_timeout_s, signal_delay_s, shared
        self._calls = count()

    async def tend_for_ever(self, rng: random.Random) -> None:
        """One operation after the other."""
        while True:
            await self.tend(rng)

    async def tend(self, rng: random.Random) -> None:
        """One operation from its creation to its end, with all that callers do meanwhile."""
        if self.switches.pauses and rng.random() < INSPECTIONS:
            await tend_inspection(self, rng)
            return
        if self.switches.repeats and rng.random() < APPROVALS:
            await tend_approval(self, rng)
            return
        if self.switches.lifespans and rng.random() < LIFESPANS:
            await self._tend_plainly(rng.choice((Connected, Local)), rng)
            return
        if self.switches.edits and rng.random() < REVISIONS:
            await tend_revision(self, rng)
            return
        rows = make_rows(rng, rng.randint(1, self.rows_max), shared=self.shared)
        kind = Brittle if rng.random() < 0.1 else Ordeal
        file = csv_of(rows) if rng.random() < 0.95 else b"id,colour\n1,red\n"
        options = {"approve.timeout": self.signal_timeout_s} if kind is Ordeal else {}
        made = await self.create(kind, file, len(rows), **options)
        if made is None:
            return
        for _ in range(rng.choice((1, 2, 3))):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._signal(made, rows, rng))
                group.create_task(self._meddle(made, rng))
                group.create_task(self.await_end(made))
            if not await self._again(made, rows, rng):
                return

    async def _tend_plainly(self, kind: type, rng: random.Random) -> None:
        """An operation that has trouble enough of its own."""
        rows = make_rows(rng, rng.randint(1, self.rows_max))
        made = await self.create(kind, csv_of(rows), len(rows))
        if made is not None:
            await self.await_end(made)

    async def call(
        self, verb: str, operation: str | None, ask: Callable[[], Awaitable[Any]], *, tries: int = 1, **detail: Any
    ) -> Any:
        """Make a call and note both sides; None when it was refused or its answer is unknown."""
        number = next(self._calls)
        self._note(number, verb, operation, detail)
        for attempt in range(1, tries + 1):
            try:
                answer = await ask()
            except Unavailable as error:
                if attempt == tries:
                    self._note(number, verb, operation, detail, refusal=f"unknown: {error}")
                    return None
                await asyncio.sleep(AWAY_S)
            except PenstockError as error:
                self._note(number, verb, operation, detail, refusal=f"{type(error).__name__}: {error}"[:500])
                return None
            else:
                break
        self._note(number, verb, operation or answer, detail, answer=answer)
        return answer

    def _note(self, call: int, verb: str, operation: str | None, detail: dict[str, Any], **told: Any) -> None:
        journal = self.journal
        place: dict[str, Any] = {"t": journal.moment(), "at": journal.wall_us(), "who": journal.who, "call": call}
        journal.write(Said(**place, verb=verb, operation=operation, detail=detail, **told))

    async def create(self, kind: type, file: bytes, rows: int, **options: Any) -> str | None:
        """Take a file in; None when it is not known whether that happened."""
        operations = self.penstock.operations

        async def create() -> str:
            return (await operations.create(kind, file=file, file_name="parcels.csv", options=options)).id

        answer: str | None = await self.call("create", None, create, rows=rows, kind=kind.__name__)
        return answer

    # --- signals

    async def _signal(self, operation: str, rows: list[dict[str, Any]], rng: random.Random) -> None:
        """Word for most rows, early or late, some of it twice, some of it bad news."""
        gates = [row["gate"] for row in rows if rng.random() < 0.9]
        rng.shuffle(gates)
        spread = rng.choice((0.0, 0.5, 2.0))
        await asyncio.sleep(rng.random() * self.signal_delay_s)
        for number, gate in enumerate(gates):
            await asyncio.sleep(rng.random() * spread / len(gates))
            fails, token = rng.random() < 0.1, f"{self.journal.who}-{number}-{rng.randrange(1_000_000)}"
            known_as = token
            if self.switches.repeats:
                known_as, times = rng.choice((token, None)), rng.randint(1, TIMES_MAX)
            else:
                times = rng.choice((1, 1, 1, 2))
            post = partial(self.post, operation, gate, token, known_as=known_as, fails=fails)
            for nth in range(times):
                detail: dict[str, Any] = {"key": gate, "id": known_as, "fails": fails, "nth": nth}
                await self.call("signal", operation, post, tries=TRIES_MAX, **detail)

    async def post(self, operation: str, gate: str, token: str, *, known_as: str | None, fails: bool) -> dict[str, Any]:
        """Send a signal; the token tells it from others, and is its id when it has one."""
        signals = self.penstock.signals
        if fails:
            receipt = await signals.fail(operation, gate, f"refused by {token}", id=known_as)
        else:
            receipt = await signals.complete(operation, gate, payload=token, id=known_as)
        return {"outcome": receipt.outcome, "id": receipt.id}

    # --- control

    async def _meddle(self, operation: str, rng: random.Random) -> None:
        """Pause, resume and cancel at random moments; most operations are left alone."""
        if rng.random() < 0.25:
            await asyncio.sleep(rng.random() * 1.5)
            await self.control("pause", operation)
            await asyncio.sleep(rng.random() * 0.5)
            await self.control("resume", operation)
        if rng.random() < 0.25:
            await asyncio.sleep(rng.random() * rng.choice((0.05, 3)))
            await self.control("cancel", operation)

    async def control(self, verb: Literal["pause", "resume", "cancel"], operation: str) -> None:
        """Pause, resume or cancel, insisting while the database is away."""
        ask = getattr(self.penstock.operations, verb)

        async def status() -> str:
            return str((await ask(operation)).status)

        await self.call(verb, operation, status, tries=TRIES_MAX)

    async def await_end(self, operation: str) -> None:
        """Wait until the operation is settled, though not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while True:
                    with contextlib.suppress(Unavailable):
                        if (await self.penstock.operations.get(operation)).is_settled:
                            return
                    await asyncio.sleep(AWAY_S)

    # --- running again

    async def _again(self, operation: str, rows: list[dict[str, Any]], rng: random.Random) -> bool:
        """Ask for another generation of some rows; says whether anything was accepted."""
        operations, numbers = self.penstock.operations, [row["id"] for row in rows]
        how = rng.choice(("all", "all", "rows", "edit"))
        if how == "all":
            return await self.retry_all(operation)
        if how == "rows":
            named = rng.sample(numbers, min(3, len(numbers)))
            confirm = rng.random() < 0.3
            return await self._retry(
                operation,
                "retry",
                lambda: operations.retry(operation, rows=named, confirm_doubt=confirm),
                rows=named,
                confirm=confirm,
            )
        number, qty = rng.choice(numbers), rng.randrange(1000)
        return await self._retry(
            operation, "edit", lambda: operations.edit_row(operation, number, {"qty": qty}), rows=[number], qty=qty
        )

    async def retry_all(self, operation: str) -> bool:
        """Ask for all that failed to run again."""
        return await self._retry(operation, "retry", lambda: self.penstock.operations.retry(operation))

    async def retry_row(self, operation: str, row: int) -> bool:
        """Ask for one row to run again."""
        ask = partial(self.penstock.operations.retry, operation, rows=[row])
        return await self._retry(operation, "retry", ask, rows=[row])

    async def edit(self, operation: str, row: int, field: str, rng: random.Random) -> bool:
        """Give a field of a row a value that nobody else gives it."""
        value = f"{self.journal.who}-{rng.getrandbits(40):x}"
        ask = partial(self.penstock.operations.edit_row, operation, row, {field: value})
        return await self._retry(operation, "edit", ask, rows=[row], field=field, value=value)

    async def _retry(self, operation: str, verb: str, ask: Callable[[], Awaitable[Any]], **detail: Any) -> bool:
        async def submitted() -> int:
            return int((await ask()).submitted)

        return bool(await self.call(verb, operation, submitted, **detail))
