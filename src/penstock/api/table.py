"""Every route of the API, with the role that each needs."""

from __future__ import annotations

from penstock.api import (
    audit,
    blobs,
    bulks,
    callbacks,
    catalogue,
    deliveries,
    erasure,
    events,
    files,
    health,
    idempotency_keys,
    keys,
    lifecycles,
    metrics,
    retries,
    rows,
    session,
    signals,
    system,
    webhooks,
)
from penstock.api.routing import Route

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *metrics.ROUTES,
    *catalogue.ROUTES,
    *bulks.ROUTES,
    *rows.ROUTES,
    *retries.ROUTES,
    *erasure.ROUTES,
    *signals.ROUTES,
    *callbacks.ROUTES,
    *files.ROUTES,
    *events.ROUTES,
    *blobs.ROUTES,
    *lifecycles.ROUTES,
    *deliveries.ROUTES,
    *webhooks.ROUTES,
    *idempotency_keys.ROUTES,
    *keys.ROUTES,
    *audit.ROUTES,
    *system.ROUTES,
    *session.ROUTES,
)
