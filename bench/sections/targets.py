"""The bulk executor: how close it comes to what a remote permits, what a stream costs, what bulk calls are worth."""

from __future__ import annotations

from bench import goals
from bench.figures import Figure, Line, Samples, Section, Verdict
from bench.lab import Contender, Lab, rate, ratio

__all__ = ["bulk", "streaming", "throttled"]

ANY_FILE = 100
USERS = (1, 2, 4)
PER_SECOND, WINDOW_S = 20, 5
SETTLE_S = 45
THROTTLED_NOTE = (
    f"A remote in another process permits each user {PER_SECOND * WINDOW_S} requests in {WINDOW_S} seconds, sliding; "
    "what goes beyond is refused with a wait of at least a second. Penstock is not told the limit. Measured once it "
    f"has found its pace, {SETTLE_S} seconds after the first call."
)
STREAMING_NOTE = (
    "A generator of records into a remote in memory that answers at once, in batches of 1,000. Bytes per record are "
    "what memory grows by from the smallest stream to this one."
)
BULK_NOTE = (
    "Creating records, five calls at once, in a table of PostgreSQL and in a remote in another process that speaks "
    "Dataverse's protocol; what a call costs is what those servers take for it. On PostgreSQL the first two are loops "
    "by hand. The platform's makers name 50 thousand, 2 million and 10 million records an hour for the three ways."
)


def throttled(lab: Lab) -> Section:
    """The share of a permitted rate that is used."""
    pace = {"per_second": PER_SECOND, "window_s": WINDOW_S, "settle_s": SETTLE_S, "seconds": lab.sizes.throttled_s}
    contenders = [
        Contender(f"{users} users" if users > 1 else "1 user", "bench.remote:throttled", ANY_FILE,
                  arguments={**pace, "users": users})
        for users in USERS
    ]  # fmt: skip
    samples = lab.compare(contenders, rounds=1)
    lines = [
        Line(
            one.label,
            {
                "permitted calls/s": f"{PER_SECOND * one.arguments['users']}",
                "calls/s": Figure.of(sample["calls"] / sample["seconds"] for sample in samples[one.label]),
                "of permitted, first minute": _figure(samples, one.label, "first_minute"),
                "of permitted": _figure(samples, one.label, "of_permitted"),
                "% refused": Figure.of(100 * sample["refused_share"] for sample in samples[one.label]),
            },
        )
        for one in contenders
    ]
    verdicts = [Verdict(goals.PERMITTED, _figure(samples, one.label, "of_permitted"), one.label) for one in contenders]
    verdicts += [Verdict(goals.REFUSED, _figure(samples, one.label, "refused_share"), one.label) for one in contenders]
    return Section("throttled", "A remote with a limit", THROTTLED_NOTE, lines, verdicts, samples)


def streaming(lab: Lab) -> Section:
    """Memory by number of records."""
    counts = sorted(set(lab.sizes.streaming))
    ladders = {keep_ids: [_stream(count, keep_ids=keep_ids) for count in counts] for keep_ids in (False, True)}
    contenders = [one for ladder in ladders.values() for one in ladder]
    samples = lab.compare(contenders, rounds=1)
    lines = [
        Line(
            one.label,
            {
                "records/s": rate(samples, one.label),
                "MB at most": _figure(samples, one.label, "peak_mb"),
                "bytes per record": _growth(samples, ladder[0].label, one.label) if one is not ladder[0] else "",
            },
        )
        for ladder in ladders.values()
        for one in ladder
    ]
    verdicts = [
        Verdict(goal, _growth(samples, ladder[0].label, ladder[-1].label), f"bytes, {ladder[-1].label}")
        for goal, ladder in zip((goals.STREAM, goals.STREAM_IDS), ladders.values(), strict=True)
    ]
    return Section("streaming", "Streams of records to a remote", STREAMING_NOTE, lines, verdicts, samples)


def bulk(lab: Lab) -> Section:
    """One record at a time, a hundred operations together, and a hundred records in one operation."""
    remote = ("a request for each record", "100 in a batch request", "100 in a bulk action")
    table = ("a transaction for each record", "100 statements in a transaction", "100 records in a call")
    few, many = lab.sizes.sent_singly, lab.sizes.sent
    contenders = [
        Contender(label, f"bench.remote:{way}", few if way == "singly" else many)
        for label, way in zip(remote, ("singly", "in_parts", "bulk"), strict=True)
    ]
    ways = [remote]
    if "postgresql" in lab.databases:
        ways.append(table)
        contenders += [
            Contender(label, f"bench.ways:{way}", few if way == "singly" else many, "postgresql")
            for label, way in zip(table, ("singly", "in_transactions", "in_calls"), strict=True)
        ]
    samples = lab.compare(contenders, rounds=lab.sizes.again)
    lines = [
        Line(label, {"records/s": rate(samples, label), "of the first way": ratio(samples, label, to=first)})
        for first, *others in ways
        for label in (first, *others)
    ]
    verdicts = [Verdict(goals.BULK, ratio(samples, best, to=parts), best) for _, parts, best in ways]
    return Section("bulk", "What bulk actions are worth", BULK_NOTE, lines, verdicts, samples)


def _stream(count: int, *, keep_ids: bool) -> Contender:
    label = f"{count:,} records{', ids kept' if keep_ids else ''}"
    return Contender(label, "bench.remote:stream", ANY_FILE, arguments={"count": count, "keep_ids": keep_ids})


def _growth(samples: Samples, base: str, label: str) -> Figure:
    """Bytes that each record more took."""
    pairs = zip(samples[base], samples[label], strict=True)
    return Figure.of((b["peak_mb"] - a["peak_mb"]) * 1e6 / max(1, b["rows"] - a["rows"]) for a, b in pairs)


def _figure(samples: Samples, label: str, name: str) -> Figure:
    return Figure.of(one[name] for one in samples[label])
