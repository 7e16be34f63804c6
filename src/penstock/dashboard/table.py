"""Every page of the dashboard, with the role that each needs."""

from __future__ import annotations

from penstock.api.routing import Route

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = ()
