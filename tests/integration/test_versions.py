"""New code beside operations under way: a worker runs what its code fits; an operation can be migrated to new code."""

from __future__ import annotations

import types
from collections import Counter
from typing import Any

import pytest
from approvals import Wall, at_wall, clean, states
from several import CALM, Item, engines, items
from stored import rows_of

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.errors import Conflict, DeclarationError, InvalidInput
from penstock.operations.model import Operation
from penstock.operations.proof.doctor import diagnose
from penstock.operations.proof.symptoms import Symptom
from penstock.testing import Engine, engine

Calls = Counter[str]
DONE, FAILED, WAIT = "Completed", "Failed", "WaitingForCompletion"


def release(
    version: str | int | None, steps: str, calls: Calls, *, failing: str = "", wall: Wall | None = None
) -> type:
    """An operation with these steps; one that ends in `?` waits for a signal. Calls and effect keys are counted."""

    def body(name: str) -> Any:
        async def call(self: object, row: Item, ctx: Context) -> str:
            calls[f"{version}.{name}"] += 1
            calls[ctx.effect_key.partition(":")[2]] += 1
            if wall is not None:
                await wall.stop()
            if name == failing:
                raise StepFailed("it fails here")
            return f"{name} of {version}"

        async def wait(self: object, row: Item, ctx: Context) -> None:
            calls[f"{version}.{name}"] += 1

        wait.__name__ = call.__name__ = name.rstrip("?")
        return step.signal(key="item-{row.id}", timeout=86400)(wait) if name.endswith("?") else step(call)

    members = {name.rstrip("?"): body(name) for name in steps.split()}
    return operation("moving", version=version)(
        types.new_class("Moving", (Pipeline[Item],), exec_body=lambda body: body.update(members))
    )


async def doctors(e: Engine) -> list[Symptom]:
    found = await diagnose(e.penstock.settings, e.clock)
    return [each for each in found.symptoms if each.check in ("code_fits_operations", "no_operation_is_set_aside")]


# --- two releases side by side


async def test_each_worker_runs_the_operations_of_its_own_version(database_url, tmp_path):
    calls = Calls()
    one, two = release(1, "a b", calls), release(2, "a b", calls)
    async with engines([one], [two], url=database_url, folder=tmp_path) as (old, new):
        first, second = await old.create(one, items(3)), await new.create(two, items(5))
        for _ in range(3):
            await new.work_until_idle()
            await old.work_until_idle()
        assert [(await old.operations.get(made.id)).status for made in (first, second)] == [DONE, DONE]
        assert [(await old.operations.get(made.id)).version for made in (first, second)] == ["1", "2"]
        assert (calls["1.a"], calls["1.b"], calls["2.a"], calls["2.b"]) == (3, 3, 5, 5)


async def test_who_does_not_fit_an_operation_and_why_is_in_its_view_and_told_by_doctor(database_url, tmp_path):
    calls = Calls()
    one, two = release(1, "a", calls), release(2, "a b", calls)
    async with engines([one], [two], url=database_url, folder=tmp_path) as (old, new):
        made = await old.create(one, items(3))
        await new.work_until_idle()
        found = await new.operations.get(made.id)
        (misfit,) = found.misfits
        assert (found.status, found.trouble) == ("Pending", None)
        assert misfit.worker == new.worker.lease.id
        assert misfit.differences == ("it has version 1, the code has version 2", "step 'b' is new")
        (symptom,) = await doctors(new)
        assert not symptom.is_problem, "another worker fits"
        assert f"{made.id}: {misfit}" in symptom.what
        await old.worker.stop()
        await new.advance(11)
        await new.work_until_idle()
        (symptom,) = await doctors(new)
        assert symptom.is_problem
        trouble = "no live worker has code that fits it: it has version 1, the code has version 2; step 'b' is new"
        assert (await new.operations.get(made.id)).trouble == trouble
        assert calls == {}


async def test_an_operation_created_without_a_version_is_judged_by_its_steps(database_url, tmp_path):
    calls = Calls()
    before, after = release(None, "a", calls), release(1, "a", calls)
    async with engines([before], [after], url=database_url, folder=tmp_path) as (old, new):
        made = await old.create(before, items(2))
        await new.work_until_idle()
        assert (await new.operations.get(made.id)).status == DONE


@pytest.mark.parametrize("version", [True, 1.5, "", "  ", "x" * 41, "a\nb", ["1"]])
def test_a_version_that_cannot_be_one_is_refused(version: Any):
    with pytest.raises(DeclarationError, match="version: must "):
        release(version, "a", Calls())


# --- migrating


async def waiting(e: Engine, kind: type, rows: int) -> Operation:
    made = await e.create(kind, items(rows))
    await e.work_until_idle()
    return made


async def test_waiting_rows_of_a_migrated_operation_go_on_at_their_step(database_url, tmp_path):
    calls = Calls()
    one, two = release(1, "a w? b", calls), release(2, "a approved? c b", calls)
    async with engines([one], [two], url=database_url, folder=tmp_path) as (old, new):
        made = await waiting(old, one, 5)
        assert await states(old, made) == [WAIT] * 5
        found = await new.operations.migrate(made.id, {"w": "approved"}, cause="release 2")
        assert (found.version, found.steps, found.misfits[0].worker) == (
            "2", ("a", "approved", "c", "b"), old.worker.lease.id,
        )  # fmt: skip
        assert await clean(new) == []
        for number in range(1, 6):
            await new.penstock.signals.complete(made.id, f"item-{number}", payload=number)
        await old.work_until_idle()
        await new.work_until_idle()
        assert (await new.operations.get(made.id)).status == DONE
        # Nothing ran twice, and nothing was left out.
        assert {name: n for name, n in calls.items() if "." in name} == {"1.a": 5, "1.w?": 5, "2.c": 5, "2.b": 5}
        stored = await rows_of(new.penstock.db, made.id)
        assert stored[0].outputs[0] == "a of 1"
        assert await clean(new) == []
        events = [(e.event, e.source, e.target, e.cause) for e in await new.operations.events(made.id)]
        assert ("migrated", "Running", "Running", "release 2") in events


async def test_an_operation_that_was_not_begun_takes_every_change(database_url, tmp_path):
    calls = Calls()
    one, two = release(1, "a b", calls), release(2, "x b c", calls)
    async with engines([one], [two], url=database_url, folder=tmp_path) as (old, new):
        made = await old.create(one, items(3))
        await new.operations.migrate(made.id)
        await new.work_until_idle()
        assert (await new.operations.get(made.id)).status == DONE
        assert (calls["2.x"], calls["2.b"], calls["2.c"]) == (3, 3, 3)


async def test_a_paused_operation_is_migrated_and_resumed(database_url, tmp_path):
    calls, wall = Calls(), Wall()
    one, two = release(1, "a b", calls, wall=wall), release(2, "a c b", calls)
    async with engines([one], [two], url=database_url, folder=tmp_path) as (old, new):
        made = await old.create(one, items(6))
        await at_wall(wall, old.work_until_idle())
        await old.operations.pause(made.id)
        await old.worker.look_round()
        wall.gone.set()
        await old.work_until_idle()
        with pytest.raises(Conflict, match="at the end would never run 'c'"):
            await new.operations.migrate(made.id)
        third = release(3, "a b", calls)
        async with engine([third], url=database_url, tmp_path=tmp_path, settings=CALM, clock=new.clock) as last:
            await last.operations.migrate(made.id)
            await last.operations.resume(made.id)
            await last.work_until_idle()
            assert (await last.operations.get(made.id)).status == DONE
            assert calls["1.b"] + calls["3.b"] == 6
            assert await clean(last) == []


async def test_an_operation_at_work_is_not_migrated(database_url, tmp_path):
    calls, wall = Calls(), Wall()
    one, two = release(1, "a b", calls, wall=wall), release(2, "a b c", calls)
    async with engines([one], [two], url=database_url, folder=tmp_path) as (old, new):
        made = await old.create(one, items(3))
        await at_wall(wall, old.work_until_idle())
        with pytest.raises(Conflict, match=f"worker {old.worker.lease.id} works on operation {made.id}"):
            await new.operations.migrate(made.id)
        wall.gone.set()
        await old.work_until_idle()
        assert (await old.operations.get(made.id)).status == DONE
        assert calls["1.b"] == 3


async def test_a_migration_that_would_lose_a_step_is_refused_and_changes_nothing(database_url, tmp_path):
    calls = Calls()
    one, two = release(1, "a w? b", calls), release(2, "new a b", calls)
    async with engines([one], [two], url=database_url, folder=tmp_path) as (old, new):
        made = await waiting(old, one, 2)
        with pytest.raises(Conflict) as refused:
            await new.operations.migrate(made.id)
        assert "2 rows at 'w' would lose what 'w' did and never run 'new'" in str(refused.value)
        with pytest.raises(Conflict, match="2 rows have begun 'w', a signal step, which is plain now"):
            await new.operations.migrate(made.id, {"w": "b", "b": "new"})
        assert (await new.operations.get(made.id)).version == "1"
        for number in (1, 2):
            await old.penstock.signals.complete(made.id, f"item-{number}")
        await old.work_until_idle()
        assert (await old.operations.get(made.id)).status == DONE
        assert await clean(old) == []


async def test_a_wrong_map_is_refused_with_all_that_is_wrong(database_url, tmp_path):
    calls = Calls()
    async with engines([release(1, "a b", calls)], url=database_url, folder=tmp_path) as (e,):
        made = await e.create("moving", items(1))
        with pytest.raises(InvalidInput) as refused:
            await e.operations.migrate(made.id, {"x": "a", "a": "y"})
        assert {fault.field for fault in refused.value.faults} == {"x", "a"}


async def test_a_failed_operation_is_migrated_to_the_code_that_mends_it_and_retried(database_url, tmp_path):
    calls = Calls()
    one, two = release(1, "a send", calls, failing="send"), release(2, "a check deliver", calls)
    mended = release(3, "a deliver done", calls)
    async with engines([one], [two], [mended], url=database_url, folder=tmp_path) as (old, new, right):
        made = await old.run(one, items(3))
        assert made.status == FAILED or made.failed_rows == 3
        with pytest.raises(Conflict, match="would never run 'check'"):
            await new.operations.migrate(made.id, {"send": "deliver"})
        await right.operations.migrate(made.id, {"send": "deliver"})
        assert [error.step_name for error in (await right.operations.errors(made.id)).items] == ["deliver"] * 3
        await right.operations.retry(made.id)
        await right.work_until_idle()
        assert (await right.operations.get(made.id)).status == DONE
        assert (calls["3.a"], calls["3.deliver"], calls["3.done"]) == (0, 3, 3)
        # A remote that saw the first calls knows the second by their key.
        assert {key: n for key, n in calls.items() if key.startswith("1:")} == {"1:a": 1, "1:send": 2, "1:done": 1}
        assert {entry.step_name for entry in (await right.operations.history(made.id)).items} == {"deliver"}
        assert await clean(right) == []


async def test_what_fits_already_is_not_migrated(database_url, tmp_path):
    async with engine([release(1, "a", Calls())], url=database_url, tmp_path=tmp_path, settings=CALM) as e:
        made = await e.create("moving", items(1))
        with pytest.raises(Conflict, match="fits this code as it is"):
            await e.operations.migrate(made.id)


async def test_a_step_that_was_signalled_may_become_a_plain_one_once_all_rows_are_past_it(database_url, tmp_path):
    calls = Calls()
    one, two = release(1, "approve? send", calls, failing="send"), release(2, "approve send", calls)
    async with engines([one], [two], url=database_url, folder=tmp_path) as (old, new):
        made = await old.create(one, items(1))
        await old.work_until_idle()
        await old.penstock.signals.complete(made.id, "item-1")
        await old.work_until_idle()
        await new.operations.migrate(made.id, actor="ana")
        assert await clean(new) == []
        log = (await new.penstock.audit.list(subject=made.id)).items
        assert (log[0].actor, log[0].action) == ("ana", "operation.migrate")
