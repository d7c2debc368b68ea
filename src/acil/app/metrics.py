"""Counters and one histogram, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Upper ends of the classes of the histogram, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Others count as one: a client could think up any number of them.
_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))


class Metrics:
    """What a server has done since it started.

    Examples
    --------
    >>> metrics = Metrics()
    >>> metrics.answered("GET", "/health", 200, 0.004)
    >>> metrics.text([]).splitlines()[2]
    'acil_requests_total{method="GET",path="/health",status="200"} 1'
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self._sums: dict[str, float] = defaultdict(float)
        self._images: Counter[str] = Counter({"predict": 0, "learn": 0, "forget": 0})

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answer.

        Parameters
        ----------
        method, path : str
            ``path`` as the route has it, not as a client wrote it: the number of values stays small.
        status : int
        seconds : float
        """
        with self._lock:
            self._requests[method if method in _METHODS else "other", path, status] += 1
            self._seconds[path][bisect_left(BUCKETS, seconds)] += 1
            self._sums[path] += seconds

    def used(self, what: str, images: int) -> None:
        """Count images that were predicted, learnt or forgotten."""
        with self._lock:
            self._images[what] += images

    def text(self, gauges: Iterable[tuple[str, str, float]]) -> str:
        """Return everything, with values of the moment.

        Parameters
        ----------
        gauges : iterable of (str, str, float)
            Name without prefix, help, value.
        """
        with self._lock:
            lines = _heading("requests_total", "counter", "Answers by method, path and status.")
            for (method, path, status), count in sorted(self._requests.items()):
                labels = f'method="{method}",path="{path}",status="{status}"'
                lines.append(f"acil_requests_total{{{labels}}} {count}")
            lines += _heading("request_seconds", "histogram", "Time until an answer was complete.")
            for path, counts in sorted(self._seconds.items()):
                total = 0
                for end, count in zip((*BUCKETS, "+Inf"), counts, strict=True):
                    total += count
                    lines.append(f'acil_request_seconds_bucket{{path="{path}",le="{end}"}} {total}')
                lines.append(f'acil_request_seconds_sum{{path="{path}"}} {self._sums[path]:.6f}')
                lines.append(f'acil_request_seconds_count{{path="{path}"}} {total}')
            lines += _heading("images_total", "counter", "Images by what was done with them.")
            for what, count in sorted(self._images.items()):
                lines.append(f'acil_images_total{{what="{what}"}} {count}')
        for name, about, value in gauges:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [*_heading(name, kind, about), f"acil_{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _heading(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP acil_{name} {about}", f"# TYPE acil_{name} {kind}"]
