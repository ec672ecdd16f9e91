"""Metrics for operators, in Prometheus' formats: one registry for all replicas of the API.

A metric has vLLM's name where it means the same, so that dashboards and alerts made for vLLM work here; the others
begin with "tandem_". No label takes a value that a client can invent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from tandem.deployments.modes import MODES
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.routing.directory import Snapshot

OPEN = "open"
"""The mode of a request that left it open and did not get as far as to be given one."""
ABORT = "abort"
"""Why an answer ended whose client had gone, in vLLM's word."""

LATENCY_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
TOKEN_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)

prometheus_client.disable_created_metrics()  # they double the output, and Prometheus has no use for them


@dataclass(frozen=True, slots=True)
class Observation:
    """A request that is over, however it ended, as the API saw it.

    mode: in which it was served; if it did not get that far, asked for, or OPEN.
    status: of HTTP.
    prompt_tokens: taken in.
    origins: output tokens by origin.
    finished: why each answer ended that did: "stop", "length" or ABORT.
    queue_s: that it waited at the gate; None: it did not pass.
    ttft_s: from its arrival to the first text sent; None: there was none.
    total_s: from its arrival to the last text sent; None: it did not come to its end.
    tpot_s: of each answer, seconds per token after the first.
    stall_s: that its readers waited after the first token; None: nobody reads along.
    read_tokens, effective_tokens: of its readers, as `policies.reader.quality` counts.
    drafted, accepted: tokens.
    replans: how often an answer went on elsewhere.
    usd, joules: that it cost.
    counted: what modes count in their figures, by counter and reason.
    """

    mode: str
    status: int
    prompt_tokens: int = 0
    origins: Mapping[str, int] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    queue_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    tpot_s: tuple[float, ...] = ()
    stall_s: float | None = None
    read_tokens: int = 0
    effective_tokens: float = 0.0
    drafted: int = 0
    accepted: int = 0
    replans: int = 0
    usd: float = 0.0
    joules: float = 0.0
    counted: Mapping[tuple[str, str], float] = field(default_factory=dict)


class Metrics:
    """Counts requests, and shows that together with how things stand.

    model: by which clients ask for the verifiers' model.
    snapshot: says what is up.
    waiting: says how many requests wait at the gate.
    """

    def __init__(self, model: str, snapshot: Callable[[], Snapshot], waiting: Callable[[], int]) -> None:
        self._model = model
        self._registry = CollectorRegistry()
        self._registry.register(_Gauges(model, snapshot, waiting))
        self._requests = self._counter(
            "tandem_requests", "Requests by mode and HTTP status", "mode", "status"
        )
        self._finished = self._counter(
            "vllm:request_success", "Answers by why they ended", "model_name", "finished_reason"
        )
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens taken in", "model_name")
        self._tokens = self._counter(
            "vllm:generation_tokens", "Output tokens, by origin", "model_name", "origin"
        )
        self._drafted = self._counter(
            "vllm:spec_decode_num_draft_tokens", "Tokens drafted in speculative rounds", "model_name"
        )
        self._accepted = self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Of these, tokens accepted", "model_name"
        )
        self._queue_s = self._histogram("tandem_queue_seconds", "What requests waited at the gate", LATENCY_S)
        self._ttft_s = self._histogram(
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to the first text sent",
            LATENCY_S,
            "model_name",
            "mode",
        )
        self._tpot_s = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "Time per output token after an answer's first, as the engines gave them",
            TOKEN_S,
            "model_name",
            "mode",
        )
        self._total_s = self._histogram(
            "vllm:e2e_request_latency_seconds",
            "From a request's arrival to the last text sent",
            (*LATENCY_S, 120, 300, 600),
            "model_name",
            "mode",
        )
        self._stall_s = self._histogram(
            "tandem_stall_seconds",
            "What a request's readers waited with nothing left to read, after the first token",
            (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
            "mode",
        )
        self._read = self._counter(
            "tandem_reader_tokens", "Output tokens of requests that somebody reads along", "mode"
        )
        self._effective = self._counter(
            "tandem_effective_tokens",
            "Of tandem_reader_tokens, those that did not come long before they were needed",
            "mode",
        )
        self._replans = self._counter("tandem_replans", "Times that an answer went on elsewhere", "mode")
        self._usd = self._counter("tandem_usd", "Dollars that requests cost, joules included", "mode")
        self._joules = self._counter("tandem_device_joules", "Joules that devices spent on requests", "mode")
        self._figures = {
            name: self._counter(f"tandem_{name}", what, "reason")
            for mode in MODES.values()
            for name, what in mode.figures.counters.items()
        }

    def observe(self, seen: Observation) -> None:
        """Count a request."""
        model, mode = self._model, seen.mode
        self._requests.labels(mode, str(seen.status)).inc()
        for reason in seen.finished:
            self._finished.labels(model, reason).inc()
        self._prompt_tokens.labels(model).inc(seen.prompt_tokens)
        for origin, tokens in seen.origins.items():
            self._tokens.labels(model, origin).inc(tokens)
        self._drafted.labels(model).inc(seen.drafted)
        self._accepted.labels(model).inc(seen.accepted)
        if seen.queue_s is not None:
            self._queue_s.observe(seen.queue_s)
        if seen.ttft_s is not None:
            self._ttft_s.labels(model, mode).observe(seen.ttft_s)
        if seen.total_s is not None:
            self._total_s.labels(model, mode).observe(seen.total_s)
        for tpot_s in seen.tpot_s:
            self._tpot_s.labels(model, mode).observe(tpot_s)
        if seen.stall_s is not None:
            self._stall_s.labels(mode).observe(seen.stall_s)
            self._read.labels(mode).inc(seen.read_tokens)
            self._effective.labels(mode).inc(seen.effective_tokens)
        self._replans.labels(mode).inc(seen.replans)
        self._usd.labels(mode).inc(seen.usd)
        self._joules.labels(mode).inc(seen.joules)
        for (counter, reason), by in seen.counted.items():
            if counter in self._figures:  # the replica of the API may be newer than this router
                self._figures[counter].labels(reason).inc(by)

    def exposition(self, as_openmetrics: bool = False) -> tuple[bytes, str]:
        """Return all metrics, as OpenMetrics or in Prometheus' own text format, and the content type."""
        if as_openmetrics:
            # by default this client replaces the colon in samples' names, which is allowed there
            text = openmetrics.generate_latest(self._registry, openmetrics.ALLOWUTF8)
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, labels, registry=self._registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, what, labels, buckets=buckets, registry=self._registry)


class _Gauges(Collector):
    """Collector of present states, without series of what is gone."""

    def __init__(self, model: str, snapshot: Callable[[], Snapshot], waiting: Callable[[], int]) -> None:
        self._model, self._snapshot, self._waiting = model, snapshot, waiting

    def collect(self) -> Iterator[Metric]:
        of_replica = ("model_name", "pool", "replica")
        running = _gauge(
            "vllm:num_requests_running", "Sessions with a place in the engine's KV cache", *of_replica
        )
        waiting = _gauge("vllm:num_requests_waiting", "Sessions that wait for such a place", *of_replica)
        used = _gauge("vllm:kv_cache_usage_perc", "KV blocks in use; 1: all of them", *of_replica)
        replicas = _gauge("tandem_replicas", "Replicas that are up", "pool")
        snapshot = self._snapshot()
        for pool, up in snapshot.pools.items():
            replicas.add_metric([pool], len(up))
            for replica in up:
                labels = [self._model_name(pool, replica), pool, replica.address]
                load = replica.load
                running.add_metric(labels, max(0, replica.sessions - load.waiting))  # one may just be leaving
                waiting.add_metric(labels, load.waiting)
                if load.blocks_total:
                    used.add_metric(labels, 1 - load.blocks_free / load.blocks_total)
        devices = _gauge(
            "tandem_devices", "Devices that are registered, or awaited: should be and are not", "state"
        )
        devices.add_metric(["registered"], len(snapshot.devices))
        devices.add_metric(["awaited"], len(snapshot.awaited))
        gate = _gauge("tandem_gate_waiting", "Requests that wait at the gate, as all verifiers are full")
        gate.add_metric([], self._waiting())
        return iter((running, waiting, used, replicas, devices, gate))

    def _model_name(self, pool: str, replica: EndpointInfo) -> str:
        """Clients know the verifiers' model by another name than its own."""
        return self._model if pool == VERIFIER else replica.model


def _gauge(name: str, what: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, what, labels=labels)
