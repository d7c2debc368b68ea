"""What a server counts for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: All others count as one: a client could invent any number of them.
_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))


class Metrics:
    """Counts of one server since its start, of a model of images or of texts.

    Examples
    --------
    >>> metrics = Metrics("images")
    >>> metrics.answered("GET", "/health", 200, 0.004)
    >>> metrics.text().splitlines()[2]
    'acil_requests_total{method="GET",path="/health",status="200"} 1.0'
    """

    def __init__(self, many: str) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = self._counter(
            "acil_requests", "Answers by method, path and status.", "method", "path", "status"
        )
        self._seconds = Histogram(
            "acil_request_seconds",
            "Time until an answer was complete.",
            ("path",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._used = self._counter(
            f"acil_{many}", f"{many.capitalize()} by what was done with them.", "what"
        )
        for what in ("forget", "learn", "predict"):
            self._used.labels(what)
        self._batches = self._counter("acil_batches", "Batches that went through the network.")
        self._batched = self._counter(f"acil_batch_{many}", f"{many.capitalize()} in these batches.")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self._registry)

    def show(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a metric whose value is asked for whenever the text is made."""
        Gauge(name, about, registry=self._registry).set_function(value)

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answer; `path` is that of the route, so that the number of values stays small."""
        self._requests.labels(method if method in _METHODS else "other", path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def used(self, what: str, samples: int) -> None:
        """Count samples that were predicted, learnt or forgotten."""
        self._used.labels(what).inc(samples)

    def batch(self, samples: int) -> None:
        """Count a batch of samples that went through the network."""
        self._batches.inc()
        self._batched.inc(samples)

    def text(self) -> str:
        """Return everything in the text format of Prometheus."""
        return prometheus_client.generate_latest(self._registry).decode()
