"""The OpenAPI description holds: schemathesis sends what it allows, and believes no answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from parcel_service import CSV, DEAR, Parcels
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.api import Trusted, create_app
from penstock.api.openapi import describe
from penstock.api.table import ROUTES
from penstock.testing import engine

EXAMPLES = 5  # of each route: some 300 calls in all
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
DOOR = {
    "definition": {"name": "door", "version": "1.0.0"},
    "states": [{"name": "Shut", "is_initial": True}, {"name": "Open"}],
    "events": [{"name": "open"}, {"name": "close"}],
    "transitions": [
        {"from": "Shut", "event": "open", "to": "Open"},
        {"from": "Open", "event": "close", "to": "Shut"},
    ],
}
TESTED = [route for route in ROUTES if route.options.get("include_in_schema", True)]


class Served:
    """A server in a thread, with an operation that has ended, one that waits, and a lifecycle."""

    url: str
    schema: Any
    values: dict[str, list[str]]

    def __init__(self, folder: Path) -> None:
        self._folder, self._is_ready = folder, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._failure: BaseException | None = None

    def __enter__(self) -> Served:
        self._thread.start()
        self._is_ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _run(self) -> None:
        try:
            async with engine([Parcels], tmp_path=self._folder) as works:
                ended = await works.run(Parcels, CSV, file_name="parcels.csv")
                waiting = await works.create(Parcels, DEAR, file_name="parcels.csv")
                await works.work_until_idle()
                await works.penstock.lifecycles.import_text(json.dumps(DOOR))
                instance = await works.penstock.lifecycles.start("door")
                app = create_app(works.penstock, access=Trusted(), dashboard=False)
                self.values = {
                    "id": [ended.id, waiting.id],
                    "ended": [ended.id],
                    "guid": [instance.guid],
                    "name": ["parcels", "door", "operation"],
                }
                self.schema = schemathesis.openapi.from_dict(describe(app))
                listener = socket.create_server(("127.0.0.1", 0))
                self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                self._server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
                self._is_ready.set()
                await self._server.serve(sockets=[listener])
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._is_ready.set()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.mark.parametrize("route", TESTED, ids=lambda route: route.name)
def test_answers_are_as_described_whatever_is_sent(served: Served, route: Any):
    operation = served.schema[route.path.replace("{key:path}", "{key}")][route.method]

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), pick=st.integers(min_value=0))
    def send(case: Any, pick: int) -> None:
        is_stream = route.path.endswith("/stream")
        for name in case.path_parameters or {}:
            known = served.values["ended" if is_stream else name] if name in served.values else []
            if known and (pick % 3 or is_stream):
                case.path_parameters[name] = known[pick % len(known)]
        case.call_and_validate(base_url=served.url, checks=CHECKS)

    with contextlib.suppress(schemathesis.errors.SerializationNotPossible):
        send()


def test_every_route_that_is_not_hidden_is_described(served: Served):
    described = {(method.upper(), path) for path, methods in served.schema.items() for method in methods}
    assert described == {(route.method, route.path.replace("{key:path}", "{key}")) for route in TESTED}


def test_generators_of_clients_find_a_schema_for_every_body_and_a_name_for_every_shape(served: Served):
    document = served.schema.raw_schema
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    bodies = [body for each in operations for body in each.get("requestBody", {}).get("content", {}).values()]
    assert bodies
    assert all(body.get("schema") for body in bodies)
    titles = Counter(shape["title"] for shape in document["components"]["schemas"].values())
    assert [title for title, shapes in titles.items() if shapes > 1] == []


def test_instants_are_described_as_such(served: Served):
    shapes = served.schema.raw_schema["components"]["schemas"]
    told = [(name, field, kind) for name, shape in shapes.items() for field, kind in shape["properties"].items()]
    instants = [each for each in told if each[1].endswith("At") or each[1] in ("at", "deadline", "since", "timestamp")]
    assert instants
    assert [each[:2] for each in instants if '"date-time"' not in json.dumps(each[2])] == []
