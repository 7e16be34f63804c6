"""Who sends a request, and whether their role suffices: asked before anything of the request is read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from penstock.access.model import Principal, Role
from penstock.errors import Forbidden, Throttled, Unauthenticated

if TYPE_CHECKING:
    from penstock.access.rates import TokenBuckets
    from penstock.engine import Penstock

__all__ = [
    "ANONYMOUS",
    "Ask",
    "Authenticator",
    "Caller",
    "Closed",
    "GuardedRoute",
    "Needs",
    "Trusted",
    "guarded",
    "identify",
    "may",
    "require",
]

Above = Literal["tenant", "monitor", "system"]
Needs = Literal["public"] | Role | Above
"""The role that a route needs; `public` routes need no credential.

`tenant` is for what concerns a tenant as a whole, `system` for what concerns all of them: they need an admin who is not
bound to some operations, and for `system` not to a tenant. `monitor` is for numbers about all: it needs no more than
`read`, and no such bounds.
"""

_SCOPE_KEY = "penstock.principal"

ANONYMOUS = Principal("anonymous", frozenset())
EVERYBODY = Principal("anonymous", frozenset({"admin"}))


class Authenticator(Protocol):
    """Finds out who sends a request."""

    async def authenticate(self, request: Request) -> Principal | None:
        """The sender; None without a credential. A wrong credential may also raise `Unauthenticated`."""


class Closed:
    """Nobody is known: every route that is not public answers 401."""

    async def authenticate(self, request: Request) -> Principal | None:
        """Nobody."""
        return None


@dataclass(frozen=True, slots=True)
class Trusted:
    """Everybody is the same principal: for tests, and for a server that only this machine can reach."""

    principal: Principal = EVERYBODY

    async def authenticate(self, request: Request) -> Principal | None:
        """The one principal."""
        return self.principal


async def identify(request: Request) -> Principal | None:
    """Who sends this request; the authenticator is asked once per request."""
    if _SCOPE_KEY not in request.scope:
        access: Authenticator = request.app.state.access
        found = await access.authenticate(request)
        _require_turn(request, found)
        request.scope[_SCOPE_KEY] = found
    principal: Principal | None = request.scope[_SCOPE_KEY]
    return principal


def _require_turn(request: Request, principal: Principal | None) -> None:
    """`Throttled` when this caller has sent too many requests; who has no credential is known by address."""
    rates: TokenBuckets = request.app.state.rates
    address = request.client.host if request.client else ""
    wait_s = rates.take(address if principal is None else (principal.tenant, principal.name))
    if wait_s:
        raise Throttled("too many requests", retry_after_s=ceil(wait_s))


class GuardedRoute(APIRoute):
    """A route that answers only those who have the role it needs."""

    needs: ClassVar[Needs]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, which reads the body, behind the guard."""
        handle = super().get_route_handler()

        async def guard_first(request: Request) -> Response:
            if self.needs != "public":
                require(await identify(request), self.needs)
            return await handle(request)

        return guard_first


_ROLE_FOR: dict[Role | Above, Role] = {
    "read": "read",
    "operate": "operate",
    "admin": "admin",
    "tenant": "admin",
    "monitor": "read",
    "system": "admin",
}


def require(principal: Principal | None, needs: Role | Above) -> Principal:
    """The principal, if it may use routes that need this; `AccessRefused` otherwise."""
    role = _ROLE_FOR[needs]
    if principal is None:
        raise Unauthenticated("send a credential: Authorization: Bearer, followed by a key or token")
    if not principal.has_role(role):
        raise Forbidden(f"{principal.name!r} has not the role {role!r}, which this needs")
    if needs in ("tenant", "monitor", "system") and principal.operations is not None:
        raise Forbidden(f"{principal.name!r} is bound to some operations, and this is about all")
    if needs in ("monitor", "system") and principal.tenant:
        raise Forbidden(f"{principal.name!r} is bound to a tenant, and this is about all")
    return principal


def may(principal: Principal, needs: Needs) -> bool:
    """Whether this principal may use routes that need this."""
    try:
        if needs != "public":
            require(principal, needs)
    except Forbidden:
        return False
    return True


def _of(role: Needs) -> type[GuardedRoute]:
    return type(f"{role.title()}Route", (GuardedRoute,), {"needs": role, "__doc__": f"A route for {role!r}."})


_ROUTES: dict[Needs, type[GuardedRoute]] = {
    "public": _of("public"),
    "read": _of("read"),
    "operate": _of("operate"),
    "admin": _of("admin"),
    "tenant": _of("tenant"),
    "monitor": _of("monitor"),
    "system": _of("system"),
}


def guarded(role: Needs) -> type[GuardedRoute]:
    """The class of routes that need this role."""
    return _ROUTES[role]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and the engine as far as it is theirs: what every endpoint begins with."""

    penstock: Penstock
    principal: Principal

    @property
    def name(self) -> str:
        """The name that the log gets."""
        return self.principal.name

    def creator(self, given: str | None) -> str:
        """Whose name an operation gets: the caller's, or as given where callers are anonymous."""
        return given or self.name if self.name == ANONYMOUS.name else self.name


async def _caller(request: Request) -> Caller:
    principal = await identify(request) or ANONYMOUS
    return Caller(request.app.state.penstock.seen_by(principal), principal)


Ask = Annotated[Caller, Depends(_caller)]
"""The dependency of every endpoint."""
