"""The checks of the contract find targets that break it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.targets.conformance import CHECKS, Nonconformity, Subject
from penstock.targets.conformance.subject import Loss
from penstock.targets.model import (
    Answer,
    Batch,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Mode,
    Outcome,
    TargetError,
    Verdict,
)
from penstock.targets.target import Target

BY_NAME = {check.sentence: check for check in CHECKS}
NOT_TWICE = BY_NAME["what took effect without an answer is not created twice"]
SAYS_SO = BY_NAME["an answer that is lost is an error that may have been applied"]
LATE = BY_NAME["what takes effect late is never told as failed"]
ARRIVES = BY_NAME["what never arrived is created after all where that can be told"]


class Shelf(Target):
    """Keeps records in memory, and refuses those it has."""

    name = "shelf"

    def __init__(self, *, admits_doubt: bool = True, can_reconcile: bool = True, is_honest: bool = True) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.loss: Loss | None = None
        self.late: Sequence[dict[str, Any]] = ()
        self.admits_doubt, self.can_reconcile, self.is_honest = admits_doubt, can_reconcile, is_honest

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        return Capabilities(can_reconcile=self.can_reconcile, id_field="id")

    async def send(self, batch: Batch, source: str) -> Answer:
        self.arrive()
        loss, self.loss = self.loss, None
        if loss == "late":
            self.late = batch.records
        elif loss != "never":
            self.put(batch.records)
        if loss is not None:
            raise TargetError("no answer", kind=ErrorKind.CONNECTION, maybe_applied=self.admits_doubt)
        return Answer([Verdict(Outcome.CREATED, record["id"]) for record in batch.records])

    async def reconcile(self, batch: Batch, source: str) -> list[Verdict | None]:
        is_there = [record["id"] in self.rows if self.is_honest else False for record in batch.records]
        return [
            Verdict(Outcome.CREATED, r["id"]) if here else None for r, here in zip(batch.records, is_there, strict=True)
        ]

    def arrive(self) -> None:
        late, self.late = self.late, ()
        self.put(late)

    def put(self, records: Sequence[dict[str, Any]]) -> None:
        if any(record["id"] in self.rows for record in records):
            raise TargetError("there is such a record", kind=ErrorKind.DATA, code="duplicate")
        self.rows.update({record["id"]: record for record in records})


def on_trial(shelf: Shelf) -> Subject:
    async def read_back() -> dict[int, dict[str, Any]]:
        return shelf.rows

    return Subject(
        target=shelf,
        table="things",
        make_record=lambda n: {"id": n},
        change=lambda record: {**record, "name": "changed"},
        id_of=lambda record: record["id"],
        read_back=read_back,
        lose=lambda loss: setattr(shelf, "loss", loss),
        modes=frozenset({Mode.CREATE}),
    )


@pytest.mark.parametrize("check", [NOT_TWICE, SAYS_SO, LATE, ARRIVES], ids=str)
@pytest.mark.parametrize("can_reconcile", [True, False])
async def test_an_honest_target_passes(check: Any, can_reconcile: bool):
    await check(on_trial(Shelf(can_reconcile=can_reconcile)))


@pytest.mark.parametrize(
    "check, shelf, found",
    [
        (SAYS_SO, {"admits_doubt": False}, "its error says that it did not"),
        (NOT_TWICE, {"admits_doubt": False}, "records are reported as"),
        (NOT_TWICE, {"is_honest": False}, "records are reported as"),
        (LATE, {"is_honest": False}, "that were created late"),
    ],
)
async def test_a_target_that_is_not_is_found(check: Any, shelf: dict[str, bool], found: str):
    with pytest.raises(Nonconformity, match=found):
        await check(on_trial(Shelf(**shelf)))
