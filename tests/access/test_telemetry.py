"""What operators see: health, metrics of low cardinality, and log lines that can be followed and give nothing away."""

from __future__ import annotations

import io
import json
import logging

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from penstock import Context, Pipeline, operation, step
from penstock.api import Closed, Credentials, create_app
from penstock.errors import Unavailable
from penstock.telemetry.logs import JsonFormatter, LineFormatter, masked, request_id
from penstock.telemetry.measures import measures
from penstock.testing import engine


class Paper(BaseModel):
    name: str


@operation("papers", row_key="name")
class Papers(Pipeline[Paper, None]):
    @step(retries=3)
    async def read(self, paper: Paper, ctx: Context[None]) -> None:
        if paper.name == "torn":
            raise OSError("torn")

    @step.signal(key="paper-{row.name}", timeout=600)
    async def approve(self, paper: Paper, ctx: Context[None]) -> None:
        """Somebody is asked."""


@pytest.fixture
async def e(database_url, tmp_path, clock):
    async with engine([Papers], url=database_url, tmp_path=tmp_path, clock=clock) as made:
        yield made


async def numbers(db):
    return {
        f"{measure.name}{'{' + value + '}' if value else ''}": number
        for measure in await measures(db)
        for value, number in measure.values.items()
    }


async def test_the_numbers_tell_what_is_under_way(e, clock):
    empty = await numbers(e.penstock.db)
    assert {number for name, number in empty.items() if "lease" not in name} == {0}
    await e.create("papers", [{"name": "a"}, {"name": "b"}, {"name": "torn"}])
    await e.work_until_idle()
    await e.create("papers", [{"name": "c"}])
    found = await numbers(e.penstock.db)
    assert found.keys() == empty.keys()
    assert found["penstock_operations{Running}"] == 1
    assert found["penstock_operations{Pending}"] == 1
    assert found["penstock_rows{waiting}"] == 2
    assert found["penstock_rows{unprocessed}"] == 1
    assert found["penstock_waits{signal}"] == 2
    assert found["penstock_retries_pending"] == 1
    assert found["penstock_leases{live}"] == 1
    assert found["penstock_chunks{waiting}"] == 1
    clock.advance(700)
    assert (await numbers(e.penstock.db))["penstock_oldest_ready_chunk_seconds"] > 0
    assert (await numbers(e.penstock.db))["penstock_leases{lapsed}"] == 1


@pytest.fixture
async def http(e):
    app = create_app(e.penstock, access=Credentials(e.penstock))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://p.test") as client:
        yield client


@pytest.mark.databases("sqlite")
async def test_metrics_are_what_prometheus_reads_and_name_no_operation_row_or_tenant(e, http):
    made = await e.create("papers", [{"name": "secret-name"}])
    key = (await e.penstock.keys.create("prometheus"))[1]
    headers = {"authorization": f"Bearer {key}"}
    for path in (f"/api/bulks/{made.id}", f"/api/bulks/{made.id}/rows", "/x/1", "/x/2", "/%C3%A4"):
        await http.get(path, headers=headers)
    await http.request("BREW", "/x/3", headers=headers)
    answer = await http.get("/metrics", headers=headers)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {"penstock_operations", "penstock_rows", "penstock_http_requests"} <= families.keys()
    routes = {(s.labels["method"], s.labels["route"]) for s in families["penstock_http_requests"].samples}
    assert routes == {("GET", "/api/bulks/{id}"), ("GET", "/api/bulks/{id}/rows"), ("GET", "other"), ("other", "other")}
    assert made.id not in answer.text
    assert "secret-name" not in answer.text


@pytest.mark.databases("sqlite")
async def test_metrics_are_not_for_everybody(e, http):
    assert (await http.get("/metrics")).status_code == 401
    key = (await e.penstock.keys.create("ana", role="admin", tenant="acme"))[1]
    assert (await http.get("/metrics", headers={"authorization": f"Bearer {key}"})).status_code == 403


@pytest.mark.databases("sqlite")
async def test_a_server_whose_database_is_away_lives_and_is_not_ready(e, monkeypatch):
    app = create_app(e.penstock, access=Closed())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://p.test") as client:
        assert (await client.get("/health/ready")).json() == {"status": "ready"}

        def away():
            raise Unavailable("the database at 10.0.0.1 is away")

        monkeypatch.setattr(e.penstock.db, "connection", away)
        answer = await client.get("/health/ready")
        assert (answer.status_code, answer.json()) == (503, {"status": "unready"})
        assert (await client.get("/health/live")).status_code == 200


@pytest.mark.databases("sqlite")
async def test_a_request_has_an_id_its_callers_or_its_traces_or_one_of_its_own(http):
    traced = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for given, expected in [
        ({"x-request-id": "abc-1"}, "abc-1"),
        ({"traceparent": traced}, "4bf92f3577b34da6a3ce929d0e0e4736"),
    ]:
        assert (await http.get("/health/live", headers=given)).headers["x-request-id"] == expected
    for given in ({}, {"x-request-id": "a b"}, {"x-request-id": "x" * 65}, {"traceparent": "00-x"}):
        made = (await http.get("/health/live", headers=given)).headers["x-request-id"]
        assert len(made) == 16


SECRET_KEY = f"psk_{'0' * 12}_{'a' * 64}"


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"key {SECRET_KEY} used", "key psk_*** used"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("POST /api/signals/gAAAAABtoken/fail 200", "POST /api/signals/***/fail 200"),
        ("postgresql://u:hunter2@db/x", "postgresql://u:***@db/x"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.abc", "token ***"),
        ("mail to ana.smith@example.org now", "mail to a***@example.org now"),
        ("card 4111 1111 1111 1111 ok", "card *** ok"),
        ("iban DE89 3704 0044 0532 0130 00.", "iban DE89***."),
        ("row 12 of 0199a3c2-1b2f-7d4e-9c51-3f2a8b7c6d5e took 1234567 us", None),
        ("at 1731759600000001", None),
    ],
)
def test_what_gives_a_right_or_names_a_person_is_masked(text, expected):
    assert masked(text) == (expected or text)


def logged(formatter, message, *args, **options):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("penstock.api")
    logger.addHandler(handler)
    logger.warning(message, *args, **options)
    return stream.getvalue()


def test_what_a_row_says_cannot_begin_a_line_of_its_own():
    text = logged(LineFormatter("%(levelname)s %(message)s"), "row says %s", "x\nERROR all is lost\x1b[2J\u2028y")
    assert text == "WARNING row says x\\nERROR all is lost\\x1b[2J\\u2028y\n"


def test_a_line_names_the_request_it_belongs_to():
    token = request_id.set("abc-1")
    try:
        assert logged(LineFormatter("%(message)s"), "hello") == "hello [request abc-1]\n"
        document = json.loads(logged(JsonFormatter(), "to %s", "a@b.example", extra={"operation_id": "op"}))
    finally:
        request_id.reset(token)
    assert (document["message"], document["request_id"], document["operation_id"]) == (
        "to a***@b.example",
        "abc-1",
        "op",
    )


def test_a_traceback_is_masked_and_stays_readable():
    try:
        raise ValueError(f"bad key {SECRET_KEY}\nERROR forged")
    except ValueError:
        text = logged(LineFormatter("%(message)s"), "failed", exc_info=True)
    assert SECRET_KEY not in text
    assert all(line.startswith("  ") for line in text.splitlines()[1:])
