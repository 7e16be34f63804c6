"""`create_app`: the API, and the dashboard, over a `Penstock` of your own."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request

from penstock.access.rates import TokenBuckets
from penstock.api.browser import BrowserRules
from penstock.api.guard import Authenticator, Closed, identify, require
from penstock.api.limits import BodyLimit, upload_bytes_max
from penstock.api.observing import Observed
from penstock.api.problems import ProblemsOutside, add_handlers
from penstock.api.routing import add_routes, route_of
from penstock.api.table import ROUTES
from penstock.api.watching import Watchers
from penstock.dashboard.failures import add_page_handlers
from penstock.dashboard.live import Live
from penstock.dashboard.table import ROUTES as PAGES
from penstock.idempotency.middleware import IdempotencyMiddleware
from penstock.idempotency.routes import Rule, Scope
from penstock.telemetry.exposition import Exposition

if TYPE_CHECKING:
    from penstock.engine import Penstock

__all__ = ["create_app"]


def create_app(
    penstock: Penstock,
    *,
    access: Authenticator | None = None,
    dashboard: bool = True,
    worker: bool = False,
    root_path: str = "",
    hosts: Iterable[str] = (),
) -> FastAPI:
    """An ASGI application over this `Penstock`, to be served or mounted; it neither opens nor closes it.

    `access` finds out who sends a request: without one, only public routes answer. With `worker` one runs while the
    application does; the lifespan of an application that is mounted is its host's business, so there it is not started:
    use `penstock.working()` in the host's lifespan. `hosts` are the names by which it may be called; none: by any.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if not worker:
            yield
            return
        async with penstock.working():
            yield

    app = FastAPI(
        title="Penstock",
        root_path=root_path,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.penstock = penstock
    app.state.access = access or Closed()
    settings = penstock.settings
    app.state.rates = TokenBuckets(per_s=settings.rate_per_s, burst=settings.rate_burst, clock=penstock.clock)
    app.state.open_streams = Counter()
    app.state.watchers = Watchers(penstock.operations, clock=penstock.clock)
    app.state.live = Live(penstock.clock)
    add_handlers(app)
    if dashboard:
        add_page_handlers(app)
    add_routes(app, (*ROUTES, *(PAGES if dashboard else ())))
    app.add_middleware(
        IdempotencyMiddleware,
        keys=penstock.idempotency,
        caller=_caller,
        rules=_rule_for,
        body_bytes_max=upload_bytes_max(penstock.settings),
    )
    app.add_middleware(BodyLimit, settings=penstock.settings)
    app.add_middleware(ProblemsOutside)
    app.state.metrics = Exposition(penstock.db, clock=penstock.clock)
    app.add_middleware(BrowserRules, public_url=penstock.settings.public_url, hosts=hosts)
    app.add_middleware(Observed, metrics=app.state.metrics, clock=penstock.clock, entropy=penstock.entropy)
    return app


def _rule_for(scope: Scope) -> Rule | None:
    """Every POST and PATCH by a known caller may have a key.

    What is asked for twice is often done once by the engine itself: after a request was cut off, it may be sent again.
    Of the others that were cut off, a new operation or edit may be there or not.
    """
    route = route_of(scope) if scope["method"] in ("POST", "PATCH") else None
    if route is None or route.role == "public":
        return None
    if route.is_repeatable and not route.is_answer_kept:  # a repeat is answered by doing it again
        return None
    return Rule(may_run_again=route.is_repeatable, keep_body=route.is_answer_kept)


async def _caller(scope: Scope) -> Sequence[str]:
    """Whose idempotency key it is; who may not use the route is refused before anything is read, stored or repeated."""
    route = route_of(scope)
    assert route is not None
    assert route.role != "public"
    principal = require(await identify(Request(scope)), route.role)
    return (principal.tenant, principal.name)
