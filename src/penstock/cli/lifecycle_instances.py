"""`penstock lifecycle start|trigger|instances|history|suspend…`: instances of lifecycles."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.inputs import age
from penstock.cli.lifecycle_session import Environment, Tenant, VersionOption, ask_lifecycles, guid_of
from penstock.cli.options import App, Cause, Cursor, Db, Json, Limit, command
from penstock.cli.problems import WrongUsage
from penstock.cli.session import Place, ask
from penstock.cli.stopping import stop_on_signals
from penstock.errors import NotFound, Unavailable
from penstock.printable import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.lifecycles.model import Available, Instance, LogEntry, Outcome
    from penstock.lifecycles.monitoring import Tick
    from penstock.lifecycles.service import Lifecycles
    from penstock.lifecycles.states import InstanceFlag
    from penstock.listing import Page

__all__ = ["add_to"]

log = logging.getLogger("penstock.lifecycles")

Guid = Annotated[
    str, typer.Argument(metavar="GUID", help="The instance's guid, 8 characters or more of it, or NAME/REFERENCE.")
]
Actor = Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Who does it; the user if not.")]
Pairs = list[str] | None

ACTIONS = {
    "suspend": ("Let an instance take no event until it is resumed.", "--cause 'under review'"),
    "resume": ("Let a suspended instance go on.", ""),
    "complete": ("Mark an instance as completed; its other flags and its state stay.", ""),
    "fail": ("Mark an instance as failed; its other flags and its state stay.", "--cause 'lost in transit'"),
    "archive": ("Mark an instance as archived; its other flags and its state stay.", ""),
    "reopen": ("Make an instance active again that was completed or has failed.", "--cause 'came back'"),
}


def add_to(made: typer.Typer) -> None:
    """Add the commands."""
    command(made, "start", start, example="lifecycle start order A-1001 --data total:=99")
    command(made, "trigger", trigger, example="lifecycle trigger 01a1e3a4-910f pay --actor ana")
    command(made, "instances", instances, example="lifecycle instances order --state Paid --without suspended")
    command(made, "history", history, example="lifecycle history 01a1e3a4-910f")
    for name, (summary, option) in ACTIONS.items():
        command(made, name, _action(name, summary), example=f"lifecycle {name} 01a1e3a4-910f {option}".rstrip())
    command(made, "purge", purge, example="lifecycle purge --older-than 365d --dry-run")
    command(made, "tick", tick, example="lifecycle tick --app shop.py")


def start(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The definition's name; case does not matter.")],
    reference: Annotated[
        str | None, typer.Argument(metavar="REFERENCE", help="What your system calls it: it is started once.")
    ] = None,
    *,
    data: Annotated[
        Pairs,
        typer.Option("--data", metavar="NAME=VALUE", help="A field of its data, NAME:=JSON for no text; repeatable."),
    ] = None,
    version: VersionOption = None,
    env: Environment = None,
    actor: Actor = None,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Start an instance, or find the one that the reference has already."""
    place = Place(db)
    found = ask_lifecycles(
        place,
        tenant,
        lambda it: it.start(
            name, reference, data=dict(_fields("--data", data)), version=version, environment=env, actor=actor
        ),
    )
    _show_instance(place, found, as_json=as_json)


def trigger(
    instance: Guid,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's name; case does not matter.")],
    *,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="The request's own key: asked again, it moves nothing.")
    ] = None,
    metadata: Annotated[
        Pairs, typer.Option("--meta", metavar="NAME=VALUE", help="A field for the log entry; repeatable.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what would become of it.")] = False,
    actor: Actor = None,
    cause: Cause = None,
    correlation: Annotated[
        str | None, typer.Option("--correlation", metavar="ID", help="What ties the log entry to your request.")
    ] = None,
    env: Environment = None,
    tenant: Tenant = "",
    db: Db = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Move an instance by an event. The guards are those in the application's mapping `guards`.

    Exits with 0 when it was moved, with 1 when it was refused.
    """
    from penstock import lifecycle_resources
    from penstock.cli.screen import Screen

    place, given = Place(db, app), dict(_fields("--meta", metadata)) or None

    async def question(it: Lifecycles) -> Outcome:
        guid = await guid_of(it, instance, env)
        if check:
            return await it.can(guid, event, actor=actor, metadata=given)
        return await it.trigger(
            guid, event, request_key=key, actor=actor, cause=cause, correlation=correlation, metadata=given,
            retries=3,
        )  # fmt: skip

    found = ask_lifecycles(place, tenant, question, guards=place.guards())
    Screen(as_json=as_json).answer(lambda: lifecycle_resources.outcome(found), lambda: _outcome(found))
    raise typer.Exit(0 if found.applied or found.kind == "allowed" else 1)


def _outcome(found: Outcome) -> Iterator[RenderableType]:
    from rich.text import Text

    if found.target is not None and (found.applied or found.kind == "allowed"):
        words = {"applied": "moved by", "duplicate": "was moved before by", "allowed": "could be moved by"}
        yield Text(f"{found.source} → {found.target}, {words[found.kind]} {found.event}", style="green")
        return
    yield Text(f"refused, {found.kind.replace('_', ' ')}: {found.reason or found.event}", style="red")
    if found.kind == "not_allowed":
        yield Text(f"in {found.source} it can take: {', '.join(found.allowed) or 'nothing'}")


def instances(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only those of this definition; all if left out.")
    ] = None,
    *,
    state: Annotated[str | None, typer.Option("--state", metavar="NAME", help="Only those in this state.")] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="TEXT", help="Only those with this reference.")
    ] = None,
    having: Annotated[
        Pairs, typer.Option("--with", metavar="FLAG", help="Only those with this flag; repeatable, all are needed.")
    ] = None,
    without: Annotated[
        Pairs, typer.Option("--without", metavar="FLAG", help="Only those without this flag; repeatable.")
    ] = None,
    version: VersionOption = None,
    env: Environment = None,
    tenant: Tenant = "",
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """List instances: active, suspended, completed, failed or archived ones, in the order they were started."""
    from penstock import lifecycle_resources, resources
    from penstock.cli import lifecycle_views, views
    from penstock.cli.screen import Screen

    async def question(it: Lifecycles) -> Page[Instance]:
        return await it.instances(
            definition=name, version=version, environment=env, state=state, reference=reference,
            all_of=_flags("--with", having), none_of=_flags("--without", without), cursor=cursor, limit=limit,
        )  # fmt: skip

    page = ask_lifecycles(Place(db), tenant, question)

    def people() -> Iterator[RenderableType]:
        yield lifecycle_views.instances(page.items) if page.items else views.nothing("instance")
        yield from views.more(page.next_cursor)

    Screen(as_json=as_json).answer(
        lambda: resources.listing(page.items, lifecycle_resources.instance, page.next_cursor), people
    )


def history(
    instance: Guid,
    *,
    env: Environment = None,
    tenant: Tenant = "",
    limit: Limit = 100,
    cursor: Cursor = None,
    db: Db = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Show what happened to an instance, an operation or a delivery, and what an instance can take."""
    from penstock import lifecycle_resources, resources
    from penstock.cli import lifecycle_views, views
    from penstock.cli.screen import Screen

    async def question(it: Lifecycles) -> tuple[Instance, Page[LogEntry], Sequence[Available]]:
        found = await it.get(await guid_of(it, instance, env))
        page = await it.log(found.guid, cursor=cursor, limit=limit)
        return found, page, await it.available_events(found.guid)

    place = Place(db, app)
    try:
        found, page, events = ask_lifecycles(place, tenant, question, guards=place.guards())
    except NotFound as error:
        _other_history(place, instance, tenant, error, as_json=as_json)
        return

    def people() -> Iterator[RenderableType]:
        from rich.text import Text

        yield from lifecycle_views.timeline(page.items, found)
        yield from views.more(page.next_cursor)
        may = ", ".join(each.event for each in events if each.is_allowed)
        if may:
            yield Text(f"\nIt can take: {may}", style="dim")

    Screen(as_json=as_json).answer(
        lambda: resources.listing(page.items, lifecycle_resources.log_entry, page.next_cursor), people
    )


def _other_history(place: Place, subject: str, tenant: str, error: NotFound, *, as_json: bool) -> None:
    """The same of an operation or a delivery; `error` where neither has this id."""
    from penstock import lifecycle_resources, resources
    from penstock.cli import lifecycle_views
    from penstock.cli.built_in import moves_of
    from penstock.cli.screen import Screen

    found = ask(place, lambda penstock: moves_of(penstock, subject, tenant))
    if found is None:
        raise error
    Screen(as_json=as_json).answer(
        lambda: resources.listing(found.entries, lifecycle_resources.log_entry, None),
        lambda: lifecycle_views.moves(found),
    )


def _action(name: str, summary: str) -> Callable[..., None]:
    def act(
        instance: Guid,
        *,
        actor: Actor = None,
        cause: Cause = None,
        env: Environment = None,
        tenant: Tenant = "",
        db: Db = None,
        as_json: Json = False,
    ) -> None:
        place = Place(db)

        async def question(it: Lifecycles) -> Instance:
            guid = await guid_of(it, instance, env)
            changed: Instance = await getattr(it, name)(guid, actor=actor, cause=cause)
            return changed

        found = ask_lifecycles(place, tenant, question)
        _show_instance(place, found, as_json=as_json)

    act.__doc__ = summary
    return act


def purge(
    *,
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="AGE", help="Only entries so old: 365d, 12h; s, m, h, d or w."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many would be removed.")] = False,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Remove old log entries; what is left still explains the state of every instance."""
    from rich.text import Text

    from penstock.cli.screen import Screen

    before = datetime.now(UTC) - age("--older-than", older_than)
    found = ask_lifecycles(Place(db), tenant, lambda it: it.purge(before, dry_run=dry_run))
    words = f"{'Would remove' if dry_run else 'Removed'} {counted(found, 'log entry').replace('entrys', 'entries')}."
    Screen(as_json=as_json).answer(lambda: {"entries": found, "isDryRun": dry_run}, lambda: [Text(words)])


def tick(
    *,
    every: Annotated[
        float | None,
        typer.Option("--every", min=0.1, metavar="SECONDS", help="Stay, and pass so often, until SIGTERM or Ctrl-C."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant; all of them if not.")
    ] = None,
    db: Db = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Fire due timers, carry out effects and give up spent deliveries: one pass of the monitor."""
    from penstock import lifecycle_resources
    from penstock.cli import views
    from penstock.cli.screen import Screen

    place = Place(db, app)

    async def one_pass(it: Lifecycles) -> Tick:
        return await (it.tick_all() if tenant is None else it.tenant(tenant).tick())

    async def question(it: Lifecycles) -> Tick:
        return await one_pass(it) if every is None else await _until_stopped(lambda: one_pass(it), every)

    found = ask_lifecycles(place, "", question, guards=place.guards(), effects=place.effects())
    facts = {
        "timers fired": str(found.timers_fired),
        "timers refused": str(found.timers_refused),
        "effects done": str(found.processed),
        "effects failed": str(found.failed),
        "deliveries given up": str(found.given_up),
    }
    Screen(as_json=as_json).answer(lambda: lifecycle_resources.tick(found), lambda: [views.facts(facts)])


async def _until_stopped(one_pass: Callable[[], Awaitable[Tick]], every_s: float) -> Tick:
    """Pass again and again; a database that is away is waited for."""
    from penstock.lifecycles.monitoring import Tick

    total = Tick()
    with stop_on_signals() as stop:
        while not stop.is_set():
            try:
                done = await one_pass()
            except Unavailable as error:
                done = Tick()
                log.warning("%s; trying again in %g s", error, every_s)
            total = Tick.total([total, done])
            if done.is_idle:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), every_s)
    return total


def _show_instance(place: Place, found: Instance, *, as_json: bool) -> None:
    from penstock import lifecycle_resources
    from penstock.cli import lifecycle_views, views
    from penstock.cli.screen import Screen

    def people() -> Iterator[RenderableType]:
        yield from lifecycle_views.instance(found)
        yield from views.try_next([place.command("lifecycle", "history", found.guid)])

    Screen(as_json=as_json).answer(lambda: lifecycle_resources.instance(found), people)


def _fields(option: str, written: Pairs) -> Iterator[tuple[str, Any]]:
    for text in written or ():
        name, equals, value = text.partition("=")
        if not equals or not name.rstrip(":"):
            raise WrongUsage(f"{option} takes NAME=VALUE or NAME:=JSON; found {text!r}")
        if not name.endswith(":"):
            yield name, value
            continue
        try:
            yield name[:-1], json.loads(value)
        except ValueError as error:
            raise WrongUsage(f"{text!r}: what follows := is JSON; {error}") from None


def _flags(option: str, written: Pairs) -> InstanceFlag:
    from penstock.lifecycles.states import InstanceFlag

    flags = InstanceFlag.NONE
    for word in written or ():
        if word.upper() not in InstanceFlag.__members__ or word.upper() == "NONE":
            raise WrongUsage(f"{option} takes active, suspended, completed, failed or archived; found {word!r}")
        flags |= InstanceFlag[word.upper()]
    return flags
