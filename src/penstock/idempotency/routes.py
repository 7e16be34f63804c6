"""Which requests are guarded, and how: routes that are marked, or rules by method and path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from penstock.errors import DeclarationError
from penstock.idempotency.rules import is_kept

__all__ = ["Rule", "RuleFor", "Scope", "for_methods", "for_paths", "idempotent", "is_missed", "marked_routes"]

Scope = MutableMapping[str, Any]
F = TypeVar("F", bound=Callable[..., Any])

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MARK = "__penstock_idempotency__"


@dataclass(frozen=True, slots=True)
class Rule:
    """How a request is guarded.

    `required`: without a key it is refused. `may_run_again`: when an attempt was cut off, the next may follow it; for
    handlers whose effects are all inside `Claim.transaction`, or harmless twice. `keep` says by the status which
    answers are kept; after the others the key is free again. `retention` is how long, if not as for all keys. Without
    `keep_body` only the status and headers are: for answers with secrets. A repeat is told that the rest is gone.
    """

    required: bool = False
    may_run_again: bool = False
    retention: float | timedelta | None = None
    keep: Callable[[int], bool] = is_kept
    keep_body: bool = True


RuleFor = Callable[[Scope], Rule | None]
"""The rule for a request; None when it is not guarded."""


def idempotent(
    *,
    required: bool = False,
    may_run_again: bool = False,
    retention: float | timedelta | None = None,
    keep: Callable[[int], bool] = is_kept,
    keep_body: bool = True,
) -> Callable[[F], F]:
    """Mark an endpoint of Starlette or FastAPI, below the route's own decorator; see `Rule`."""
    rule = Rule(required, may_run_again, retention, keep, keep_body)

    def mark(endpoint: F) -> F:
        setattr(endpoint, MARK, rule)
        return endpoint

    return mark


def marked_routes(scope: Scope) -> Rule | None:
    """The rule of the endpoint that the application will choose for this request."""
    if scope["method"] in SAFE:
        return None
    routes = getattr(scope.get("app"), "routes", None)
    if routes is None:
        raise DeclarationError(
            "marked endpoints are found in the routes of Starlette and FastAPI applications, and this one shows none; "
            "give rules=for_methods(…) or rules=for_paths(…)"
        )
    found: Rule | None = getattr(_endpoint(routes, dict(scope)), MARK, None)
    return found


def is_missed(scope: Scope) -> bool:
    """Whether a request that was not guarded has come to a marked endpoint; frameworks name it in the scope."""
    return scope.get("method") not in SAFE and hasattr(scope.get("endpoint"), MARK)


def _endpoint(routes: Iterable[Any], scope: Scope) -> object:
    for route in routes:
        match, child = route.matches(scope)
        if match.name != "FULL":
            continue
        inner = _inner(route)
        if inner:
            return _endpoint(inner, {**scope, **child})
        if "endpoint" not in child:
            raise DeclarationError(
                f"it cannot be told which endpoint {type(route).__name__} chooses for {scope['path']}; "
                "give rules=for_methods(…) or rules=for_paths(…)"
            )
        return child["endpoint"]
    return None


def _inner(route: Any) -> Sequence[Any]:
    """The routes that a route chooses from, if it is a mounted application or an included router."""
    if hasattr(route, "effective_candidates"):  # FastAPI's included router
        return [getattr(each, "starlette_route", None) or each for each in route.effective_candidates()]
    return getattr(route, "routes", None) or ()


def for_methods(*methods: str, rule: Rule = Rule()) -> RuleFor:  # noqa: B008  # it is frozen
    """One rule for all requests of some methods."""
    wanted = frozenset(method.upper() for method in methods)
    return lambda scope: rule if scope["method"] in wanted else None


def for_paths(rules: Mapping[str, Rule]) -> RuleFor:
    """Rules by method and path, such as `{"POST /orders/*/pay": Rule(required=True)}`; `*` is one part of the path.

    The first that fits is taken.
    """
    known = [(*_pattern(text), rule) for text, rule in rules.items()]

    def rule_for(scope: Scope) -> Rule | None:
        method, parts = scope["method"], scope["path"].split("/")
        for wanted, pattern, rule in known:
            if wanted == method and _fits(pattern, parts):
                return rule
        return None

    return rule_for


def _fits(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return len(pattern) == len(parts) and all(map(lambda part, given: part in ("*", given), pattern, parts))


def _pattern(text: str) -> tuple[str, list[str]]:
    method, _, path = text.partition(" ")
    if not method.isalpha() or not path.startswith("/"):
        raise DeclarationError(f"a rule is for a method and a path, such as 'POST /orders'; found {text!r}")
    return method.upper(), path.split("/")
