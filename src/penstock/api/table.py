"""Every route of the API, with the role that each needs."""

from __future__ import annotations

from penstock.api import callbacks, health, session
from penstock.api.routing import Route

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (*health.ROUTES, *session.ROUTES, *callbacks.ROUTES)
