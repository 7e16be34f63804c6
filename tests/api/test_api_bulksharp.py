"""BulkSharp's twenty routes: paths, inputs, fields and status codes, but for the differences we list."""

from __future__ import annotations

import csv
import io

import httpx
import pytest
from parcel_service import CSV, DEAR, upload

from penstock.api.table import ROUTES
from penstock.testing import Engine

pytestmark = pytest.mark.databases("sqlite")

UNKNOWN = "01900000-0000-7000-8000-000000000000"

TWENTY = [
    ("GET", "/api/operations"),
    ("GET", "/api/operations/{name}/template"),
    ("GET", "/api/bulks"),
    ("POST", "/api/bulks"),
    ("POST", "/api/bulks/validate"),
    ("GET", "/api/bulks/{id}"),
    ("GET", "/api/bulks/{id}/status"),
    ("GET", "/api/bulks/{id}/errors"),
    ("GET", "/api/bulks/{id}/rows"),
    ("GET", "/api/bulks/{id}/file"),
    ("GET", "/api/bulks/{id}/export"),
    ("POST", "/api/bulks/{id}/cancel"),
    ("POST", "/api/bulks/{id}/signal/{key}"),
    ("POST", "/api/bulks/{id}/signal/{key}/fail"),
    ("POST", "/api/bulks/{id}/retry"),
    ("POST", "/api/bulks/{id}/retry/rows"),
    ("GET", "/api/bulks/{id}/retry/eligibility"),
    ("GET", "/api/bulks/{id}/retry/history"),
    ("GET", "/api/bulks/{id}/events"),
    ("GET", "/api/events"),
]


async def ran(api: httpx.AsyncClient, works: Engine, file: bytes = CSV, **fields: str) -> str:
    made = await upload(api, file, **fields)
    await works.work_until_idle()
    return made


def test_all_twenty_are_there_with_the_roles_that_bulksharp_gives_them():
    roles = {(route.method, route.path.replace("{key:path}", "{key}")): route.role for route in ROUTES}
    assert {pair: roles.get(pair) for pair in TWENTY} == {
        pair: "read" if pair[0] == "GET" else "operate" for pair in TWENTY
    }


async def test_operations_say_what_they_take(api: httpx.AsyncClient):
    answer = await api.get("/api/operations")
    assert answer.status_code == 200
    [parcels] = answer.json()
    assert parcels | {"steps": None} == {
        "name": "parcels",
        "description": "Weigh parcels, have dear ones approved, and book them.",
        "isStepBased": True,
        "metadataType": "Tariff",
        "rowType": "Parcel",
        "typeFullName": "parcel_service.Parcels",
        "metadataFields": [
            {"name": "currency", "type": "str", "required": False},
            {"name": "dear_from", "type": "int", "required": False},
        ],
        "fileColumns": [
            {"name": "code", "type": "str", "required": True},
            {"name": "weight", "type": "float", "required": True},
            {"name": "value", "type": "int", "required": False},
        ],
        "rowKey": "code",
        "tags": [],
        "steps": None,
    }
    assert [step["kind"] for step in parcels["steps"]] == ["plain", "signal", "plain"]


async def test_a_template_has_the_header_of_the_file(api: httpx.AsyncClient):
    answer = await api.get("/api/operations/parcels/template")
    assert (answer.status_code, answer.text) == (200, "code,weight,value\r\n")
    assert answer.headers["content-type"].startswith("text/csv")
    assert 'filename="parcels-template.csv"' in answer.headers["content-disposition"]
    assert (await api.get("/api/operations/nothing/template")).status_code == 404


async def test_create_stores_the_file_and_says_where_the_operation_is(api: httpx.AsyncClient):
    answer = await api.post(
        "/api/bulks",
        files={"file": ("parcels.csv", CSV)},
        data={"operationName": "Parcels", "metadata": '{"currency": "CHF"}', "createdBy": "eve"},
    )
    made = answer.json()
    assert (answer.status_code, made["status"]) == (202, "Pending")
    assert answer.headers["location"] == f"/api/bulks/{made['operationId']}"
    found = (await api.get(answer.headers["location"])).json()
    assert found["operationName"] == "parcels"
    assert found["metadata"] == {"currency": "CHF", "dear_from": 1000}
    assert found["createdBy"] == "ana"  # the credential says who, not the form
    assert (found["fileName"], found["fileSize"]) == ("parcels.csv", len(CSV))


@pytest.mark.parametrize(
    "form, status, told",
    [
        ({"data": {"operationName": "parcels"}}, 422, "file"),
        ({"files": {"file": ("parcels.csv", CSV)}}, 422, "operationName"),
        ({"files": {"file": ("parcels.csv", CSV)}, "data": {"operationName": "x" * 201}}, 422, "operationName"),
        ({"files": {"file": ("parcels.csv", CSV)}, "data": {"operationName": "letters"}}, 404, "letters"),
        (
            {"files": {"file": ("parcels.csv", CSV)}, "data": {"operationName": "parcels", "metadata": "{"}},
            422,
            "metadata is not JSON",
        ),
        (
            {"files": {"file": ("a.csv", CSV)}, "data": {"operationName": "parcels", "metadata": '{"dear_from": "x"}'}},
            422,
            "dear_from",
        ),
        ({"files": {"file": ("parcels.doc", CSV)}, "data": {"operationName": "parcels"}}, 422, "parcels.doc"),
        ({"files": {"file": ("parcels.csv", b"")}, "data": {"operationName": "parcels"}}, 422, "parcels.csv"),
    ],
)  # fmt: skip
async def test_create_refuses_at_once_what_could_never_run(
    api: httpx.AsyncClient, works: Engine, form: dict[str, object], status: int, told: str
):
    answer = await api.post("/api/bulks", **form)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert told in answer.json()["error"] == answer.json()["detail"]
    assert (await works.operations.list()).items == []


async def test_validate_reports_everything_and_stores_nothing(api: httpx.AsyncClient, works: Engine):
    fields = {"operationName": "parcels", "metadata": '{"dear_from": "x"}'}
    answer = await api.post("/api/bulks/validate", files={"upload": ("parcels.csv", CSV)}, data=fields)
    found = answer.json()
    assert (answer.status_code, found["valid"]) == (200, False)
    assert "dear_from" in found["metadataErrors"][0]
    assert found["fileErrors"][0].startswith("row 2: weight")
    assert (found["totalRows"], found["invalidRows"]) == (4, 1)
    assert (await works.operations.list()).items == []
    without = await api.post("/api/bulks/validate", data={"operationName": "parcels"})
    assert (without.json()["valid"], without.json()["fileErrors"]) == (True, [])
    assert (await api.post("/api/bulks/validate", data={})).status_code == 422


async def test_the_list_has_pages_filters_and_an_order(api: httpx.AsyncClient, works: Engine):
    first = await ran(api, works)
    second = await ran(api, works)
    page = (await api.get("/api/bulks", params={"pageSize": 1, "page": 2})).json()
    assert [item["id"] for item in page["items"]] == [first]
    assert {name: page[name] for name in ("totalCount", "page", "pageSize", "hasNextPage")} == {
        "totalCount": 2,
        "page": 2,
        "pageSize": 1,
        "hasNextPage": False,
    }
    newest = (await api.get("/api/bulks", params={"limit": 1})).json()
    assert [item["id"] for item in newest["items"]] == [second]
    rest = (await api.get("/api/bulks", params={"limit": 1, "cursor": newest["nextCursor"]})).json()
    assert ([item["id"] for item in rest["items"]], rest["nextCursor"]) == ([first], None)
    query = {"status": "CompletedWithErrors", "operationName": "parc", "createdBy": "ana"}
    query |= {
        "sortBy": "CreatedAt",
        "sortDescending": "false",
        "fromDate": "2000-01-01",
        "toDate": "2100-01-01T00:00:00Z",
    }
    assert [item["id"] for item in (await api.get("/api/bulks", params=query)).json()["items"]] == [first, second]
    assert (await api.get("/api/bulks", params={"status": "Completed"})).json()["totalCount"] == 0
    for wrong in ({"status": "Odd"}, {"sortBy": "colour"}, {"fromDate": "soon"}, {"page": 0}, {"cursor": "x"}):
        assert (await api.get("/api/bulks", params=wrong)).status_code == 422, wrong


async def test_an_operation_and_its_status(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works)
    found = (await api.get(f"/api/bulks/{made}")).json()
    assert (found["id"], found["status"], found["totalRows"]) == (made, "CompletedWithErrors", 4)
    status = (await api.get(f"/api/bulks/{made}/status")).json()
    assert status == {
        "status": "CompletedWithErrors",
        "processedRows": 4,
        "totalRows": 4,
        "errorCount": 2,
        "completedAt": found["completedAt"],
        "progress": 100.0,
    }


@pytest.mark.parametrize("method, path", [pair for pair in TWENTY if "{id}" in pair[1]])
async def test_an_unknown_id_is_not_found_on_every_route(api: httpx.AsyncClient, method: str, path: str):
    body = {"rowNumbers": [1]} if path.endswith("rows") and method == "POST" else None
    answer = await api.request(method, path.replace("{id}", UNKNOWN).replace("{key}", "k"), json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


async def test_errors_name_row_step_and_reason(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works)
    page = (await api.get(f"/api/bulks/{made}/errors")).json()
    assert (page["totalCount"], page["page"], page["pageSize"], page["hasNextPage"]) == (2, 1, 20, False)
    invalid, failed = page["items"]
    assert (invalid["rowNumber"], invalid["rowId"], invalid["errorType"]) == (2, "P2", "Validation")
    assert (failed["rowNumber"], failed["errorType"]) == (3, "StepFailure")
    assert failed["errorMessage"] == "weight -3 is negative"
    assert failed["rowData"] == {"code": "P3", "weight": "-3", "value": "10"}
    assert failed["bulkOperationId"] == made
    assert failed["id"] != invalid["id"]
    assert failed["createdAt"].endswith("Z")
    for query in ({"rowNumber": 3}, {"rowId": "P3"}, {"errorType": "stepfailure"}):
        found = (await api.get(f"/api/bulks/{made}/errors", params=query)).json()
        assert ([item["rowNumber"] for item in found["items"]], found["totalCount"]) == ([3], 1)


async def test_a_page_of_rows_tells_how_many_fit(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works)
    for query, rows, total in [
        ({"pageSize": 3}, [1, 2, 3], 4),
        ({"pageSize": 3, "page": 2}, [4], 4),
        ({"pageSize": 3, "page": 3}, [], 4),
        ({"first": 2}, [2, 3, 4], 3),
        ({"last": 3, "pageSize": 2}, [1, 2], 3),
        ({"state": ["completed", "Completed"], "pageSize": 1}, [1], 2),
        ({"state": "Failed", "first": 4}, [], 0),
        ({"rowId": "P4"}, [4], 1),
    ]:
        page = (await api.get(f"/api/bulks/{made}/rows", params=query)).json()
        assert ([row["rowNumber"] for row in page["items"]], page["totalCount"]) == (rows, total), query


async def test_rows_show_their_current_state_and_the_planned_steps(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works)
    page = (await api.get(f"/api/bulks/{made}/rows")).json()
    assert (page["totalCount"], page["pageSize"]) == (4, 100)
    assert [row["currentState"] for row in page["items"]] == ["Completed", "Invalid", "Failed", "Completed"]
    third = page["items"][2]
    assert (third["currentStep"], third["completedSteps"], third["totalSteps"]) == ("weigh", 0, 3)
    assert {"stepName", "state", "signalKey", "startedAt", "completedAt", "errorMessage"} <= third["steps"][-1].keys()
    for query, rows in [
        ({"state": "failed"}, [3]),
        ({"rowId": "P4"}, [4]),
        ({"stepName": "weigh"}, [3]),
        ({"page": 2, "pageSize": 3}, [4]),
        ({"page": 2, "pageSize": 1, "state": "Completed"}, [4]),
        ({"page": 9}, []),
    ]:
        found = (await api.get(f"/api/bulks/{made}/rows", params=query)).json()
        assert [row["rowNumber"] for row in found["items"]] == rows, query
    assert (await api.get(f"/api/bulks/{made}/rows", params={"state": "Odd"})).status_code == 422


async def test_the_file_comes_back_as_it_was(api: httpx.AsyncClient):
    made = await upload(api)
    answer = await api.get(f"/api/bulks/{made}/file")
    assert (answer.status_code, answer.content) == (200, CSV)
    assert 'filename="parcels.csv"' in answer.headers["content-disposition"]
    again = await api.get(f"/api/bulks/{made}/file", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304


async def test_an_export_is_a_report_or_the_data(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works)
    report = await api.get(f"/api/bulks/{made}/export")
    assert f'filename="operation-{made}-report.csv"' in report.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(report.text)))
    assert [row["state"] for row in rows] == ["Completed", "Invalid", "Failed", "Completed"]
    assert (rows[2]["errorType"], rows[2]["errorMessage"]) == ("StepFailure", "weight -3 is negative")
    assert rows[1]["errorType"] == "Validation"
    data = await api.get(f"/api/bulks/{made}/export", params={"mode": "data", "state": "Failed"})
    assert data.text == "code,weight,value\r\nP3,-3,10\r\n"
    as_json = await api.get(f"/api/bulks/{made}/export", params={"mode": "data", "format": "json"})
    assert [row["code"] for row in as_json.json()] == ["P1", "P2", "P3", "P4"]
    for wrong in ({"mode": "x"}, {"format": "xml"}, {"state": "Odd"}, {"errorType": "Odd"}, {"stepName": "odd"}):
        assert (await api.get(f"/api/bulks/{made}/export", params=wrong)).status_code == 422, wrong


async def test_cancel_says_what_became_of_the_operation(api: httpx.AsyncClient, works: Engine):
    made = await upload(api)
    answer = await api.post(f"/api/bulks/{made}/cancel", json={"cause": "wrong file"})
    assert (answer.status_code, answer.json()["status"]) == (200, "Cancelled")
    done = await ran(api, works)
    late = await api.post(f"/api/bulks/{done}/cancel")
    assert (late.status_code, late.json()["code"]) == (409, "illegal-move")


async def test_retry_runs_failed_rows_again(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works)
    eligible = (await api.get(f"/api/bulks/{made}/retry/eligibility")).json()
    assert (eligible["isEligible"], eligible["reason"], eligible["eligibleRows"]) == (True, None, 1)
    answer = await api.post(f"/api/bulks/{made}/retry")
    assert answer.status_code == 200
    assert {name: answer.json()[name] for name in ("operationId", "rowsSubmitted", "rowsSkipped")} == {
        "operationId": made,
        "rowsSubmitted": 1,
        "rowsSkipped": 1,
    }
    assert "row 2" in answer.json()["skippedReasons"][0]
    refused = await api.post(f"/api/bulks/{made}/retry")
    assert refused.status_code == 409
    await works.work_until_idle()
    again = await api.post(f"/api/bulks/{made}/retry/rows", json={"rowNumbers": [3]})
    assert (again.status_code, again.json()["rowsSubmitted"]) == (200, 1)
    for wrong in ({"rowNumbers": []}, {"rowNumbers": None}, {"rowNumbers": [0]}, {}):
        assert (await api.post(f"/api/bulks/{made}/retry/rows", json=wrong)).status_code == 422


async def test_the_history_keeps_what_was_retried(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works)
    await api.post(f"/api/bulks/{made}/retry")
    await works.work_until_idle()
    page = (await api.get(f"/api/bulks/{made}/retry/history", params={"rowNumber": 3})).json()
    assert (page["totalCount"], page["page"], page["pageSize"], page["hasNextPage"]) == (1, 1, 100, False)
    [entry] = page["items"]
    assert (entry["rowNumber"], entry["attempt"], entry["errorType"]) == (3, 0, "StepFailure")
    assert (entry["bulkOperationId"], entry["failedAt"]) == (made, entry["createdAt"])
    assert (await api.get(f"/api/bulks/{made}/retry/history", params={"rowNumber": 1})).json()["items"] == []


async def test_events_tell_every_move_in_order(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works)
    other = await ran(api, works)
    moves = (await api.get(f"/api/bulks/{made}/events")).json()
    assert moves[0]["type"] == "Created"
    assert (moves[-1]["type"], moves[-1]["severity"], moves[-1]["to"]) == (
        "Completed",
        "Warning",
        "CompletedWithErrors",
    )
    assert {move["operationName"] for move in moves} == {"parcels"}
    assert all({"sequence", "operationId", "message", "timestamp"} <= move.keys() for move in moves)
    numbers = [move["sequence"] for move in moves]
    assert numbers == sorted(numbers)
    every = (await api.get("/api/events", params={"since": 0})).json()
    assert [move["sequence"] for move in every if move["operationId"] == made] == numbers
    newest = (await api.get("/api/events", params={"limit": 2})).json()
    assert newest == every[-2:]
    assert {move["operationId"] for move in newest} == {other}
    behind = (await api.get(f"/api/bulks/{made}/events", params={"since": numbers[0], "limit": 1})).json()
    assert [move["sequence"] for move in behind] == numbers[1:2]
    assert (await api.get("/api/events", params={"limit": 501})).status_code == 422


# --- signals


@pytest.mark.covers("SG-011", "SG-035", "SG-036", "SG-051")
async def test_a_signal_over_http_needs_the_users_part_of_the_key_only(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works, DEAR)
    answer = await api.post(f"/api/bulks/{made}/signal/approval-D1")
    assert answer.status_code == 200
    told = {name: answer.json()[name] for name in ("rowNumber", "step", "completed", "failed", "error", "crossProcess")}
    assert told == {
        "rowNumber": 1,
        "step": "approve",
        "completed": True,
        "failed": False,
        "error": None,
        "crossProcess": False,
    }
    await works.work_until_idle()
    assert (await api.get(f"/api/bulks/{made}/rows/1")).json()["state"] == "Completed"


@pytest.mark.covers("SG-036")
async def test_an_early_signal_is_stored_and_a_hopeless_one_refused(api: httpx.AsyncClient, works: Engine):
    made = await upload(api, DEAR)
    early = await api.post(f"/api/bulks/{made}/signal/approval-D3")
    assert (early.status_code, early.json()["stored"], early.json()["completed"]) == (202, True, False)
    hopeless = await api.post(f"/api/bulks/{made}/signal/refund-1")
    assert (hopeless.status_code, hopeless.json()["code"]) == (404, "no-such-wait")
    assert "refund-1" in hopeless.json()["error"]
    await works.work_until_idle()
    assert (await api.get(f"/api/bulks/{made}/rows/3")).json()["state"] == "Completed"


@pytest.mark.covers("SG-037", "SG-038")
@pytest.mark.parametrize("name", ["errorMessage", "ErrorMessage", "errormessage"])
async def test_a_failure_signal_fails_the_row_with_its_message(api: httpx.AsyncClient, works: Engine, name: str):
    made = await ran(api, works, DEAR)
    answer = await api.post(f"/api/bulks/{made}/signal/approval-D1/fail", json={name: "declined"})
    assert (answer.status_code, answer.json()["failed"], answer.json()["error"]) == (200, True, "declined")
    await works.work_until_idle()
    [error] = (await api.get(f"/api/bulks/{made}/errors")).json()["items"]
    assert (error["rowNumber"], error["errorType"], error["errorMessage"]) == (1, "SignalFailure", "declined")


@pytest.mark.covers("SG-039")
async def test_any_key_can_be_sent_in_the_path_or_in_the_body(api: httpx.AsyncClient, works: Engine):
    file = b"code,weight,value\na/b,1,5000\nc/fail,1,5000\nd e?,1,5000\n"
    made = await ran(api, works, file)
    for path in ("approval-a%2Fb", "approval-c%2Ffail"):
        answer = await api.post(f"/api/bulks/{made}/signal/{path}")
        assert (answer.status_code, answer.json()["completed"]) == (200, True), path
    body = {"key": "approval-d e?", "outcome": "failed", "errorMessage": "no", "row": 3}
    answer = await api.post(f"/api/bulks/{made}/signals", json=body)
    assert (answer.status_code, answer.json()["rowNumber"], answer.json()["failed"]) == (200, 3, True)
    await works.work_until_idle()
    states = [row["state"] for row in (await api.get(f"/api/bulks/{made}/rows")).json()["items"]]
    assert states == ["Completed", "Completed", "Failed"]


async def test_a_signal_that_comes_twice_with_one_id_counts_once(api: httpx.AsyncClient, works: Engine):
    made = await ran(api, works, DEAR)
    headers = {"webhook-id": "delivery-1"}
    first = await api.post(f"/api/bulks/{made}/signal/approval-D1", json={"payload": None}, headers=headers)
    await works.work_until_idle()
    again = await api.post(f"/api/bulks/{made}/signal/approval-D1", headers=headers)
    assert (first.json()["outcome"], again.json()["outcome"]) == ("delivered", "duplicate")
    assert (again.status_code, again.json()["rowNumber"]) == (200, 1)
