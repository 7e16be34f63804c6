"""How definitions, instances and their timelines look to people: values in, renderables out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import IntFlag

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from penstock.cli import views
from penstock.cli.built_in import Moves
from penstock.cli.tables import FittedTable, table
from penstock.graphs.conditions import describe
from penstock.graphs.durations import format_duration
from penstock.graphs.flags import StateFlag, words_of
from penstock.lifecycles.model import Available, Count, Instance, LogEntry, Version
from penstock.lifecycles.rules.graph import Graph, LifecycleState, LifecycleTransition
from penstock.lifecycles.states import InstanceFlag
from penstock.printable import compact, cut, duration, moment, printable, short_id, short_moment

__all__ = ["definitions", "graph", "instance", "instances", "moves", "timeline", "versions"]

BAR_CHARS = 24
DETAIL_CHARS = 100
LINE_CHARS = 100  # what does not fit beside an entry comes below it
DETAILS_AT = 23
END = "settled"  # an operation may leave such a state on request


def definitions(found: Sequence[tuple[Version, int]]) -> FittedTable:
    """Definitions, one to a line."""
    return table(
        "NAME", "ENVIRONMENT", "VERSION", "STATUS", "INSTANCES", "DESCRIPTION",
        rows=[
            (
                v.definition.name, v.definition.environment_label, v.label or str(v.number), v.status, f"{many:,}",
                cut(v.definition.description or "", 60),
            )
            for v, many in found
        ],
        numbers=("INSTANCES",),
        may_go=("DESCRIPTION", "STATUS"),
    )  # fmt: skip


def versions(found: Sequence[Version]) -> FittedTable:
    """Versions, one to a line."""
    return table(
        "VERSION", "NUMBER", "STATUS", "CREATED", "BY", "DIGEST",
        rows=[
            (v.label or "", str(v.number), v.status, short_moment(v.created_at), v.created_by, v.digest[:12])
            for v in found
        ],
        numbers=("NUMBER",),
        may_go=("DIGEST", "BY"),
    )  # fmt: skip


def graph(found: Graph, counts: Sequence[Count]) -> Iterator[RenderableType]:
    """A version: each state with the moves that leave it, and how many instances are there."""
    version, there = found.version, Counter[str]()
    for count in counts:
        there[count.state] += count.instances
    if version.id == 0:
        yield Text.assemble((version.definition.name, "bold"), "  built in")
    else:
        about = f"{version.definition.environment_label}, {version.status.lower()}"
        yield Text.assemble((printable(version.title), "bold"), f"  {about}")
    if version.definition.description:
        yield Text(printable(version.definition.description), style="dim")
    yield Text("")
    width = max(len(state.name) for state in found.states)
    most = max(there.values(), default=0)
    for state in found.states:
        yield _state_line(state, width, there[state.name], most, is_built_in=version.id == 0)
        arrows = found.outgoing(state.name)
        wide = max((len(line.event.name) for line in arrows), default=0)
        for when, plan in (("entry", state.on_entry), ("exit", state.on_exit)):
            if plan:
                told = ", ".join(f"{each.kind} {printable(each.name)}" for each in plan)
                yield Text(f"    on {when}: {told}", style="dim")
        yield from (_arrow(line, wide) for line in arrows)
    total = sum(there.values())
    if total:
        yield Text(f"\n{total:,} instance{'s' if total > 1 else ''}: {_flag_counts(counts)}", style="dim")


def _state_line(state: LifecycleState, width: int, many: int, most: int, *, is_built_in: bool) -> Text:
    sign = "▶" if StateFlag.INITIAL in state.flags else "■" if state.is_final else "●"
    style = "red" if StateFlag.ERROR in state.flags else "green" if state.is_final else "cyan"
    notes = [END if is_built_in and word == "Final" else word.lower() for word in words_of(state.flags)]
    if state.category:
        notes.append(printable(state.category))
    if state.timeout:
        every = "every" if state.timeout.repeats else "after"
        notes.append(f"{printable(state.timeout.event)} {every} {format_duration(state.timeout.duration_us)}")
    line = Text.assemble((f"{sign} ", style), (printable(state.name).ljust(width), "bold"))
    line.append(f"  {'█' * max(1, round(many / most * BAR_CHARS))} {many:,}" if many else "", style=style)
    line.append(f"  {', '.join(dict.fromkeys(notes))}" if notes else "", style="dim")
    return line


def _arrow(line: LifecycleTransition, wide: int) -> Text:
    made = Text(f"    {printable(line.event.name).ljust(wide)} → {printable(line.target.name)}")
    conditions = [f"if {printable(line.guard)}"] if line.guard else []
    conditions += [f"when {printable(describe(line.condition))}"] if line.condition else []
    conditions += [_spaced(word) for word in words_of(line.flags)]
    made.append(f"  {', '.join(conditions)}" if conditions else "", style="dim")
    return made


def _spaced(word: str) -> str:
    """NeedsApproval as people write it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", word).lower()


def _flag_counts(counts: Sequence[Count]) -> str:
    found = Counter[str]()
    for count in counts:
        for flag in count.flags:
            found[(flag.name or "").lower()] += count.instances
    return ", ".join(f"{many:,} {name}" for name, many in found.items())


def instances(found: Sequence[Instance]) -> FittedTable:
    """Instances, one to a line."""
    return table(
        "GUID", "LIFECYCLE", "STATE", "FLAGS", "REFERENCE", "SINCE",
        rows=[
            (
                i.guid, i.definition, Text(printable(i.state), style=_style(i.flags)), _flags(i.flags),
                i.reference or "", short_moment(i.entered_at),
            )
            for i in found
        ],
        may_go=("SINCE", "LIFECYCLE"),
    )  # fmt: skip


def instance(found: Instance, events: Sequence[Available] = ()) -> Iterator[RenderableType]:
    """Everything about one instance, and what it can take."""
    yield views.facts(
        {
            "guid": found.guid,
            "lifecycle": f"{found.definition}, version {found.version}",
            "state": Text(printable(found.state), style=_style(found.flags)),
            "flags": _flags(found.flags),
            "reference": found.reference,
            "data": compact(found.data) if found.data else None,
            "in this state since": moment(found.entered_at),
        }
    )
    for each in events:
        why = f"  not now: {each.reason}" if not each.is_allowed else ""
        line = Text(f"  {printable(each.event)} → {printable(each.target)}", style="" if each.is_allowed else "dim")
        yield line.append(printable(why), style="dim")


def timeline(found: Sequence[LogEntry], now: Instance) -> Iterator[RenderableType]:
    """What happened to an instance, from the first entry on, with the time between."""
    yield Text.assemble(
        (f"{printable(now.reference)}  " if now.reference else "", "bold"),
        f"{printable(now.definition)}  ",
        (printable(now.state), _style(now.flags)),
        (f"  {_flags(now.flags)}  {short_id(now.guid)}", "dim"),
    )
    yield Text("")
    yield from _entry_lines(found)


def moves(found: Moves) -> Iterator[RenderableType]:
    """What happened to an operation or a delivery, in the same way."""
    flags = found.entries[-1].instance_flags if found.entries else InstanceFlag.ACTIVE
    yield Text.assemble(
        (f"{found.machine}  ", "bold"),
        f"{printable(found.name)}  " if found.name != found.machine else "",
        (found.state, _style(flags)),
        (f"  {printable(found.subject)}", "dim"),
    )
    yield Text("")
    yield from _entry_lines(found.entries)


def _entry_lines(found: Sequence[LogEntry]) -> Iterator[RenderableType]:
    width = max((len(entry.target) for entry in found), default=0)
    before: datetime | None = None
    for entry in found:
        if before is not None and (entry.at - before).total_seconds() >= 1:
            yield Text(f"{duration((entry.at - before).total_seconds()):>19}  │", style="dim")
        before = entry.at
        line, details = _entry_line(entry, width), _entry_details(entry)
        if len(line.plain) + len(details) <= LINE_CHARS:
            yield line.append(details, style="dim")
        else:
            yield line
            yield Padding(Text(details.strip(), style="dim"), (0, 0, 0, DETAILS_AT))


def _entry_line(entry: LogEntry, width: int) -> Text:
    is_move = entry.kind in ("started", "moved", "forced", "migrated")
    sign = "●" if is_move else "○"
    style = "magenta" if entry.kind == "forced" else _style(entry.instance_flags) if is_move else "dim"
    name = printable(entry.target) if is_move else ""
    line = Text.assemble((moment(entry.at), "dim"), "  ", (sign, style), " ", (name.ljust(width), style))
    line.append(
        f"  {printable(entry.event) if entry.event else entry.kind.replace('_', ' ')} by {cut(entry.actor, 40)}"
    )
    return line


def _entry_details(entry: LogEntry) -> str:
    details = [cut(entry.cause, DETAIL_CHARS)] if entry.cause else []
    details += [cut(entry.correlation, 40)] if entry.correlation else []
    details += [cut(compact(entry.metadata), DETAIL_CHARS)] if entry.metadata else []
    return f"  {' · '.join(details)}" if details else ""


def _flags(flags: IntFlag) -> str:
    return ", ".join((flag.name or "").capitalize() for flag in flags)


def _style(flags: InstanceFlag) -> str:
    for flag, style in (
        (InstanceFlag.FAILED, "red"), (InstanceFlag.SUSPENDED, "yellow"),
        (InstanceFlag.ARCHIVED, "dim"), (InstanceFlag.COMPLETED, "green"),
    ):  # fmt: skip
        if flag in flags:
            return style
    return "cyan"
