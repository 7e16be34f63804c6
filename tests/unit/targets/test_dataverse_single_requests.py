"""What the answers inside a `$batch` say of the records."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.targets.dataverse import DataverseOptions
from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.entities import Spelling
from penstock.targets.dataverse.error_mapping import WebApiReply, refusal
from penstock.targets.dataverse.requests import single_verdicts
from penstock.targets.dataverse.table_metadata import Table
from penstock.targets.model import Mode, TargetError, Verdict
from penstock.targets.target import Batch

OPTIONS = DataverseOptions()
ORDER = Table("order", "orders", "orderid", is_elastic=False)
IDS = [f"7c0e8f00-0000-4000-8000-00000000000{n}" for n in range(3)]
GONE = WebApiReply(404, {}, b'{"error":{"code":"0x80040217","message":"gone"}}')
DEADLOCK = WebApiReply(500, {}, b'{"error":{"code":"0x80040255","message":"rolled back"}}')
DONE = WebApiReply(204, {}, b"")


def judged(outer: int, *replies: WebApiReply, stops_early: bool = False) -> list[Verdict]:
    call = Call(Batch("order", Mode.DELETE, IDS, OPTIONS, "k"), OPTIONS, Spelling(ORDER))

    def refused(reply: WebApiReply) -> TargetError:
        return refusal(reply, datetime(2030, 1, 1, tzinfo=UTC), is_write=True)

    return single_verdicts(call, WebApiReply(outer, {}, b""), replies, refused, stops_early=stops_early)


def words(found: list[Verdict]) -> list[str]:
    return [verdict.outcome.value for verdict in found]


def test_every_record_has_the_answer_of_its_part():
    found = judged(200, DONE, GONE, DONE)
    assert words(found) == ["deleted", "failed", "deleted"]
    assert [verdict.id for verdict in found] == IDS


@pytest.mark.covers("BX-033")
def test_a_batch_that_stopped_leaves_the_rest_not_run():
    assert words(judged(404, DONE, GONE, stops_early=True)) == ["deleted", "failed", "not run"]


def test_a_batch_that_stopped_for_a_passing_reason_leaves_the_rest_to_be_tried_again():
    found = judged(500, DEADLOCK, stops_early=True)
    assert words(found) == ["failed"] * 3
    assert len({id(verdict.error) for verdict in found}) == 1


@pytest.mark.parametrize(
    "outer, replies, stops_early",
    [
        (200, (DONE, GONE), True),  # it says that it did not stop
        (404, (DONE, GONE), False),  # it was not asked to stop
        (200, (DONE,), True),
        (200, (), False),
        (200, (DONE, DONE, DONE, DONE), False),
    ],
)
def test_a_wrong_number_of_answers_is_not_believed(outer: int, replies: tuple[WebApiReply, ...], stops_early: bool):
    with pytest.raises(TargetError, match="where 3 were sent") as caught:
        judged(outer, *replies, stops_early=stops_early)
    assert caught.value.maybe_applied


def test_a_refusal_without_parts_is_a_refusal_of_the_whole():
    with pytest.raises(TargetError, match="without saying why") as caught:
        judged(413)
    assert not caught.value.maybe_applied
