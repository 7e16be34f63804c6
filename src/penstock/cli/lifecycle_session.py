"""What the commands on lifecycles share: whose they are, and the question to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from penstock.cli.session import Place, log_to_stderr, require_database
from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.lifecycles.guards import Guard
    from penstock.lifecycles.model import Handler
    from penstock.lifecycles.service import Lifecycles

__all__ = ["Environment", "Tenant", "VersionOption", "ask_lifecycles", "guid_of"]

T = TypeVar("T")

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant whose lifecycles are meant.")]
Environment = Annotated[
    str | None,
    typer.Option("--env", metavar="NAME", help="The environment, where several have a definition of this name."),
]
VersionOption = Annotated[
    str | None, typer.Option("--version", metavar="X.Y.Z", help="The version, by label or number; the latest if not.")
]


def ask_lifecycles(
    place: Place,
    tenant: str,
    question: Callable[[Lifecycles], Coroutine[Any, Any, T]],
    *,
    makes: bool = False,
    guards: dict[str, Guard] | None = None,
    effects: dict[str, Handler] | None = None,
) -> T:
    """The answer to one question about a tenant's lifecycles."""
    from penstock.engine import Penstock

    async def answer() -> T:
        settings = place.settings()
        if not makes:
            require_database(place)
        log_to_stderr("warning" if settings.log_level == "info" else settings.log_level)
        async with Penstock.open(settings=settings, guards=guards or {}, effects=effects or {}) as penstock:
            return await question(penstock.lifecycles.tenant(tenant))

    return asyncio.run(answer())


async def guid_of(lifecycles: Lifecycles, written: str, environment: str | None = None) -> str:
    """The guid of an instance named by it, by its beginning, or by definition and reference: order/A-1001.

    The environment is the definition's.
    """
    name, slash, reference = written.partition("/")
    if not slash:
        return (await lifecycles.get(written)).guid
    found = (await lifecycles.instances(definition=name, environment=environment, reference=reference)).items
    if not found:
        raise NotFound(f"no instance of {name!r} has the reference {reference!r}")
    return found[-1].guid
