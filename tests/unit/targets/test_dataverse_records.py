"""How records are written for Dataverse, and which of them are the same."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from penstock.errors import SettingsInvalid
from penstock.targets.dataverse import CustomLogicBypass, DataverseOptions, DataverseTarget, Lookup
from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.entities import Spelling, encode, identity, references
from penstock.targets.dataverse.options import behaviour, platform_options
from penstock.targets.dataverse.requests import single_request
from penstock.targets.dataverse.table_metadata import Table
from penstock.targets.model import BulkOptions, ErrorKind, Mode, TargetError
from penstock.targets.target import Batch, Reference

ORDER = Table("order", "orders", "orderid", is_elastic=False)
READING = Table("reading", "readings", "readingid", is_elastic=True)
ID, OTHER = "7c0e8f00-0000-4000-8000-000000000001", "7c0e8f00-0000-4000-8000-000000000002"


def call(mode: Mode, *records: Any, table: Table = ORDER, spelling: Spelling | None = None, **options: Any) -> Call:
    asked = DataverseOptions(**options)
    return Call(Batch(table.name, mode, records, asked, "k"), asked, spelling or Spelling(table))


def targets(made: Call) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(made.body())["Targets"]
    return found


def test_every_target_says_its_type():
    assert targets(call(Mode.CREATE, {"code": "A"})) == [{"@odata.type": "Microsoft.Dynamics.CRM.order", "code": "A"}]


def test_values_are_written_as_the_platform_reads_them():
    written = encode(
        {"d": Decimal("1.50"), "t": datetime(2030, 1, 1, tzinfo=UTC), "on": date(2030, 1, 1), "id": UUID(ID), "b": b"x"}
    )
    assert written == b'{"d":1.50,"t":"2030-01-01T00:00:00Z","on":"2030-01-01","id":"%s","b":"eA=="}' % ID.encode()


def test_a_value_that_is_no_json_is_blamed_on_its_record():
    with pytest.raises(TargetError) as caught:
        call(Mode.CREATE, {"code": "A"}, {"code": object()}).body()
    assert (caught.value.kind, caught.value.suspects) == (ErrorKind.DATA, (1,))


def test_lookups_and_named_references_become_bindings_under_their_navigation_names():
    spelling = Spelling(
        ORDER,
        references={"parentid": "order"},
        sets={"order": "orders", "contact": "contacts"},
        navigation={("customerid", "contact"): "customerid_Contact"},
    )
    record = {
        "parentid": ID.upper(),
        "customerid": Lookup("contact", {"mail": "o'b@x.org"}),
        "Owner@odata.bind": "/teams(1)",
    }
    assert spelling.entity(record) == {
        "@odata.type": "Microsoft.Dynamics.CRM.order",
        "parentid@odata.bind": f"/orders({ID})",
        "customerid_Contact@odata.bind": "/contacts(mail='o''b%40x.org')",
        "Owner@odata.bind": "/teams(1)",
    }
    assert spelling.entity({"parentid": None})["parentid@odata.bind"] is None


def test_a_reference_that_is_no_id_is_blamed_on_its_record():
    made = call(
        Mode.CREATE, {}, {"of": Lookup("contact", "A-1")}, spelling=Spelling(ORDER, sets={"contact": "contacts"})
    )
    with pytest.raises(TargetError) as caught:
        made.body()
    assert (caught.value.kind, caught.value.suspects) == (ErrorKind.DATA, (1,))


def test_an_upsert_by_alternate_key_names_the_record_and_does_not_repeat_its_key():
    (target,) = targets(call(Mode.UPSERT, {"code": "A/1", "part": 2, "qty": 3}, alternate_key=["code", "part"]))
    assert target == {
        "@odata.id": "orders(code='A%2F1',part=2)",
        "@odata.type": "Microsoft.Dynamics.CRM.order",
        "qty": 3,
    }


def test_an_upsert_by_alternate_key_does_not_claim_the_id_it_would_have_if_it_were_new():
    made = call(Mode.UPSERT, {"code": "A", "orderid": ID}, alternate_key=["code"])
    assert made.id(0) is None
    assert targets(made)[0]["orderid"] == ID


def test_a_lookup_in_an_alternate_key_goes_by_the_name_of_its_value():
    made = call(Mode.UPSERT, {"customerid": Lookup("contact", ID), "code": "A"}, alternate_key=["customerid", "code"])
    assert made.key(0) == {"_customerid_value": UUID(ID), "code": "A"}


@pytest.mark.covers("BX-029")
@pytest.mark.parametrize(
    "made, guilty",
    [
        (call(Mode.UPDATE, {"orderid": ID}, {"orderid": "A-1"}, {"qty": 1}), (1, 2)),
        (call(Mode.UPSERT, {"code": None}, {"code": "A"}, alternate_key=["code"]), (0,)),
        (call(Mode.UPSERT, {"code": ["A"]}, {"orderid": ID}), (0,)),
        (call(Mode.UPSERT, {"code": ["A"]}, {"code": "A"}, alternate_key=["code"]), (0,)),
        (call(Mode.CREATE, {"code": "A"}, {"code": None}, alternate_key=["code"]), (1,)),
        (call(Mode.CREATE, {"code": "A"}, {"orderid": "A"}), (1,)),
        (call(Mode.DELETE, ID, "A-1"), (1,)),
    ],
)
def test_records_that_cannot_be_addressed_are_named_together_before_anything_is_sent(made: Call, guilty: tuple[int]):
    with pytest.raises(TargetError) as caught:
        made.check()
    assert (caught.value.kind, caught.value.suspects) == (ErrorKind.DATA, guilty)


def test_ids_of_our_making_stay_the_same_for_every_try_of_a_batch_and_differ_between_records():
    first, again = (call(Mode.CREATE, {}, {}, client_made_ids=True) for _ in range(2))
    assert [first.id(0), first.id(1)] == [again.id(0), again.id(1)]
    assert first.id(0) != first.id(1)
    assert [target["orderid"] for target in targets(first)] == [first.id(0), first.id(1)]


def test_a_record_that_brings_its_id_keeps_it():
    assert call(Mode.CREATE, {"orderid": ID}, client_made_ids=True).id(0) == ID


def test_only_elastic_tables_get_ids_from_us_unasked():
    assert call(Mode.CREATE, {}).id(0) is None
    assert call(Mode.CREATE, {}, table=READING).id(0) is not None


def test_an_elastic_delete_names_the_partition_it_was_given():
    assert targets(call(Mode.DELETE, {"readingid": ID, "partitionid": "p"}, OTHER, table=READING)) == [
        {"@odata.type": "Microsoft.Dynamics.CRM.reading", "readingid": ID, "partitionid": "p"},
        {"@odata.type": "Microsoft.Dynamics.CRM.reading", "readingid": OTHER},
    ]


@pytest.mark.parametrize(
    "made, method, path",
    [
        (call(Mode.CREATE, {"code": "A"}, tag="a b"), "POST", "/api/orders?tag=a%20b"),
        (call(Mode.UPDATE, {"orderid": ID, "qty": 1}), "PATCH", f"/api/orders({ID})"),
        (call(Mode.UPSERT, {"orderid": ID}), "PATCH", f"/api/orders({ID})?$select=orderid"),
        (call(Mode.DELETE, ID, tag="t"), "DELETE", f"/api/orders({ID})?tag=t"),
        (call(Mode.DELETE, {"code": "A 1"}), "DELETE", "/api/orders(code='A%201')"),
    ],
)
def test_a_record_of_its_own_goes_to_its_own_address(made: Call, method: str, path: str):
    found = single_request(made, 0, "/api/")
    assert (found.method, found.path) == (method, path)


def test_a_record_of_a_partition_is_addressed_in_it():
    made = call(Mode.UPSERT, {"readingid": ID, "partitionid": "p", "value": 1}, table=READING)
    found = single_request(made, 0, "/")
    assert found.path == f"/readings(readingid={ID},partitionid='p')?$select=readingid"
    assert json.loads(found.body) == {"@odata.type": "Microsoft.Dynamics.CRM.reading", "value": 1}


def test_an_update_of_its_own_never_creates():
    assert single_request(call(Mode.UPDATE, {"orderid": ID}), 0, "/").headers["If-Match"] == "*"
    assert "If-Match" not in single_request(call(Mode.UPSERT, {"orderid": ID}), 0, "/").headers


@pytest.mark.covers("BX-092", "BX-093", "BX-094", "BX-095", "BX-096", "BX-097", "BX-098")
def test_the_defaults_are_those_of_the_document():
    options = DataverseOptions()
    assert (options.batch_size, options.continue_on_error, options.max_parallel_batches) == (None, True, None)
    assert DataverseTarget.batch_size == 100
    assert (options.elastic_table, options.tag, options.bypass_custom_logic) == (None, None, CustomLogicBypass.NONE)
    assert not options.bypass_power_automate_flows
    assert not options.suppress_duplicate_detection


@pytest.mark.covers("BX-095")
def test_the_bypass_flags_have_the_values_of_the_document():
    assert [flag.value for flag in (CustomLogicBypass.NONE, *CustomLogicBypass, CustomLogicBypass.ALL)] == [0, 1, 2, 3]


@pytest.mark.covers("BX-095", "BX-096", "BX-097")
def test_options_become_headers():
    assert behaviour(DataverseOptions(), Mode.CREATE) == {"MSCRM.SuppressDuplicateDetection": "false"}
    assert behaviour(DataverseOptions(), Mode.DELETE) == {}
    everything = DataverseOptions(
        bypass_custom_logic=CustomLogicBypass.ALL, bypass_power_automate_flows=True, suppress_duplicate_detection=True
    )
    assert behaviour(everything, Mode.UPSERT) == {
        "MSCRM.BypassBusinessLogicExecution": "CustomSync,CustomAsync",
        "MSCRM.SuppressCallbackRegistrationExpanderJob": "true",
        "MSCRM.SuppressDuplicateDetection": "true",
    }
    one = DataverseOptions(bypass_custom_logic=CustomLogicBypass.ASYNCHRONOUS)
    assert behaviour(one, Mode.DELETE) == {"MSCRM.BypassBusinessLogicExecution": "CustomAsync"}


@pytest.mark.covers("BX-099")
def test_general_options_are_kept_when_the_platforms_defaults_are_added():
    general = BulkOptions(batch_size=7, continue_on_error=False, references={"a": "b"})
    ours = platform_options(general)
    assert all(getattr(ours, field.name) == getattr(general, field.name) for field in fields(BulkOptions))


@pytest.mark.parametrize(
    "wrong", [{"alternate_key": "code"}, {"alternate_key": []}, {"tag": ""}, {"bypass_custom_logic": 3}]
)
def test_options_that_cannot_be_meant_are_refused(wrong: dict[str, Any]):
    with pytest.raises(SettingsInvalid, match=next(iter(wrong))):
        DataverseOptions(**wrong)


@pytest.mark.parametrize(
    "table, mode, one, two, key",
    [
        (ORDER, Mode.UPDATE, {"orderid": ID}, {"orderid": ID.upper()}, None),
        (ORDER, Mode.DELETE, ID, UUID(ID), None),
        (ORDER, Mode.DELETE, {"code": "A"}, {"code": "a"}, None),
        (ORDER, Mode.UPSERT, {"code": "a "}, {"code": "A"}, ["code"]),
        (ORDER, Mode.UPSERT, {"of": Lookup("x", ID)}, {"of": Lookup("x", ID.upper())}, ["of"]),
    ],
)
def test_records_that_the_platform_takes_for_the_same_are_the_same(
    table: Table, mode: Mode, one: Any, two: Any, key: list[str] | None
):
    assert identity(table, mode, one, key) == identity(table, mode, two, key) is not None


@pytest.mark.parametrize(
    "table, mode, one, two, key",
    [
        (ORDER, Mode.UPDATE, {"orderid": ID}, {"orderid": OTHER}, None),
        (ORDER, Mode.UPSERT, {"code": "a", "p": 1}, {"code": "a", "p": 2}, ["code", "p"]),
        (READING, Mode.UPDATE, {"readingid": ID, "partitionid": "p"}, {"readingid": ID, "partitionid": "q"}, None),
    ],
)
def test_records_that_differ_in_their_key_or_partition_are_different(
    table: Table, mode: Mode, one: Any, two: Any, key: list[str] | None
):
    assert identity(table, mode, one, key) != identity(table, mode, two, key)


def test_new_records_without_a_key_are_all_different():
    assert identity(ORDER, Mode.CREATE, {"code": "A"}, None) is None
    assert identity(ORDER, Mode.UPSERT, {"code": None}, ["code"]) is None


def test_references_are_found_in_lookups_bindings_and_named_columns():
    record = {"a": Lookup("contact", ID), "B@odata.bind": f"/orders({OTHER})", "c": "x", "d": None, "e": 1}
    assert list(references(record, {"c": "team", "d": "team"}, {"orders": "order"})) == [
        Reference("a", "contact", ID),
        Reference("B", "order", OTHER),
        Reference("c", "team", "x"),
    ]
    assert list(references(ID, {}, {})) == []
