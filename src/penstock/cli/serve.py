"""`penstock serve`: the REST API and the dashboard, with a worker in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import App, Db, Json, command
from penstock.cli.problems import WrongUsage
from penstock.cli.session import Place, log_to_stderr, opened
from penstock.cli.stopping import stop_on_signals
from penstock.cli.worker import pause_after, pauses
from penstock.errors import DatabaseUnready, DatabaseUnsafe, PenstockError, SettingsInvalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from fastapi import FastAPI

    from penstock.engine import Penstock
    from penstock.pipeline import Definition

    Application = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]

__all__ = ["add_to", "serve"]

log = logging.getLogger("penstock.serve")

BACKLOG = 2048


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "serve", serve, example="serve --app shop.py --port 8000", exits=(0, 1, 2))


def serve(
    *,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="The port to listen on; 0 for any free one.")
    ] = 8000,
    no_worker: Annotated[
        bool,
        typer.Option("--no-worker", help="Run no operations in this process; others do, such as `penstock worker`."),
    ] = False,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Serve the API alone, without pages.")] = False,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let everybody do everything. Only for an address of this machine."),
    ] = False,
    root_path: Annotated[
        str, typer.Option("--root-path", metavar="PATH", help="The path below which a proxy shows this server.")
    ] = "",
    db: Db = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Serve the REST API and the dashboard until SIGTERM or Ctrl-C, and run operations in the same process.

    Callers need an API key or a token, unless --insecure is given. After the first signal running requests and rows may
    finish (setting shutdown_s). With --json one document is printed at the end.
    """
    from penstock import failpoints
    from penstock.cli.screen import Screen

    _require_packages()
    if insecure and not _is_loopback(host):
        raise WrongUsage(f"--insecure is for an address of this machine alone, such as 127.0.0.1; found {host!r}")
    failpoints.arm_from_environment()
    place = Place(db, app)
    settings = place.settings()
    definitions = place.definitions_if_named() if no_worker else place.definitions()
    if settings.storage_fault is not None:
        raise SettingsInvalid(settings.storage_fault)
    log_to_stderr(settings.log_level, with_time=True, as_json=settings.log_format == "json")
    wanted = Wanted(
        place,
        definitions,
        has_worker=not no_worker,
        has_dashboard=not no_dashboard,
        is_insecure=insecure,
        root_path=root_path,
        host=host,
    )
    with _listening(host, port) as listener:
        starts = asyncio.run(_serve(wanted, listener))
    if as_json:
        names = sorted(definition.name for definition in definitions)
        Screen(as_json=True).document({"process": os.getpid(), "operations": names, "starts": starts})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is served, and how."""

    place: Place
    definitions: tuple[Definition, ...]
    has_worker: bool
    has_dashboard: bool
    is_insecure: bool
    root_path: str
    host: str

    def application(self, penstock: Penstock) -> FastAPI:
        """The application over an engine."""
        from penstock.api import Credentials, Trusted, create_app

        return create_app(
            penstock,
            access=Trusted() if self.is_insecure else Credentials(penstock),
            dashboard=self.has_dashboard,
            root_path=self.root_path,
            # Without credentials, nothing else keeps a page of another site from reading answers.
            hosts=("localhost", "127.0.0.1", "::1", self.host) if self.is_insecure else (),
        )


class Door:
    """What the server calls: the application while the database is there, and a refusal to try later otherwise."""

    def __init__(self) -> None:
        self.app: FastAPI | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        from penstock.api.problems import answer

        app: Application
        if self.app is not None:
            app = self.app
        elif scope["type"] == "http" and scope["path"].endswith("/health/live"):
            app = _live()
        else:
            app = answer(Unavailable("the database is not there; this server waits for it"))
        await app(scope, receive, send)

    def close(self) -> None:
        """End what would go on without an end: streams of progress."""
        if self.app is not None:
            self.app.state.watchers.close()
            self.app.state.live.close()


def _live() -> Application:
    from penstock.api.answers import JsonResponse

    return JsonResponse({"status": "live"})


async def _serve(wanted: Wanted, listener: socket.socket) -> int:
    """Serve until told to stop; says how often the database was opened."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Signals are ours: the worker has to hear of them too."""
            yield

    settings, door = wanted.place.settings(), Door()
    config = uvicorn.Config(
        door,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=round(settings.shutdown_s),
        root_path=wanted.root_path,
    )
    server = Server(config)
    with stop_on_signals() as stop:
        try:
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(server.serve(sockets=[listener]), name="server")
                working = group.create_task(_work(wanted, door, stop, serving), name="engine")
                log.info("serving on %s", _address(listener))
                waiting = group.create_task(stop.wait())
                await asyncio.wait({serving, working, waiting}, return_when=asyncio.FIRST_COMPLETED)
                stop.set()
                door.close()
                server.should_exit = True
        except* PenstockError as errors:
            raise errors.exceptions[0] from None
    log.info("stopped")
    return working.result()


async def _work(wanted: Wanted, door: Door, stop: asyncio.Event, serving: asyncio.Task[None]) -> int:
    """Keep the engine open until the server has ended, beginning anew whenever the database was away."""
    starts, between = 0, pauses()
    while not stop.is_set():
        try:
            async with opened(wanted.place, definitions=wanted.definitions, makes=True) as penstock:
                starts, between = starts + 1, pauses()
                door.app = wanted.application(penstock)
                await _tell_about_keys(wanted, penstock)
                if wanted.has_worker:
                    async with penstock.worker() as hands:
                        await hands.run(stop)
                await stop.wait()
                await asyncio.wait({serving})
        except (DatabaseUnready, DatabaseUnsafe):
            raise
        except Unavailable as error:
            await pause_after(stop, next(between), error)
        finally:
            door.app = None
    return starts


async def _tell_about_keys(wanted: Wanted, penstock: Penstock) -> None:
    if wanted.is_insecure:
        log.warning("--insecure: everybody who reaches this address may do everything")
    elif penstock.settings.oidc_issuer is None and not await penstock.keys.list():
        log.warning("nobody has access yet: create an API key with `penstock keys create NAME --role admin`")


def _require_packages() -> None:
    missing = [name for name in ("fastapi", "jinja2", "python_multipart", "uvicorn") if find_spec(name) is None]
    if missing:
        raise SettingsInvalid(
            f"`penstock serve` needs {', '.join(missing)}: install penstock with its extra, 'penstock[server]'"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise SettingsInvalid(f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', error)}") from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
