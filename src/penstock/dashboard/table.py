"""Every page of the dashboard, with the role that each needs."""

from __future__ import annotations

from penstock.api.routing import Route
from penstock.dashboard import (
    asset_files,
    blobs,
    deliveries,
    lifecycles,
    login,
    operation,
    operations,
    rows,
    system,
    upload,
    waits,
    webhooks,
)

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (
    *asset_files.ROUTES,
    *login.ROUTES,
    *operations.ROUTES,
    *rows.ROUTES,
    *operation.ROUTES,
    *upload.ROUTES,
    *waits.ROUTES,
    *lifecycles.ROUTES,
    *blobs.ROUTES,
    *deliveries.ROUTES,
    *webhooks.ROUTES,
    *system.ROUTES,
)
