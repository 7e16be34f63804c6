"""Every route, for every role and for strangers: derived from the tables of routes, so that none is left out.

A new route without a role cannot be made. One with a parameter that is not known here fails: say what it stands for.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.access.model import ROLES
from penstock.api import Credentials, create_app
from penstock.api.table import ROUTES
from penstock.dashboard.table import ROUTES as PAGES
from penstock.testing import engine

sys.path.append(str(Path(__file__).parents[1] / "api"))
from parcel_service import Parcels

pytestmark = pytest.mark.databases("sqlite")

EVERY = (*ROUTES, *PAGES)
CANARY = "C4N4RY"
RANDOM_ID = "01999999-9999-7999-8999-999999999999"
HOSTS = count()  # each request comes from its own: wrong credentials are counted by address
RANDOM_KEY = "ffffffffffff"
DOOR = {
    "definition": {"name": f"door-{CANARY}", "version": "1.0.0"},
    "states": [{"name": "Shut", "is_initial": True}, {"name": "Open"}],
    "events": [{"name": "open"}],
    "transitions": [{"from": "Shut", "event": "open", "to": "Open"}],
}
# What the rest of a path stands for, where it names nothing that belongs to a tenant.
PLAIN = {
    "number": "1",
    "row": "1",
    "key:path": "approval-D1",
    "result": "failed",
    "action": "suspend",
    "token": "x",
    "key": "never-used",
}
BODIES: dict[str, Any] = {
    "/api/bulks/{id}/retry/rows": {"rowNumbers": [1]},
    "/api/bulks/{id}/rows/{number}": {"code": "X"},
    "/api/bulks/{id}/signals": {"signals": [{"key": "approval-D1"}]},
    "/api/lifecycle-instances/{guid}/trigger": {"event": "open"},
    "/api/lifecycle-instances/{guid}/force": {"state": "Open"},
}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str


@dataclass
class World:
    app: Any
    keys: dict[str, str]
    owned: dict[str, str]  # things of the tenant acme, by the part of the path that names them

    async def ask(self, route, path, who):
        """An answer as far as it comes: a stream is left after its beginning."""
        headers = [(b"host", b"penstock.test"), (b"content-type", b"application/json")]
        headers.append((b"origin", b"http://penstock.test"))
        if who is not None:
            headers.append((b"authorization", f"Bearer {self.keys.get(who, who)}".encode()))
        body = json.dumps(BODIES.get(route.path, {})).encode()
        if "login" in path or "upload" in path or "/waits" in path or "resend" in path:
            headers[1], body = (b"content-type", b"application/x-www-form-urlencoded"), b"key=x&then="
        bare, _, query = path.partition("?")
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": route.method}
        scope |= {"path": bare, "raw_path": bare.encode(), "query_string": query.encode(), "root_path": ""}
        scope |= {
            "scheme": "http",
            "headers": headers,
            "client": (f"host-{next(HOSTS)}", 1),
            "server": ("penstock.test", 80),
        }
        incoming: asyncio.Queue[Any] = asyncio.Queue()
        incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        sent: list[Any] = []
        over = asyncio.Event()

        async def send(message):
            sent.append(message)
            is_stream = any(b"event-stream" in value for _, value in sent[0]["headers"])
            if message["type"] == "http.response.body" and (is_stream or not message.get("more_body")):
                over.set()

        task = asyncio.create_task(self.app(scope, incoming.get, send))
        ended = asyncio.create_task(over.wait())
        await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
        incoming.put_nowait({"type": "http.disconnect"})
        ended.cancel()
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode(errors="replace")
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, text)

    def path(self, route, *, things):
        """The path of a route with these things in it."""

        def named(match):
            part = match[1]
            if part in ("name", "definition", "id", "guid", "operation"):
                return things[_kind(route.path)]
            return PLAIN[part]

        return re.sub(r"\{([^}]+)\}", named, route.path)


# What a name or an id belongs to, by how its path begins.
KINDS = (
    ("/api/bulks/", "operation"),
    ("/dashboard/operations/", "operation"),
    ("/api/keys/", "key"),
    ("/api/lifecycles/", "lifecycle"),
    ("/dashboard/lifecycles/", "lifecycle"),
    ("/api/lifecycle-instances/", "instance"),
    ("/dashboard/instances/", "instance"),
    ("/dashboard/blobs/", "blob"),
    ("/api/deliveries/", "delivery"),
    ("/api/blobs/", "blob"),
    ("/api/webhooks/", "webhook"),
    ("/api/webhook-deliveries/", "delivery"),
    ("/api/machines/", "machine"),
    ("/dashboard/assets/", "asset"),
    ("/api/operations/", "declared"),
    ("/dashboard/upload/", "declared"),
)


def _kind(path):
    """What the name or id in this path belongs to."""
    return next(kind for beginning, kind in KINDS if path.startswith(beginning))


COMMON = {"machine": "operation", "declared": "parcels", "asset": "penstock.css"}  # the same for every tenant
NOTHING = {
    **COMMON,
    "operation": RANDOM_ID,
    "instance": RANDOM_ID,
    "key": RANDOM_KEY,
    "lifecycle": "no-such-door",
    "delivery": RANDOM_ID,
    "webhook": RANDOM_ID,
    "blob": RANDOM_ID,
}


@pytest.fixture
async def world(database_url, tmp_path):
    async with engine([Parcels], url=database_url, tmp_path=tmp_path) as e:
        penstock, keys = e.penstock, {}
        for tenant in ("acme", "globex", ""):
            for role in ROLES:
                name = f"{role}@{tenant}"
                _, keys[name] = await penstock.keys.create(name, role=role, tenant=tenant)
        _, keys["bound"] = await penstock.keys.create("bound", role="admin", tenant="acme", operations=["other"])
        victim, _ = await penstock.keys.create(CANARY, tenant="acme")
        boss = penstock.seen_by(await penstock.keys.principal(keys["admin@acme"]))
        file = f"code,weight,value\n{CANARY},-1,5000\nD1,1,5000\n".encode()
        owned = await boss.operations.create("parcels", file=file, file_name=f"{CANARY}.csv")
        await e.work_until_idle()
        await boss.lifecycles.import_text(json.dumps(DOOR))
        instance = await boss.lifecycles.start(f"door-{CANARY}", reference=CANARY)
        webhook = await boss.webhooks.add(f"mailto:{CANARY}@example.com")
        things = {
            **COMMON,
            "operation": owned.id,
            "instance": instance.guid,
            "key": victim.id,
            "lifecycle": f"door-{CANARY}",
            "delivery": RANDOM_ID,
            "webhook": webhook.subscription.id,
            "blob": owned.blob_id,
        }
        yield World(create_app(penstock, access=Credentials(penstock)), keys, things)


def is_page(route):
    return route in PAGES


LEAST = {"tenant": "admin", "system": "admin", "monitor": "read"}


def suffices(role, needs):
    return needs == "public" or ROLES.index(role) >= ROLES.index(LEAST.get(needs, needs))


async def test_without_a_credential_or_with_a_wrong_one_only_public_routes_answer(world):
    wrong = world.keys["admin@acme"][:-4] + "0000"
    for route in EVERY:
        for who in (None, wrong):
            answer = await world.ask(route, world.path(route, things=NOTHING), who)
            if route.role == "public":
                assert answer.status not in (403, 500), route
                continue
            to_login = answer.status == 303 and "login" in answer.headers["location"]
            assert answer.status == 401 or (is_page(route) and to_login), (route.method, route.path, answer)


async def test_each_role_may_do_what_the_table_says_and_nothing_more(world):
    cells = Counter()
    # What deletes or ends things comes last, and nothing is named that exists, but for its kind.
    for route in EVERY:
        for role in ROLES:
            for tenant in ("acme", ""):
                answer = await world.ask(route, world.path(route, things=NOTHING), f"{role}@{tenant}")
                may = suffices(role, route.role) and (route.role not in ("system", "monitor") or tenant == "")
                assert (answer.status not in (401, 403)) == may, (route.method, route.path, role, tenant, answer)
                assert answer.status < 500, (route.method, route.path, role, answer)
                cells[may] += 1
    assert sum(cells.values()) == len(EVERY) * len(ROLES) * 2


async def test_what_belongs_to_another_tenant_is_answered_like_what_does_not_exist(world):
    for route in EVERY:
        real, made_up = world.path(route, things=world.owned), world.path(route, things=NOTHING)
        for who in ("admin@globex", "admin@", "bound"):
            if who == "bound" and ("lifecycle" in route.path or "instances" in route.path):
                continue  # operations are what such a key is bound to
            answers = [await world.ask(route, path, who) for path in (real, made_up)]
            texts = [
                answer.text.replace(path, "PATH").replace(world.owned[kind], "THING").replace(NOTHING[kind], "THING")
                for answer, path in zip(answers, (real, made_up), strict=True)
                for kind in [_kinds(route)]
            ]
            assert answers[0].status == answers[1].status, (route.method, route.path, who, answers)
            if real != made_up and route.role != "public":
                assert _steady(texts[0]) == _steady(texts[1]), (route.method, route.path, who)
            assert CANARY not in texts[0].replace(f"door-{CANARY}", "DOOR"), (route.method, route.path, who)


def _kinds(route):
    return _kind(route.path) if re.search(r"\{(id|guid|operation|name|definition)\}", route.path) else "operation"


def _steady(text):
    """Without what differs from answer to answer."""
    return re.sub(r"\d\d:\d\d:\d\d(\.\d+)?|nonce-\w+", "", text)


# Pages, and what of the API shows or does the same.
SAME = {
    ("GET", "/dashboard/blobs"): ("GET", "/api/blobs"),
    ("GET", "/dashboard/blobs/{id}"): ("GET", "/api/blobs/{id}"),
    ("GET", "/dashboard/blobs/{id}/file"): ("GET", "/api/blobs/{id}/content"),
    ("POST", "/dashboard/blobs/{id}/delete"): ("POST", "/api/blobs/{id}/delete"),
    ("GET", "/dashboard/webhooks"): ("GET", "/api/webhooks"),
    ("POST", "/dashboard/webhooks/resend"): ("POST", "/api/webhook-deliveries/resend"),
}


def test_a_page_needs_the_role_that_the_api_needs_for_the_same():
    roles = {(route.method, route.path): route.role for route in EVERY}
    assert {page: roles[page] for page in SAME} == {page: roles[same] for page, same in SAME.items()}


async def test_who_is_bound_to_some_operations_does_nothing_that_concerns_the_whole_tenant(world):
    for route in EVERY:
        answer = await world.ask(route, world.path(route, things=NOTHING), "bound")
        may = route.role not in ("tenant", "monitor", "system")
        assert (answer.status not in (401, 403)) == may, (route.method, route.path, answer)


async def test_the_owner_finds_what_strangers_do_not(world):
    """So that the test before is about things that are there."""
    found = 0
    for route in EVERY:
        path = world.path(route, things=world.owned)
        if route.method != "GET" or path == world.path(route, things=NOTHING):
            continue
        answer = await world.ask(route, path, "admin@acme")
        assert answer.status < 400 or answer.status == 422, (route.path, answer)
        found += 1
    assert found > 15
