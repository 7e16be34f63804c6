"""What becomes of a request: who asks, may they now, what is scripted, what it does, what they hear."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import parse_qs

from penstock.clock import Clock

from . import problems
from .credentials import Tokens
from .faults import Drop, Faults, Held, Slow, Struck, Truncated
from .jobs import Jobs
from .ledger import Arrival, Change, Entry, Ledger
from .limits import Limits, Pace, Quota, affinity
from .operations import Asked, Desk, recognise
from .problems import Problem, Refused, answer_of
from .store import Store
from .tables import Table
from .wire import Answer, Lost, Request, json_answer
from .writing import Work

__all__ = ["Service"]

TARGET_LETTERS_MAX = 32 * 1024
TOKEN_PATH = "/oauth2/v2.0/token"


class Service:
    """The remote without its sockets."""

    def __init__(
        self,
        tables: Sequence[Table],
        users: Mapping[str, Quota],
        *,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]] | None,
        pace: Pace,
        web_servers: int,
        token_life_s: float,
        body_bytes_max: int,
        runs_jobs_at_once: bool,
    ) -> None:
        self.clock = clock
        self.pace = pace
        self.body_bytes_max = body_bytes_max
        self.ledger = Ledger()
        self.faults = Faults()
        self.tokens = Tokens(clock.now_us, token_life_s)
        self.dop_hints = {user: quota.dop_hint for user, quota in users.items()}
        self.denied: dict[str, set[str]] = {user: set() for user in users}
        self.store = Store(tables, self._commit)
        self.jobs = Jobs(self.store)
        self._desk = Desk(self.store, self.jobs)
        self._limits = Limits(users, web_servers)
        self._sleep = sleep
        self._runs_jobs_at_once = runs_jobs_at_once
        self._current: Arrival | None = None
        self._late: list[tuple[Arrival, Work]] = []
        self._unformed = {table.name for table in tables if table.is_new}
        self._forming: set[str] = set()
        self._races = itertools.cycle(problems.RACES)

    async def answer(self, request: Request) -> Answer:
        """Answer a request, or raise `Lost` when the connection is to be dropped instead."""
        arrival = self._arrive(request)
        if request.path.endswith(TOKEN_PATH):
            answer = self._give_token(request)
        else:
            try:
                answer = await self._admit(request, arrival)
            except Refused as refused:
                answer = answer_of(request, refused.problem)
        arrival.status = answer.status
        return answer.plus(self._told(arrival))

    def _arrive(self, request: Request) -> Arrival:
        number = len(self.ledger.arrivals) + 1
        now = self.clock.monotonic()
        arrival = Arrival(number, request.method, request.path, request.query, request.headers, now, len(request.body))
        self.ledger.arrivals.append(arrival)
        return arrival

    async def _admit(self, request: Request, arrival: Arrival) -> Answer:
        user = self._user(request)
        arrival.user = user
        arrival.web_server = self._limits.choose(request.headers.get("cookie"))
        asked = recognise(self.store, request)
        arrival.action, arrival.rows = asked.action, len(asked.rows)
        arrival.table = asked.table.name if asked.table else None
        arrival.parts = asked.parts
        with self.ledger.counted(user):
            window = self._limits.window(user, arrival.web_server)
            refusal = window.admit(self.clock.monotonic())
            if refusal is not None:
                raise Refused(refusal)
            spent_s = self._cost_s(asked)
            try:
                return await self._run(request, user, arrival, asked, spent_s)
            finally:
                window.leave(self.clock.monotonic(), spent_s)

    def _user(self, request: Request) -> str:
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        user = self.tokens.holder(text, request.base) if scheme == "Bearer" else None
        if user is None or user not in self.denied:
            raise Refused(problems.token_refused())
        if len(request.body) > self.body_bytes_max:
            raise Refused(problems.too_large())
        if len(request.target) > TARGET_LETTERS_MAX:
            raise Refused(problems.bad_request("Bad Request - URI Too Long").with_status(414))
        return user

    def _cost_s(self, asked: Asked) -> float:
        rows = len(asked.rows)
        return self.pace.cost_s(rows if asked.is_bulk else 0, 0 if asked.is_bulk else max(1, rows))

    async def _run(self, request: Request, user: str, arrival: Arrival, asked: Asked, spent_s: float) -> Answer:
        struck = self.faults.strike(asked.call(user))
        self._catch_up(asked)
        work = Work(self.store, request, user, struck, self.denied[user])
        with self._formed(asked):
            await self._linger(struck, is_applied=False)
            try:
                _strike_down(work, struck)
            except Lost:
                if any(drop.is_late for drop in struck.whole(Drop)):
                    self._late.append((arrival, work))
                raise
            # Even a call that takes no time lets others in beside it.
            await (self._sleep(spent_s) if spent_s and self._sleep else asyncio.sleep(0))
            self._current = arrival
            answer = self._desk.operate(work)
            if self._runs_jobs_at_once:
                self.jobs.run()
        await self._linger(struck, is_applied=True)
        for problem in struck.whole(Problem):
            if problem.is_applied:
                raise Refused(problem)
        for drop in struck.whole(Drop):
            raise Lost(is_reset=drop.is_reset)
        for event in struck.whole(Truncated):
            answer = replace(answer, cut=event.bytes)
        return answer

    def _catch_up(self, asked: Asked) -> None:
        """What was given up by its sender takes effect before anything else is written."""
        late, self._late = (self._late, []) if asked.rows else ([], self._late)
        for arrival, work in late:
            self._current = arrival
            self._desk.operate(work)

    async def _linger(self, struck: Struck, *, is_applied: bool) -> None:
        for held in struck.whole(Held):
            if held.is_applied is is_applied:
                held.arrived.set()
                await held.gate.wait()
        for slow in struck.whole(Slow):
            if slow.is_applied is is_applied:
                await (self._sleep or asyncio.sleep)(slow.seconds)

    @contextmanager
    def _formed(self, asked: Asked) -> Iterator[None]:
        """The first bulk call to a new table builds what the others need; those beside it run into the race."""
        name = asked.table.name if asked.table and asked.is_bulk else ""
        if name not in self._unformed:
            yield
            return
        if name in self._forming:
            raise Refused(problems.race(next(self._races)))
        self._forming.add(name)
        try:
            yield
            self._unformed.discard(name)
        finally:
            self._forming.discard(name)

    def _commit(self, change: Change) -> None:
        arrival = self._current
        number, id, user, action = (
            (arrival.number, arrival.request_id, arrival.user or "", arrival.action) if arrival else (0, "", "", "")
        )
        self.ledger.entries.append(Entry(change, number, id, user, action, self.clock.monotonic()))

    def _give_token(self, request: Request) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        user = form.get("client_id", "")
        if user not in self.denied:
            return json_answer(400, {"error": "unauthorized_client", "error_description": f"there is no user {user!r}"})
        try:
            token = self.tokens.issue(user, form.get("scope", ""))
        except ValueError as error:
            return json_answer(400, {"error": "invalid_scope", "error_description": str(error)})
        told = {"access_token": token.token, "token_type": "Bearer", "expires_on": token.expires_on}
        return json_answer(200, {**told, "expires_in": round(self.tokens.life_s)})

    def _told(self, arrival: Arrival) -> dict[str, str]:
        id = str(uuid.uuid4())
        headers = {"x-ms-service-request-id": id, "REQ_ID": id}
        if arrival.user is not None:
            headers["x-ms-dop-hint"] = str(self.dop_hints[arrival.user])
            headers |= self._limits.window(arrival.user, arrival.web_server).remaining()
            pin = affinity(arrival.web_server)
            if pin not in arrival.headers.get("cookie", ""):
                headers["Set-Cookie"] = f"{pin};path=/;HttpOnly"
        return headers


def _strike_down(work: Work, struck: Struck) -> None:
    for problem in struck.whole(Problem):
        if work.suffers(problem) and not problem.is_applied:
            raise Refused(problem)
    for drop in struck.whole(Drop):
        if not drop.is_applied:
            raise Lost(is_reset=drop.is_reset)
