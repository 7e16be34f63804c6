"""The REST reference says what the table of routes says, and every route is described to machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.api.routing import Route
from penstock.api.table import ROUTES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "rest.md").read_text()


def line(route: Route) -> str:
    """A route as the page shows it."""
    what = (route.endpoint.__doc__ or "").partition("\n\n")[0]
    path = route.path.replace("{key:path}", "{key}")
    return f"| `{route.method} {path}` | {route.role} | {' '.join(what.split())} |"


def test_the_page_lists_every_route_with_its_role_and_no_more():
    expected = [line(route) for route in ROUTES]
    assert re.findall(r"^\| `[A-Z]+ /.*$", PAGE, re.MULTILINE) == expected, "\n" + "\n".join(expected)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_says_what_it_does(route: Route):
    assert (route.endpoint.__doc__ or "").strip()


def test_no_two_routes_have_one_name_or_one_place():
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
