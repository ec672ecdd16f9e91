"""Metrics of how things stand: what is up, and what the engines tell of their load, memory, sessions and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tandem.deployments.request.assignment import EndpointInfo, Load
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.distribution import FEW, REQUEST_S, TOKENS

OF_REPLICA = ("model_name", "pool", "replica")
SERVICES_TELL = ("queue_s", "prefill_s", "inference_s")
"""Distributions that are known of a service too, as this side sees it: the wait for its limits, then for its text."""
CAPACITY = "capacity"
"""Why sessions wait, in vLLM's word: all places are taken."""


class _Told(NamedTuple):
    """A distribution that engines tell of.

    name, what: of the metric.
    field: of Served.
    bounds: of the distribution.
    """

    name: str
    what: str
    field: str
    bounds: Sequence[float]


TOLD = (
    _Told("request_queue_time_seconds", "From a session's opening to its first step", "queue_s", REQUEST_S),
    _Told(
        "request_prefill_time_seconds",
        "From a session's first step to its first output token",
        "prefill_s",
        REQUEST_S,
    ),
    _Told(
        "request_inference_time_seconds",
        "From a session's first step to its output's end",
        "inference_s",
        REQUEST_S,
    ),
    _Told(
        "request_prefill_kv_computed_tokens",
        "Prompt tokens of a session that were not in the KV cache",
        "prefilled",
        TOKENS,
    ),
    _Told("request_num_preemptions", "Preemptions of a session", "preemptions", FEW),
    _Told("iteration_tokens_total", "Positions of a step", "step_tokens", TOKENS),
)


class Gauges(Collector):
    """Collector of present states, without series of what is gone."""

    def __init__(self, models: Mapping[str, Callable[[], Snapshot]], waiting: Callable[[str], int]) -> None:
        self._models, self._waiting = models, waiting

    def collect(self) -> Iterator[Metric]:
        seen = {model: snapshot() for model, snapshot in self._models.items()}
        pools = [(model, pool, up) for model, there in seen.items() for pool, up in there.pools.items()]
        replicas = _gauge("tandem_replicas", "Replicas that are up", "model_name", "pool")
        for model, pool, up in pools:
            replicas.add_metric([model, pool], len(up))
        devices = _gauge(
            "tandem_devices", "Devices that are registered, or awaited: should be and are not", "state"
        )
        devices.add_metric(["registered"], len({name for there in seen.values() for name in there.devices}))
        devices.add_metric(["awaited"], len({name for there in seen.values() for name in there.awaited}))
        gate = _gauge(
            "tandem_gate_waiting", "Requests that wait at the gate, as all verifiers are full", "model_name"
        )
        for model in seen:
            gate.add_metric([model], self._waiting(model))
        there = [
            ([_model_name(model, pool, replica), pool, replica.address], replica)
            for model, pool, up in pools
            for replica in up
        ]
        yield from (*_loads(there), *_counters(there), *_distributions(there), replicas, devices, gate)


def _model_name(model: str, pool: str, replica: EndpointInfo) -> str:
    """Return the label: clients know the verifiers' model by another name than its own."""
    return model if pool == VERIFIER else replica.model


_There = Sequence[tuple[list[str], EndpointInfo]]
"""Replicas that are up, with their labels."""


def _loads(there: _There) -> Iterator[Metric]:
    running = _gauge(
        "vllm:num_requests_running", "Sessions with a place in the engine's KV cache", *OF_REPLICA
    )
    waiting = _gauge("vllm:num_requests_waiting", "Sessions that wait for such a place", *OF_REPLICA)
    reasons = _gauge(
        "vllm:num_requests_waiting_by_reason", "The same, by what they wait for", *OF_REPLICA, "reason"
    )
    used = _gauge("vllm:kv_cache_usage_perc", "KV blocks in use; 1: all of them", *OF_REPLICA)
    refused = _gauge(
        "tandem_service_refused", "Whether the service behind a replica refuses this application", *OF_REPLICA
    )
    cache = _gauge(
        "vllm:cache_config_info", "1; size of the KV cache", *OF_REPLICA, "block_size", "num_gpu_blocks"
    )
    for labels, replica in there:
        load = replica.load
        running.add_metric(labels, max(0, replica.sessions - load.waiting))  # one may just be leaving
        waiting.add_metric(labels, load.waiting)
        reasons.add_metric([*labels, CAPACITY], load.waiting)
        if load.blocks_total and _is_ours(replica):
            used.add_metric(labels, 1 - load.blocks_free / load.blocks_total)
            cache.add_metric([*labels, f"{load.block_size}", f"{load.blocks_total}"], 1)
        if replica.refusal is not None:
            refused.add_metric(labels, bool(replica.refusal))
    return iter((running, waiting, reasons, used, cache, refused))


def _counters(there: _There) -> Iterator[Metric]:
    told: tuple[tuple[str, str, Callable[[Load], int]], ...] = (
        ("num_preemptions", "Times that sessions had to give up their place", lambda load: load.preempted),
        (
            "prefix_cache_queries",
            "Tokens of admitted sessions, which the KV cache was searched for",
            lambda load: load.tokens_queried,
        ),
        ("prefix_cache_hits", "Of these, tokens found there", lambda load: load.tokens_from_prefix),
    )
    for name, what, value in told:
        family = CounterMetricFamily(f"vllm:{name}", what, labels=OF_REPLICA)
        for labels, replica in there:
            if _is_ours(replica):
                family.add_metric(labels, value(replica.load))
        yield family


def _distributions(there: _There) -> Iterator[Metric]:
    for told in TOLD:
        family = HistogramMetricFamily(f"vllm:{told.name}", told.what, labels=OF_REPLICA)
        for labels, replica in there:
            if replica.load.served is not None and (_is_ours(replica) or told.field in SERVICES_TELL):
                seen = getattr(replica.load.served, told.field)
                family.add_metric(labels, seen.cumulative(told.bounds), seen.total)
        yield family


def _is_ours(replica: EndpointInfo) -> bool:
    """Whether its model runs here: a service tells nothing of its KV cache and steps."""
    return replica.refusal is None


def _gauge(name: str, what: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, what, labels=labels)
