"""From the options of a command to an engine, and back to commands a user can paste."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.cli.problems import WrongUsage
from penstock.errors import DeclarationError, NotFound

if TYPE_CHECKING:
    from penstock.engine import Penstock
    from penstock.lifecycles.guards import Guard
    from penstock.lifecycles.model import Handler
    from penstock.pipeline import Definition
    from penstock.settings import Settings

__all__ = [
    "LAST",
    "Place",
    "about",
    "ask",
    "database_of",
    "exact_id",
    "leaving_no_database",
    "log_to_stderr",
    "opened",
    "penstock_command",
    "reached",
    "require_database",
]

T = TypeVar("T")

LAST = "@last"
NO_SERVER = ""  # instead of an address: the command is about a database, whatever the settings say
LOG_LINE = "%(levelname)s %(name)s: %(message)s"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command works, as far as its options say so."""

    db: str | None = None
    app: str | None = None
    url: str | None = NO_SERVER

    @property
    def server(self) -> str | None:
        """The address of the server that is asked, if it is one; --db says that it is none."""
        if self.url == NO_SERVER:
            return None
        found = self.url or (None if self.db else self.settings().url)
        if self.url and self.db:
            raise WrongUsage("--url and --db cannot be used together: a server has its own database")
        if found and not found.startswith(("http://", "https://")):
            raise WrongUsage(f"the address of a server begins with http:// or https://; found {found!r}")
        return found

    def settings(self) -> Settings:
        """The effective settings."""
        from penstock.settings import load_settings

        return load_settings(database_url=self.db, app=self.app)

    def definitions(self) -> tuple[Definition, ...]:
        """The operations of the application."""
        from penstock.pipeline import load_app

        app = self.settings().app
        if app is None:
            raise WrongUsage(
                "no application is given: add --app pkg.module or --app path/to/file.py, or set PENSTOCK_APP"
            )
        return load_app(app)

    def guards(self) -> dict[str, Guard]:
        """The guards and gates of the application's lifecycles, if one is named: its mapping `guards`."""
        return self._mapping("guards", "functions")

    def effects(self) -> dict[str, Handler]:
        """The effects of the application's lifecycles, if one is named: its mapping `effects`."""
        return self._mapping("effects", "functions")

    def handlers(self) -> dict[str, object]:
        """The handlers of events of the application, if one is named: its mapping `handlers`."""
        return self._mapping("handlers", "objects")

    def _mapping(self, name: str, of: str) -> dict[str, Any]:
        from penstock.pipeline.discovery import load_module

        app = self.settings().app
        found = {} if app is None else getattr(load_module(app), name, {})
        if not isinstance(found, dict):
            raise DeclarationError(f"`{name}` in {app!r} maps names to {of}; found {type(found).__name__}")
        return found

    def definitions_if_named(self) -> tuple[Definition, ...]:
        """The operations of the application, or none where none is named."""
        return () if self.settings().app is None else self.definitions()

    def definition(self, name: str) -> Definition:
        """The operation with this name, ignoring case."""
        known = {definition.name.casefold(): definition for definition in self.definitions()}
        if name.casefold() in known:
            return known[name.casefold()]
        near = get_close_matches(name.casefold(), known, 1)
        hint = f"did you mean {known[near[0]].name!r}? " if near else ""
        listed = ", ".join(sorted(definition.name for definition in known.values()))
        raise NotFound(f"unknown operation {name!r}; {hint}known: {listed}")

    def definitions_for(self, name: str) -> tuple[Definition, ...]:
        """The operation with this name; none where a server has its code."""
        return () if self.server is not None else (self.definition(name),)

    def command(self, *words: str, app: bool = False) -> str:
        """A command to try next, with the options that lead to the same place; a password among them is hidden."""
        from penstock.settings import masked

        db = self.db
        if self.url == NO_SERVER and db is None and self.settings().url:  # which other commands would ask
            db = self.settings().database_url
        options = ["--db", masked(db)] if db else []
        options += ["--url", self.url] if self.url else []
        if app and self.app:
            options += ["--app", self.app]
        return shlex.join([*penstock_command(), *words, *options])


def database_of(db: str | None, app: str | None = None) -> Place:
    """Where a command works that changes operations and cannot ask a server.

    Where other commands ask one (setting `url`), its database must be named: `@last` would be found in another.
    """
    place = Place(db, app)
    settings = place.settings()
    if settings.url and "database_url" not in settings.model_fields_set:
        raise WrongUsage(
            f"this command cannot ask the server {settings.url}, which others do (PENSTOCK_URL): "
            "name the database of the server with --db or PENSTOCK_DATABASE_URL"
        )
    return place


@asynccontextmanager
async def opened(
    place: Place, *, definitions: tuple[Definition, ...] = (), makes: bool = False
) -> AsyncIterator[Penstock]:
    """The engine at that place. Unless the command `makes` a database, one that is not there is an error."""
    from penstock.engine import Penstock

    settings = place.settings()
    if not makes:
        require_database(place)
    log_to_stderr(settings.log_level, as_json=settings.log_format == "json")
    # Only they have workers, who fire timers and carry out effects.
    guards, effects = (place.guards(), place.effects()) if makes else ({}, {})
    handlers = place.handlers() if makes else {}
    async with Penstock.open(
        settings=settings, operations=definitions, guards=guards, effects=effects, handlers=handlers
    ) as penstock:
        yield penstock


def ask(
    place: Place,
    question: Callable[[Penstock], Coroutine[Any, Any, T]],
    *,
    definitions: tuple[Definition, ...] = (),
) -> T:
    """The answer to one question to the engine."""

    async def answer() -> T:
        async with reached(place, definitions=definitions) as penstock:
            return await question(penstock)

    return asyncio.run(answer())


@asynccontextmanager
async def reached(
    place: Place, *, definitions: tuple[Definition, ...] = (), makes: bool = False
) -> AsyncIterator[Penstock]:
    """The engine at that place, or a server that answers the same calls about operations and signals."""
    server = place.server
    if server is None:
        async with opened(place, definitions=definitions, makes=makes) as penstock:
            yield penstock
        return
    from penstock.client import AsyncClient

    settings = place.settings()
    log_to_stderr(settings.log_level)
    key = None if settings.api_key is None else settings.api_key.get_secret_value()
    async with AsyncClient(server, key) as client:
        yield cast("Penstock", client)


def about(
    operation: str, question: Callable[[Penstock, str], Coroutine[Any, Any, T]]
) -> Callable[[Penstock], Coroutine[Any, Any, T]]:
    """A question about one operation, which is found once and then known by its id."""

    async def answer(penstock: Penstock) -> T:
        return await question(penstock, await exact_id(penstock, operation))

    return answer


async def exact_id(penstock: Penstock, given: str) -> str:
    """The id behind `@last`, the newest operation, or `@last:NAME`, the newest of that name; other ids as they are."""
    if given != LAST and not given.startswith(f"{LAST}:"):
        return given
    name = given.removeprefix(LAST).removeprefix(":") or None
    cursor = None
    while True:
        page = await penstock.operations.list(name=name, cursor=cursor)
        for operation in page.items:
            if name is None or operation.name.casefold() == name.casefold():
                return operation.id
        cursor = page.next_cursor
        if cursor is None:
            raise NotFound(
                f"operation not found: {given}; there is no operation yet"
                + (f" with the name {name!r}" if name else "")
            )


def penstock_command() -> tuple[str, ...]:
    """How this command can be called from the user's shell."""
    if shutil.which("penstock"):
        return ("penstock",)
    beside, here = Path(sys.executable).parent / "penstock", Path.cwd()
    if not beside.exists():
        return (sys.executable, "-m", "penstock")
    return (str(beside.relative_to(here) if beside.is_relative_to(here) else beside),)


def require_database(place: Place) -> None:
    """A look must not make a database: a mistyped path would seem to be an empty one."""
    path = _missing_database(place)
    if path is not None:
        raise NotFound(
            f"database not found: {path}; create it with `{place.command('db', 'upgrade')}`, or name another with --db"
        )


@contextmanager
def leaving_no_database(place: Place) -> Iterator[Place]:
    """The place for a command that stores nothing; where there is no database yet, one that is removed again."""
    if place.server is not None or _missing_database(place) is None:
        yield place
        return
    with TemporaryDirectory(prefix="penstock-") as folder:
        yield replace(place, db=f"sqlite:///{folder}/penstock.db")


def _missing_database(place: Place) -> Path | None:
    """The file of the database, if that is a file and not there."""
    from penstock.db.address import parse

    address, dialect = parse(place.settings().database_url)
    path = Path((address.database or "").removeprefix("file:").partition("?")[0])
    return path if dialect.is_file and not path.exists() else None


def log_to_stderr(level: str, *, with_time: bool = False, as_json: bool = False) -> None:
    """Let our loggers speak on stderr; a process that stays says when, in UTC. The first call decides how."""
    from penstock.telemetry.logs import JsonFormatter, LineFormatter

    logger = logging.getLogger("penstock")
    logger.setLevel(level.upper())
    if not logger.handlers:
        handler = logging.StreamHandler(_CurrentStderr())
        line = f"%(asctime)s.%(msecs)03dZ {LOG_LINE}" if with_time else LOG_LINE
        handler.setFormatter(JsonFormatter() if as_json else LineFormatter(line, "%Y-%m-%dT%H:%M:%S"))
        logger.addHandler(handler)


class _CurrentStderr:
    """Whatever stderr is now: a live display takes its place for a while and prints log lines above itself."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()
