"""Random misfortune by seed: what is reported of every record is what the remote's ledger says of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from dataverse import (
    Drop,
    Held,
    MissingParts,
    Problem,
    Truncated,
    deadlock,
    plugin_aborted,
    race,
    sql_timeout,
    throttled,
    token_refused,
    too_large,
)
from dataverse_remote import Remote, executor, opened

from penstock.targets import BulkResult, ErrorKind, Mode, Outcome
from penstock.targets.dataverse import DataverseOptions

SEEDS = 240
SEEDS_PER_TEST = 8
PASSING = frozenset({ErrorKind.TOKEN, ErrorKind.CONNECTION, ErrorKind.DEADLOCK, ErrorKind.RACE})
TOO_EARLY = Problem(429, "", "request rate is large")

LOSSES: Sequence[Callable[[random.Random], Any]] = (
    lambda rng: Drop(is_applied=rng.random() < 0.5, is_reset=rng.random() < 0.5),
    lambda rng: Drop(is_late=True, is_reset=rng.random() < 0.5),
    lambda rng: Truncated(rng.randrange(20)),
    lambda rng: Problem(rng.choice(LOST), "", "", has_body=False, is_applied=rng.random() < 0.5),
    lambda rng: Problem(503, "", "", UNTIL, has_body=False, is_applied=rng.random() < 0.5),
)
REFUSALS: Sequence[Callable[[random.Random], Any]] = (
    lambda rng: throttled(rng.choice(("requests", "time", "concurrency")), retry_after_s=rng.randrange(1, 60)),
    lambda rng: token_refused(),
    lambda rng: deadlock(),
    lambda rng: race(rng.choice((3732, 2766, 2812))),
)
LOST = (408, 502, 503, 504)
UNTIL = {"Retry-After": "3"}


@dataclass
class Scene:
    """One script: what is asked, of what, and what goes wrong meanwhile."""

    seed: int
    rng: random.Random = field(init=False)
    mode: Mode = field(init=False)
    table: str = field(init=False)
    count: int = field(init=False)
    bad: frozenset[int] = field(init=False)
    options: DataverseOptions = field(init=False)
    can_lose: bool = False
    held: Held | None = None

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        if self.seed % 3 == 0:
            self.held, self.can_lose = Held(is_applied=rng.random() < 0.5), True
        self.mode = rng.choice(list(Mode))
        self.table = rng.choice(("plain", "plain", "reading"))
        self.count = rng.randrange(1, 120)
        self.bad = frozenset(n for n in range(self.count) if rng.random() < rng.choice((0, 0, 0.02, 0.3)))
        self.options = DataverseOptions(
            batch_size=rng.choice((3, 10, 25, 60)),
            max_parallel_batches=rng.choice((None, 1, 3)),
            adapt_batch_size=rng.random() < 0.3,
            client_made_ids=rng.random() < 0.4,
            alternate_key=["code"] if self.table == "plain" and self.is_keyed(rng) else None,
            exact_counts=rng.random() < 0.4,
            tell_created=rng.random() < 0.6,
        )

    def is_keyed(self, rng: random.Random) -> bool:
        return self.mode is Mode.UPSERT or (self.mode is Mode.CREATE and rng.random() < 0.4)

    @property
    def action(self) -> str:
        if self.table == "plain" and (
            self.mode is Mode.DELETE or (self.mode is Mode.UPSERT and self.options.exact_counts)
        ):
            return "$batch"
        if self.mode is Mode.UPSERT and self.options.exact_counts:
            return "$batch"
        return {
            Mode.CREATE: "CreateMultiple",
            Mode.UPDATE: "UpdateMultiple",
            Mode.UPSERT: "UpsertMultiple",
            Mode.DELETE: "DeleteMultiple",
        }[self.mode]

    def spoil(self, remote: Remote, ids: Sequence[str]) -> None:
        """Write the script of faults."""
        rng, faults = self.rng, remote.server.faults
        marks = {f"r{n}" for n in self.bad} | {ids[n] for n in self.bad if n < len(ids) and ids[n]}
        if marks:
            faults.add(
                plugin_aborted("no"), table=self.table, row=lambda row: bool(marks & set(map(str, row.values())))
            )
            faults.add(plugin_aborted("no"), action="$batch", row=lambda row: bool(marks & set(map(str, row.values()))))
        for _ in range(rng.randrange(8)):
            is_loss = rng.random() < 0.4
            self.can_lose |= is_loss
            events = LOSSES if is_loss else REFUSALS
            action = rng.choice((self.action, self.action, "$batch"))
            faults.add(rng.choice(events)(rng), action=action, call=rng.randrange(1, 12))
        if rng.random() < 0.3:
            faults.add(rng.choice((sql_timeout(), too_large())), action=self.action, rows_over=rng.choice((2, 8, 20)))
        if rng.random() < 0.3:
            faults.add(rng.choice(REFUSALS)(rng), action="GET", table=self.table, call=rng.randrange(1, 5))
        if rng.random() < 0.3:
            self.can_lose = True
            faults.add(MissingParts(rng.choice((1, 2))), action="$batch", call=rng.randrange(1, 6))
        if self.held is not None:
            faults.add(self.held, action=self.action, call=rng.randrange(1, 4), times=1)
        if self.table == "reading" and rng.random() < 0.3:
            self.can_lose = True
            lost = Problem(rng.choice((408, 503)), "", "nobody knows", is_applied=True)
            faults.add(lost, table="reading", times=2, row=lambda row: rng.random() < 0.3)
        if self.table == "reading" and rng.random() < 0.5:
            faults.add(TOO_EARLY, table="reading", times=2, row=lambda row: rng.random() < 0.3)


async def prepared(scene: Scene, remote: Remote) -> tuple[list[Any], list[str]]:
    """The input, and the ids of the records that are there before."""
    old = range(scene.count) if scene.mode in {Mode.UPDATE, Mode.DELETE} else range(0, scene.count, 2)
    ids = [""] * scene.count
    if scene.mode is not Mode.CREATE:
        made = await remote.create(*(record(n, "old") for n in old), table=scene.table)
        for n, id in zip(old, made, strict=True):
            ids[n] = id
    id_column = f"{scene.table}id"
    if scene.mode is Mode.DELETE:
        return ids, ids
    records: list[Any] = [record(n, f"r{n}") for n in range(scene.count)]
    if scene.mode is Mode.UPDATE or (scene.mode is Mode.UPSERT and scene.table == "reading"):
        for n, one in enumerate(records):
            ids[n] = ids[n] or f"00000000-0000-4000-8000-{n:012}"
            one[id_column] = ids[n]
    return records, ids


def record(n: int, name: str) -> dict[str, Any]:
    return {"name": name, "code": f"c{n}"}


def check(scene: Scene, remote: Remote, result: BulkResult, ids: Sequence[str], before: int) -> None:
    """Hold the result against the ledger."""
    ledger = remote.server.ledger.of(scene.table)[before:]
    applied = Counter(entry.values.get("name") or entry.values.get(f"{scene.table}id") for entry in ledger)
    assert len(result.outcomes) == scene.count
    assert result.success_count + result.failure_count + result.unknown_count + result.not_run_count == scene.count
    creates = Counter(entry.values.get("name") for entry in ledger if entry.what == "create")
    assert not [name for name, times in creates.items() if times > 1], "created twice"
    errors = {error.index: error for error in result.errors}
    for n, outcome in enumerate(result.outcomes):
        mark = ids[n] if scene.mode is Mode.DELETE else f"r{n}"
        times = applied[mark]
        match outcome:
            case Outcome.CREATED | Outcome.UPDATED | Outcome.UPSERTED | Outcome.DELETED:
                assert times >= 1, f"record {n} is {outcome} but was never applied"
                assert n not in scene.bad
            case Outcome.FAILED | Outcome.NOT_RUN:
                assert times == 0, f"record {n} is {outcome} but was applied"
            case Outcome.UNKNOWN:
                assert errors[n].kind in {ErrorKind.CONNECTION, ErrorKind.THROTTLED, ErrorKind.OTHER}
        if outcome is Outcome.FAILED and n not in scene.bad:
            assert errors[n].kind in PASSING or result.stopped_reason, f"record {n} failed by {errors[n]}"
    if scene.mode is Mode.UPSERT and (result.counts_exact or not scene.can_lose):
        is_told = result.counts_exact or scene.options.tell_created
        labels = {n: outcome for n, outcome in enumerate(result.outcomes) if outcome.is_success and is_told}
        assert labels == {n: Outcome.CREATED if n % 2 else Outcome.UPDATED for n in labels}
    if scene.mode is Mode.CREATE:
        there = {row["name"]: row[f"{scene.table}id"] for row in remote.server.rows(scene.table)}
        for n, outcome in enumerate(result.outcomes):
            if outcome is Outcome.CREATED:
                assert result.id_of(n) in {there[f"r{n}"], None}


@pytest.mark.covers("BX-002", "BX-012", "BX-019", "BX-060", "BX-111")
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
async def test_every_outcome_is_what_the_ledger_says(first: int):
    for seed in range(first, first + SEEDS_PER_TEST):
        scene = Scene(seed)
        async with opened(held=scene.held) as remote:
            records, ids = await prepared(scene, remote)
            before = len(remote.server.ledger.of(scene.table))
            scene.spoil(remote, ids)
            result = await executor(remote).start(scene.mode, scene.table, records, scene.options)
            try:
                check(scene, remote, result, ids, before)
            except AssertionError as error:
                error.add_note(f"seed {seed}: {scene.mode} {scene.table} × {scene.count}, {scene.options}")
                raise
