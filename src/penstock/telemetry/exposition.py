"""Numbers as Prometheus reads them: those of the database, and those that this process counts itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from penstock.telemetry.measures import measures

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from penstock.clock import Clock
    from penstock.db.database import Database
    from penstock.telemetry.measures import Measure

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KEPT_S = 2.0  # several who scrape at once make the database count once


class Exposition:
    """The metrics of one server process."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db, self._clock = db, clock
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._measures: Sequence[Measure] = ()
        self._read_at: float | None = None
        labels = ("method", "route", "status")
        self._requests = Counter("penstock_http_requests", "Requests answered.", labels, registry=self._registry)
        self._durations = Histogram(
            "penstock_http_request_seconds", "How long answers took to begin.", ("route",), registry=self._registry
        )

    def collect(self) -> Iterable[Metric]:
        """What `prometheus_client` asks for."""
        return list(_families(self._measures))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. `route` is the path as it is declared, so there are no more than routes."""
        self._requests.labels(method, route, f"{status // 100}xx").inc()
        self._durations.labels(route).observe(seconds)

    async def text(self) -> bytes:
        """All metrics, as text."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= KEPT_S:
            self._measures = await measures(self._db)
            self._read_at = now
        return generate_latest(self._registry)


def _families(found: Iterable[Measure]) -> Iterator[Metric]:
    for measure in found:
        family = GaugeMetricFamily(measure.name, measure.help, labels=[measure.label] if measure.label else [])
        for value, number in measure.values.items():
            family.add_metric([value] if measure.label else [], number)
        yield family
