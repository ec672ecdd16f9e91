"""What this replica of the API counts, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

from app.api.reading import Reading
from deployments.modes import MODES
from deployments.request.job import Figures, JobStats

CONTENT_TYPE = CONTENT_TYPE_LATEST

_registry = CollectorRegistry()
_requests = Counter(
    "tandem_requests", "Requests by mode and HTTP status", ["mode", "status"], registry=_registry
)
_tokens = Counter("tandem_tokens", "Output tokens by origin", ["origin"], registry=_registry)
_ttft_s = Histogram(
    "tandem_ttft_seconds",
    "From the request to the first text sent",
    ["mode"],
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
    registry=_registry,
)
_tpot_s = Histogram(
    "tandem_tpot_seconds",
    "Time per output token after the first, as sent: of a paced stream it is the reader's",
    ["mode"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
    registry=_registry,
)
_stall_s = Histogram(
    "tandem_stall_seconds",
    "What a request's readers waited with nothing left to read, after the first token",
    ["mode"],
    buckets=(0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
    registry=_registry,
)
_read = Counter(
    "tandem_reader_tokens",
    "Output tokens of requests that somebody reads along",
    ["mode"],
    registry=_registry,
)
_effective = Counter(
    "tandem_effective_tokens",
    "Of tandem_reader_tokens, those that did not come long before they were needed",
    ["mode"],
    registry=_registry,
)
_usd = Counter("tandem_usd", "Dollars that requests cost, joules included", ["mode"], registry=_registry)
_joules = Counter(
    "tandem_device_joules", "Joules that devices spent on requests", ["mode"], registry=_registry
)

OPEN = "open"
"""The mode of a request that left it open and did not get as far as to be given one."""

_counters: dict[str, Counter] = {}
"""Of the modes, by name."""


def _counter(figures: Figures, name: str) -> Counter:
    if name not in _counters:
        _counters[name] = Counter(f"tandem_{name}", figures.counters[name], ["reason"], registry=_registry)
    return _counters[name]


def request_done(mode: str | None, status: int) -> None:
    """mode: as served where that is known, otherwise as asked for."""
    _requests.labels(mode or OPEN, str(status)).inc()


def answer_done(jobs: Sequence[JobStats], ttft_s: float, total_s: float) -> None:
    """A complete answer and its jobs; seconds since the request came."""
    served = jobs[0].mode or OPEN
    _ttft_s.labels(served).observe(ttft_s)
    if (tokens := max(job.tokens for job in jobs)) > 1:
        _tpot_s.labels(served).observe((total_s - ttft_s) / (tokens - 1))
    for job in jobs:
        for figures in (mode.figures.of(job) for mode in MODES.values()):
            for counter, reason, by in figures.counted():
                _counter(figures, counter).labels(reason).inc(by)
        _usd.labels(served).inc(job.usd)
        _joules.labels(served).inc(job.joules)
        for origin, count in job.by_origin.items():
            _tokens.labels(str(origin)).inc(count)


def answer_read(mode: str, readings: Sequence[Reading]) -> None:
    """A complete answer's choices, as their readers met them; nothing where nobody reads along."""
    read, mode = [reading for reading in readings if reading.rate], mode or OPEN
    if read:
        _stall_s.labels(mode).observe(sum(reading.stall_s for reading in read))
        _read.labels(mode).inc(sum(reading.tokens for reading in read))
        _effective.labels(mode).inc(sum(reading.effective_tokens for reading in read))


def exposition() -> bytes:
    return generate_latest(_registry)
