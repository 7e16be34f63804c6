"""Lifecycles over HTTP: import, look, start, trigger; and what their consumers are told."""

from __future__ import annotations

import json

import httpx
import pytest

from penstock.testing import Engine

pytestmark = pytest.mark.databases("sqlite")

DOOR = {
    "definition": {"name": "door", "version": "1.0.0"},
    "states": [{"name": "Shut", "is_initial": True}, {"name": "Open"}, {"name": "Gone", "is_final": True}],
    "events": [{"name": "open"}, {"name": "close"}, {"name": "remove"}],
    "transitions": [
        {"from": "Shut", "event": "open", "to": "Open"},
        {"from": "Open", "event": "close", "to": "Shut"},
        {"from": "Open", "event": "remove", "to": "Gone"},
    ],
}


async def imported(api: httpx.AsyncClient) -> None:
    answer = await api.post("/api/lifecycles", content=json.dumps(DOOR))
    assert answer.status_code == 201, answer.text


async def test_a_definition_is_imported_once_and_kept_byte_for_byte(api: httpx.AsyncClient):
    await imported(api)
    again = await api.post("/api/lifecycles", content=json.dumps(DOOR))
    assert (again.status_code, again.json()["unchanged"]) == (200, True)
    assert (await api.get("/api/lifecycles/door/document")).text == json.dumps(DOOR)
    [listed] = (await api.get("/api/lifecycles")).json()["items"]
    assert (listed["definition"], listed["version"], listed["instances"]) == ("door", "1.0.0", 0)
    assert (await api.get("/api/lifecycles/door")).json()["counts"] == []
    assert len((await api.get("/api/lifecycles/door/versions")).json()["items"]) == 1
    picture = await api.get("/api/lifecycles/door/diagram")
    assert (picture.headers["content-type"], picture.text[:4]) == ("image/svg+xml", "<svg")
    assert (await api.get("/api/lifecycles/door/diff", params={"before": "1.0.0"})).json()["items"] == []
    wrong = await api.post("/api/lifecycles", content=b"{")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "definition-invalid")
    assert (await api.get("/api/lifecycles/window")).status_code == 404


async def test_an_instance_is_started_moved_and_looked_at(api: httpx.AsyncClient):
    await imported(api)
    started = await api.post("/api/lifecycles/door/instances", json={"reference": "front", "data": {"colour": "red"}})
    assert started.status_code == 201
    place = started.headers["location"]
    assert (await api.get(place)).json()["state"] == "Shut"
    [event] = (await api.get(f"{place}/events")).json()["items"]
    assert (event["event"], event["to"], event["isAllowed"]) == ("open", "Open", True)
    moved = await api.post(f"{place}/trigger", json={"event": "open", "cause": "knock"})
    assert (moved.status_code, moved.json()["outcome"], moved.json()["to"]) == (200, "applied", "Open")
    refused = await api.post(f"{place}/trigger", json={"event": "open"})
    assert (refused.status_code, refused.json()["code"]) == (409, "not-allowed")
    assert refused.json()["allowed"] == ["close", "remove"]
    log = (await api.get(f"{place}/log")).json()["items"]
    assert [(entry["kind"], entry["actor"]) for entry in log] == [("started", "ana"), ("moved", "ana")]
    suspended = await api.post(f"{place}/actions/suspend", json={"cause": "storm"})
    assert "Suspended" in suspended.json()["flags"]
    found = (await api.get("/api/lifecycle-instances", params={"flags": "suspended", "definition": "door"})).json()
    assert [instance["reference"] for instance in found["items"]] == ["front"]
    await api.post(f"{place}/actions/resume")
    forced = await api.post(f"{place}/force", json={"state": "Shut", "cause": "broken hinge"})
    assert forced.json()["state"] == "Shut"
    assert (await api.delete(place)).status_code == 409
    assert (await api.delete(place, params={"force": "true"})).status_code == 204
    assert (await api.get(place)).status_code == 404


async def test_many_instances_are_moved_by_one_request(api: httpx.AsyncClient):
    await imported(api)
    guids = [(await api.post("/api/lifecycles/door/instances")).json()["guid"] for _ in range(3)]
    answer = await api.post("/api/lifecycle-instances/trigger", json={"guids": guids, "event": "open"})
    assert [outcome["outcome"] for outcome in answer.json()["items"]] == ["applied"] * 3


async def test_deliveries_are_listed_acknowledged_and_sent_again(api: httpx.AsyncClient, works: Engine):
    await imported(api)
    await works.penstock.deliveries.register("billing", definition="door")
    guid = (await api.post("/api/lifecycles/door/instances")).json()["guid"]
    await api.post(f"/api/lifecycle-instances/{guid}/trigger", json={"event": "open"})
    found = (await api.get("/api/deliveries", params={"consumer": "billing"})).json()["items"]
    message = found[-1]["messageId"]
    assert (await api.post(f"/api/deliveries/{message}/resend")).json() == {"deliveries": 1}
    answer = await api.post(f"/api/deliveries/{message}/acknowledge")
    assert answer.json()["state"] == "Processed"
    assert (await api.post("/api/deliveries/resend", json={"failed": True})).json() == {"deliveries": 0}
    assert (await api.post("/api/deliveries/resend", json={})).status_code == 422
