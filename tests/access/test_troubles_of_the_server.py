"""What is wrong with the server stands in its log; whoever asks learns of what kind it is, and no more."""

from __future__ import annotations

import logging

import httpx
import pytest

from penstock.api import create_app
from penstock.errors import (
    DatabaseDamaged,
    DatabaseRefused,
    DatabaseUnready,
    DiskFull,
    FileUnreadable,
    PenstockError,
    Throttled,
    Unavailable,
)

pytestmark = pytest.mark.databases("sqlite")

PLACE = "/srv/data at db7.internal"


class Broken:
    """Finds out who asks with the help of something that fails."""

    def __init__(self, error):
        self.error = error

    async def authenticate(self, request):
        raise self.error


def browser_of(e, error):
    transport = httpx.ASGITransport(create_app(e.penstock, access=Broken(error)), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://p.test", headers={"origin": "http://p.test"})


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (Unavailable, 503),
        (DatabaseRefused, 503),
        (DatabaseUnready, 503),
        (DiskFull, 503),
        (FileUnreadable, 503),
        (DatabaseDamaged, 500),
        (PenstockError, 500),
    ],
)
async def test_an_answer_names_no_host_user_or_path_and_the_log_does(e, caplog, kind, status):
    asked = [
        ("GET", "/api/bulks", {}),
        ("POST", "/api/bulks", {"idempotency-key": "k"}),
        ("GET", "/dashboard", {}),
    ]
    async with browser_of(e, kind(PLACE)) as http:
        for method, path, headers in asked:
            caplog.clear()
            with caplog.at_level(logging.WARNING, "penstock.api"):
                answer = await http.request(method, path, headers=headers)
            assert answer.status_code == status, path
            assert "db7" not in answer.text, path
            assert PLACE in caplog.text, path
            if path == "/api/bulks":
                assert answer.headers.get("retry-after") == ("2" if status == 503 else None)


async def test_who_sends_too_much_is_told_so(e):
    async with browser_of(e, Throttled("too many requests", retry_after_s=7)) as http:
        answer = await http.get("/api/bulks")
        assert (answer.status_code, answer.json()["detail"]) == (429, "too many requests")
        assert answer.headers["retry-after"] == "7"
