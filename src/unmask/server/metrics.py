"""Numbers of a server in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from unmask.server.engine import Engine

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/infill", "/v1/drafts", "/v1/models", "/health", "/metrics")
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)  # seconds


@dataclass
class Requests:
    """Counts of requests; written on the loop's thread alone."""

    running: int = 0
    answered: dict[tuple[str, int], int] = field(default_factory=dict)  # by (path, status)
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by path: a count a bucket, of all, and their sum

    def done(self, path: str, status: int, seconds: float) -> None:
        name = next((known for known in PATHS if path == known or path.startswith(f"{known}/")), "other")
        self.answered[name, status] = self.answered.get((name, status), 0) + 1
        row = self.seconds.setdefault(name, [0.0] * (len(BUCKETS) + 2))
        for place, most in enumerate([*BUCKETS, float("inf")]):
            row[place] += seconds <= most
        row[-1] += seconds


def prometheus(requests: Requests, engines: Mapping[str, Engine]) -> str:
    return "".join(f"{line}\n" for line in [*_of_requests(requests), *_of_engines(engines)])


def _of_requests(requests: Requests) -> Iterator[str]:
    yield from _head("requests_total", "counter", "requests answered, by address and status")
    for (path, status), count in sorted(requests.answered.items()):
        yield f'unmask_requests_total{{path="{path}",status="{status}"}} {count}'
    yield from _head("requests_running", "gauge", "requests that are being answered")
    yield f"unmask_requests_running {requests.running}"
    yield from _head("request_seconds", "histogram", "seconds until a request was answered whole")
    for path, row in sorted(requests.seconds.items()):
        for bucket, times in zip([*map(str, BUCKETS), "+Inf"], row, strict=False):
            yield f'unmask_request_seconds_bucket{{path="{path}",le="{bucket}"}} {times:.0f}'
        yield f'unmask_request_seconds_count{{path="{path}"}} {row[-2]:.0f}'
        yield f'unmask_request_seconds_sum{{path="{path}"}} {row[-1]:.6f}'


def _of_engines(engines: Mapping[str, Engine]) -> Iterator[str]:
    numbers = (
        ("texts_total", "counter", "texts written", lambda one: one.counts.finished),
        ("texts_failed_total", "counter", "texts that failed", lambda one: one.counts.failed),
        ("texts_cancelled_total", "counter", "texts that nobody waited for", lambda one: one.counts.cancelled),
        ("tokens_total", "counter", "tokens written", lambda one: one.counts.tokens),
        ("forwards_total", "counter", "forwards of the network", lambda one: one.counts.forwards),
        ("rows_total", "counter", "texts in all forwards", lambda one: one.counts.rows),
        ("busy_seconds_total", "counter", "seconds in which there was work", lambda one: one.counts.busy_seconds),
        ("texts_running", "gauge", "texts under way", lambda one: len(one.live)),
        ("texts_waiting", "gauge", "texts that wait for a slot", lambda one: one.waiting),
        ("slots", "gauge", "texts that may be under way at once", lambda one: one.slots),
    )
    for name, kind, about, value in numbers:
        yield from _head(name, kind, about)
        for model, engine in engines.items():
            label = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            yield f'unmask_{name}{{model="{label}"}} {value(engine):g}'


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP unmask_{name} {about}"
    yield f"# TYPE unmask_{name} {kind}"
