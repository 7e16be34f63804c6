"""Create, update, upsert and delete on standard tables, over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from dataverse_remote import Remote, executor, opened, outcomes

from penstock.errors import SettingsInvalid
from penstock.targets.dataverse import DataverseOptions, Lookup
from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome, TargetError


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    async with opened() as found:
        yield found


@pytest.mark.covers("BX-011", "BX-025", "BX-100")
async def test_create_answers_with_the_ids_in_the_order_of_the_records(remote: Remote):
    ids = await remote.create({"name": "one"}, {"name": "two"}, {"name": "three"})
    assert [(row["name"], row["accountid"]) for row in remote.server.rows("account")] == list(
        zip(["one", "two", "three"], ids, strict=True)
    )


@pytest.mark.covers("BX-001", "BX-080")
async def test_a_batch_is_one_native_bulk_call(remote: Remote):
    await remote.create(*({"name": f"n{n}"} for n in range(50)))
    (call,) = remote.server.ledger.calls("CreateMultiple")
    assert (call.rows, call.path) == (50, "accounts/Microsoft.Dynamics.CRM.CreateMultiple")


@pytest.mark.covers("BX-030", "BX-101")
async def test_update_changes_the_named_columns_of_existing_records(remote: Remote):
    one, two = await remote.create({"name": "one", "code": "1"}, {"name": "two", "code": "2"})
    answer = await remote.send(
        Mode.UPDATE, [{"accountid": two, "revenue": 2.5}, {"accountid": one.upper(), "name": "uno"}]
    )
    assert outcomes(answer) == ["updated", "updated"]
    assert [verdict.id for verdict in answer.verdicts] == [two, one]
    rows = remote.named()
    assert (rows["uno"]["code"], rows["two"]["revenue"]) == ("1", 2.5)


@pytest.mark.covers("BX-028", "BX-102")
@pytest.mark.parametrize("is_exact", [False, True])
async def test_upsert_by_alternate_key_tells_created_from_updated(remote: Remote, is_exact: bool):
    await remote.create({"name": "one", "code": "O'B/1%"}, {"name": "two", "code": "two"})
    records = [{"code": "new", "name": "n"}, {"code": "O'B/1%", "name": "uno"}, {"code": "TWO", "name": "dos"}]
    answer = await remote.send(Mode.UPSERT, records, alternate_key=["code"], exact_counts=is_exact, tell_created=True)
    assert outcomes(answer) == ["created", "updated", "updated"]
    assert answer.counts_exact is is_exact
    assert sorted(remote.named()) == ["dos", "n", "uno"]
    assert [verdict.id for verdict in answer.verdicts][1:] == [
        remote.named()["uno"]["accountid"],
        remote.named()["dos"]["accountid"],
    ]


@pytest.mark.parametrize("is_exact", [False, True])
async def test_upsert_by_primary_id_creates_under_that_id(remote: Remote, is_exact: bool):
    (old,), new = await remote.create({"name": "old"}), str(uuid4())
    answer = await remote.send(
        Mode.UPSERT,
        [{"accountid": new, "name": "new"}, {"accountid": old, "name": "renamed"}],
        exact_counts=is_exact,
        tell_created=True,
    )
    assert [(verdict.outcome.value, verdict.id) for verdict in answer.verdicts] == [("created", new), ("updated", old)]
    assert remote.named()["new"]["accountid"] == new


async def test_upsert_by_a_key_of_two_columns(remote: Remote):
    await remote.create({"name": "a", "code": "k", "part": 1})
    answer = await remote.send(
        Mode.UPSERT,
        [{"code": "k", "part": 1, "name": "b"}, {"code": "z", "part": 1, "name": "c"}],
        alternate_key=["code", "part"],
        tell_created=True,
    )
    assert outcomes(answer) == ["updated", "created"]
    assert remote.named()["c"]["part"] == 1


async def test_unless_asked_an_upsert_reads_nothing_and_does_not_say_which_records_are_new(remote: Remote):
    await remote.create({"name": "a", "code": "old"})
    records = [{"code": "old", "name": "b"}, {"code": "new", "name": "c"}]
    options = DataverseOptions(alternate_key=["code"])
    reads = len(remote.server.ledger.calls("GET", "account"))
    result = await executor(remote).upsert_multiple("account", records, options)
    assert list(result.outcomes) == [Outcome.UPSERTED] * 2
    assert (result.is_success, result.created_count, result.updated_count) == (True, None, None)
    assert len(remote.server.ledger.calls("GET", "account")) == reads
    assert {"b", "c"} <= set(remote.named())


async def test_every_request_of_a_bulk_call_is_counted(remote: Remote):
    before = len(remote.server.ledger.calls())
    options = DataverseOptions(alternate_key=["code"], tell_created=True, batch_size=2)
    records = [{"code": f"{n}", "name": f"n{n}"} for n in range(4)]
    result = await executor(remote).upsert_multiple("account", records, options)
    assert result.statistics.requests == len(remote.server.ledger.calls()) - before
    assert result.statistics.requests > result.statistics.calls == 2


async def test_the_keys_of_a_large_upsert_are_read_in_several_questions_of_legal_length(remote: Remote):
    await remote.create(*({"name": f"n{n}", "code": f"{n:03}" + "%" * 15} for n in range(0, 450, 2)))
    records = [{"code": f"{n:03}" + "%" * 15, "name": f"m{n}"} for n in range(450)]
    options = {"alternate_key": ["code"], "tell_created": True, "suppress_duplicate_detection": True}
    answer = await remote.send(Mode.UPSERT, records, **options)
    assert outcomes(answer) == ["updated", "created"] * 225
    questions = remote.server.ledger.calls("GET", "account")
    assert len(questions) > 1


@pytest.mark.covers("BX-035")
async def test_a_standard_batch_with_one_bad_record_changes_nothing_and_names_the_field(remote: Remote):
    with pytest.raises(TargetError) as caught:
        await remote.create({"name": "good", "code": "1"}, {"name": "bad", "code": "x" * 30})
    assert (caught.value.kind, caught.value.code, caught.value.field) == (ErrorKind.DATA, "0x80044331", "code")
    assert not caught.value.maybe_applied
    assert remote.server.rows("account") == []


async def test_records_that_hold_an_id_the_error_names_are_suspects(remote: Remote):
    missing = str(uuid4())
    records = [{"name": "a"}, {"name": "b", "contactid": Lookup("contact", missing.upper())}, {"name": "c"}]
    with pytest.raises(TargetError) as caught:
        await remote.create(*records)
    assert (caught.value.code, caught.value.suspects) == ("0x80040217", (1,))


async def test_records_sent_each_on_their_own_get_their_own_verdicts(remote: Remote):
    await remote.create({"name": "taken", "code": "taken"})
    batch = remote.batch(Mode.CREATE, [{"name": "a", "code": "a"}, {"name": "b", "code": "taken"}, {"name": "c"}])
    answer = await remote.target.send_each(batch, "app-1")
    assert outcomes(answer) == ["created", "failed", "created"]
    assert answer.verdicts[1].error is not None
    assert answer.verdicts[1].error.code == "0x80060892"
    assert [answer.verdicts[0].id, answer.verdicts[2].id] == [remote.named()[name]["accountid"] for name in "ac"]


async def test_an_update_sent_on_its_own_never_creates(remote: Remote):
    (one,), missing = await remote.create({"name": "one"}), str(uuid4())
    batch = remote.batch(Mode.UPDATE, [{"accountid": missing, "name": "x"}, {"accountid": one, "name": "y"}])
    answer = await remote.target.send_each(batch, "app-1")
    assert outcomes(answer) == ["failed", "updated"]
    assert list(remote.named()) == ["y"]


async def test_lookups_are_bound_by_the_navigation_name_the_environment_tells(remote: Remote):
    (contact,) = await remote.create({"fullname": "Ana", "mail": "ana@x.org"}, table="contact")
    (parent,) = await remote.create({"name": "parent"})
    await remote.create(
        {"name": "child", "parentid": parent, "contactid": Lookup("contact", {"mail": "ana@x.org"})},
        references={"parentid": "account"},
    )
    row = remote.named()["child"]
    assert (row["_parentid_value"], row["_contactid_value"]) == (parent, contact)
    assert len([call for call in remote.server.ledger.calls() if "ManyToOne" in call.path]) == 1


async def test_a_reference_set_to_nothing_is_cleared(remote: Remote):
    (parent,) = await remote.create({"name": "parent"})
    (child,) = await remote.create({"name": "child", "parentid": parent}, references={"parentid": "account"})
    update = [{"accountid": child, "parentid": None}]
    await remote.send(Mode.UPDATE, update, references={"parentid": "account"})
    assert remote.named()["child"]["_parentid_value"] is None


async def test_a_table_is_described_once_and_by_its_own_names(remote: Remote):
    for _ in range(3):
        capabilities = await remote.target.describe("account", Mode.CREATE, BulkOptions(), "app-1")
        await remote.create({"name": str(uuid4())})
    assert (capabilities.id_field, capabilities.is_atomic, capabilities.records_max) == ("accountid", True, None)
    assert capabilities.bytes_max == 4 * 2**20
    assert len([call for call in remote.server.ledger.calls() if "EntityDefinitions" in call.path]) == 1


async def test_a_table_that_does_not_exist_is_named(remote: Remote):
    with pytest.raises(TargetError, match="no table 'accounts'") as caught:
        await remote.target.describe("accounts", Mode.CREATE, BulkOptions(), "app-1")
    assert caught.value.kind is ErrorKind.UNSUPPORTED


@pytest.mark.covers("BX-088")
@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.UPDATE, Mode.UPSERT])
async def test_a_table_without_bulk_messages_is_refused_before_anything_is_sent(remote: Remote, mode: Mode):
    with pytest.raises(TargetError, match="does not take") as caught:
        await remote.target.describe("unlisted", mode, BulkOptions(), "app-1")
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    for singly, options in ((Mode.DELETE, BulkOptions()), (Mode.UPSERT, DataverseOptions(exact_counts=True))):
        assert (await remote.target.describe("unlisted", singly, options, "app-1")).id_field == "unlistedid"


@pytest.mark.covers("BX-099")
def test_options_of_another_target_are_refused(remote: Remote):
    class Foreign(BulkOptions):
        pass

    for fine in (BulkOptions(), DataverseOptions()):
        remote.target.check_options(fine)
    with pytest.raises(SettingsInvalid, match="Foreign"):
        remote.target.check_options(Foreign())


async def test_the_recommended_width_comes_with_every_answer(remote: Remote):
    remote.server.dop_hints["app-1"] = 17
    assert (await remote.send(Mode.CREATE, [{"name": "a"}])).width_hint == 17
    remote.server.dop_hints["app-1"] = 3
    assert (await remote.send(Mode.DELETE, [remote.named()["a"]["accountid"]])).width_hint == 3


async def test_the_size_of_a_record_is_its_json_and_nothing_when_it_has_none(remote: Remote):
    assert remote.target.size({"name": "x" * 100}) == len('{"name":""}') + 100
    assert remote.target.size({"name": object()}) == 0


async def test_calls_at_the_same_time_keep_their_own_alternate_keys(remote: Remote):
    by_code, by_both = DataverseOptions(alternate_key=["code"]), DataverseOptions(alternate_key=["code", "part"])
    for options in (by_code, by_both):
        await remote.target.describe("account", Mode.UPSERT, options, "app-1")
    record, other = {"code": "A", "part": 1}, {"code": "A", "part": 2}
    found = [remote.target.identifier("account", Mode.UPSERT, options) for options in (by_code, by_both)]
    assert [identify(record) == identify(other) for identify in found if identify] == [True, False]


@pytest.mark.parametrize("options", [{}, {"alternate_key": ["code"], "exact_counts": True}])
async def test_a_number_that_json_does_not_have_fails_its_record(remote: Remote, options: dict[str, Any]):
    records = [{"code": str(n), "name": None, "revenue": float("nan") if n == 1 else 1.5} for n in range(3)]
    mode = Mode.UPSERT if options else Mode.CREATE
    result = await executor(remote).start(mode, "account", records, DataverseOptions(**options))
    assert [(error.index, error.code) for error in result.errors] == [(1, "NotJson")]
    assert len(remote.server.rows("account")) == 2
