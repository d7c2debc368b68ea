"""What a server counts for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: All others count as one: a client could invent any number of them.
_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))


class Metrics:
    """Counts of one server since its start; ``current`` returns further metrics, as they are now.

    Examples
    --------
    >>> metrics = Metrics()
    >>> metrics.answered("GET", "/health", 200, 0.004)
    >>> metrics.text().splitlines()[2]
    'acil_requests_total{method="GET",path="/health",status="200"} 1.0'
    """

    def __init__(self, current: Callable[[], Iterable[Metric]] | None = None) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        labels = ("method", "path", "status")
        self._requests = Counter(
            "acil_requests", "Answers by method, path and status.", labels, registry=registry
        )
        self._seconds = Histogram(
            "acil_request_seconds",
            "Time until an answer was complete.",
            ("path",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._images = Counter(
            "acil_images", "Images by what was done with them.", ("what",), registry=registry
        )
        for what in ("forget", "learn", "predict"):
            self._images.labels(what)
        if current is not None:
            registry.register(_Current(current))

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answer; `path` is that of the route, so that the number of values stays small."""
        self._requests.labels(method if method in _METHODS else "other", path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def used(self, what: str, images: int) -> None:
        """Count images that were predicted, learnt or forgotten."""
        self._images.labels(what).inc(images)

    def text(self) -> str:
        """Return everything in the text format of Prometheus."""
        return prometheus_client.generate_latest(self._registry).decode()


class _Current(Collector):
    def __init__(self, values: Callable[[], Iterable[Metric]]) -> None:
        self._values = values

    def collect(self) -> Iterable[Metric]:
        return self._values()
