"""Before the first batch: ask how the table behaves, and check a list as a whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from penstock.targets.model import TargetError, Trouble
from penstock.targets.rules.policy import Act, after_lost_question
from penstock.targets.rules.repeats import Repeats, repeats_in
from penstock.targets.running.calling import Caller
from penstock.targets.running.feed import Feed
from penstock.targets.running.inputs import faults_in, refuse_faults
from penstock.targets.running.job import Job
from penstock.targets.running.reader import Reader

__all__ = ["described", "feed_of"]


async def described(job: Job, caller: Caller) -> Job:
    """The job with the traits of its table; raises the `TargetError` that no retry could avoid."""
    pool = caller.pool
    tries: Counter[Trouble] = Counter()
    while True:
        try:
            traits = await caller.call(partial(job.target.describe, job.table, job.mode, job.options))
            return replace(job, traits=traits)
        except TargetError as error:
            tries[error.kind] += 1
            move = after_lost_question(error, tries, pool.policy)
            if move.act is Act.AGAIN and move.retry:
                await pool.sleep(pool.policy.wait_s(move.retry, pool.entropy.jitter))
            elif move.act is not Act.AGAIN:
                if error.kind is not Trouble.CONNECTION or not 0 < pool.silent_s < pool.policy.outage_s:
                    raise
                await pool.sleep(pool.policy.outage_wait_s(pool.silent_s))


def feed_of(job: Job, reader: Reader) -> Feed:
    """The input as batches; a list is checked whole, and refused with all its faults."""
    check = partial(faults_in, job.mode, job.traits.id_field)
    if reader.list is not None:
        refuse_faults(check(reader.list))
    return Feed(
        reader,
        check=check if reader.list is None else lambda _: {},
        repeats=_repeats(job, reader),
        size=job.size,
        bytes_max=job.traits.bytes_max,
    )


def _repeats(job: Job, reader: Reader) -> Repeats | None:
    identity, policy = job.identity, job.options.duplicates
    if identity is None:
        return None
    left_out, refused = repeats_in(reader.list, identity, policy)
    refuse_faults(refused)
    return Repeats(identity, policy, left_out)
