"""Metrics for operators, in Prometheus' formats: one registry for all replicas of the API.

A metric has vLLM's name where it means the same, so that dashboards and alerts made for vLLM work here; the others
begin with "tandem_". No label takes a value that a client can invent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from tandem.deployments.control.gauges import Gauges
from tandem.deployments.control.observation import Observation
from tandem.deployments.modes import MODES
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.distribution import LATENCY_S, REQUEST_S, TOKEN_S, TOKENS, Distribution

MOST_NAMES = 200
"""Keys, and devices, that labels name; the others are OTHERS together until the router restarts."""
OTHERS = "others"

prometheus_client.disable_created_metrics()  # they double the output, and Prometheus has no use for them


class Metrics:
    """Counts requests, and shows that together with how things stand.

    models: says what is up of each model, by the name that clients ask for, the first one's requests also by none.
    waiting: says how many requests wait at the gate for a model.
    adapters: names of the models' adapters, whose requests count by these.
    """

    def __init__(
        self,
        models: Mapping[str, Callable[[], Snapshot]],
        waiting: Callable[[str], int] = lambda _: 0,
        adapters: Iterable[str] = (),
    ) -> None:
        self._models = (*models, *adapters)
        self._registry = CollectorRegistry()
        self._registry.register(Gauges(models, waiting))
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
        self._rounds = self._counter(
            "vllm:spec_decode_num_drafts", "Speculative rounds with drafts", "model_name"
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
            REQUEST_S,
            "model_name",
            "mode",
        )
        self._decode_s = self._histogram(
            "vllm:request_decode_time_seconds",
            "From an answer's first token to its last",
            REQUEST_S,
            "model_name",
            "mode",
        )
        self._request_tokens = {
            name: self._histogram(f"vllm:request_{name}", what, TOKENS, "model_name", "mode")
            for name, what in (
                ("prompt_tokens", "Prompt tokens of a request"),
                ("generation_tokens", "Output tokens of an answer"),
                ("max_num_generation_tokens", "Output tokens of a request's longest answer"),
                ("params_max_tokens", "Output tokens that a request's answers might have"),
            )
        }
        self._answers = self._histogram(
            "vllm:request_params_n",
            "Answers that a request asked for",
            (1, 2, 5, 10, 20),
            "model_name",
            "mode",
        )
        self._gaps_s = _Gaps(
            "vllm:inter_token_latency_seconds",
            "Between an answer's tokens, or groups of them that came together",
        )
        self._registry.register(self._gaps_s)
        self._stall_s = self._histogram(
            "tandem_stall_seconds",
            "What a request's readers waited with nothing left to read, after the first token",
            (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
            "mode",
        )
        self._forecasts = self._histogram(
            "tandem_forecast_ratio",
            "An answer's times over what was expected of them, where modes are compared",
            (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4, 10),
            "mode",
            "figure",
        )
        self._held = self._counter(
            "tandem_forecasts", "Such times, by whether their 80 % intervals held", "mode", "figure", "held"
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
        self._changes = self._counter(
            "tandem_mode_changes",
            "Times that an answer went on in a mode that was better for the rest",
            "mode",
        )
        self._usd = self._counter("tandem_usd", "Dollars that requests cost, joules included", "mode")
        self._joules = self._counter("tandem_device_joules", "Joules that devices spent on requests", "mode")
        self._key_name, self._device_name = Names(MOST_NAMES), Names(MOST_NAMES)
        self._by_key = {
            what: self._counter(f"tandem_key_{what}", f"{what.capitalize()} by API key", "key")
            for what in ("requests", "prompt_tokens", "output_tokens", "usd")
        }
        self._by_device = {
            what: self._counter(
                f"tandem_device_{what}", f"{what.capitalize()} by the device that took part last", "device"
            )
            for what in ("requests", "tokens_in", "tokens_out")
        }
        self._figures = {
            name: self._counter(f"tandem_{name}", what, "reason")
            for mode in MODES.values()
            for name, what in mode.figures.counters.items()
        }

    def observe(self, seen: Observation) -> None:
        """Count a request."""
        model, mode = self._model(seen), seen.mode
        self._requests.labels(mode, str(seen.status)).inc()
        for reason in seen.finished:
            self._finished.labels(model, reason).inc()
        self._prompt_tokens.labels(model).inc(seen.prompt_tokens)
        for origin, tokens in seen.origins.items():
            self._tokens.labels(model, origin).inc(tokens)
        self._rounds.labels(model).inc(seen.rounds)
        self._drafted.labels(model).inc(seen.drafted)
        self._accepted.labels(model).inc(seen.accepted)
        if seen.queue_s is not None:
            self._queue_s.observe(seen.queue_s)
        self._observe_sizes(seen)
        self._observe_names(seen)
        if seen.ttft_s is not None:
            self._ttft_s.labels(model, mode).observe(seen.ttft_s)
        if seen.total_s is not None:
            self._total_s.labels(model, mode).observe(seen.total_s)
        for tpot_s in seen.tpot_s:
            self._tpot_s.labels(model, mode).observe(tpot_s)
        for figure, ratio, held in seen.forecasts:
            self._forecasts.labels(mode, figure).observe(ratio)
            self._held.labels(mode, figure, "yes" if held else "no").inc()
        if seen.stall_s is not None:
            self._stall_s.labels(mode).observe(seen.stall_s)
            self._read.labels(mode).inc(seen.read_tokens)
            self._effective.labels(mode).inc(seen.effective_tokens)
        self._replans.labels(mode).inc(seen.replans)
        for better in seen.changes:
            self._changes.labels(better).inc()
        self._usd.labels(mode).inc(seen.usd)
        self._joules.labels(mode).inc(seen.joules)
        for (counter, reason), by in seen.counted.items():
            if counter in self._figures:  # the replica of the API may be newer than this router
                self._figures[counter].labels(reason).inc(by)

    def _model(self, seen: Observation) -> str:
        """Return the label of a request's model; a replica of the API may know one that is not here."""
        return seen.model if seen.model in self._models else self._models[0]

    def _observe_sizes(self, seen: Observation) -> None:
        """Count tokens and times of a request and of its answers."""
        labels = self._model(seen), seen.mode
        for tokens in seen.answer_tokens:
            self._request_tokens["generation_tokens"].labels(*labels).observe(tokens)
        if seen.answer_tokens:
            self._request_tokens["prompt_tokens"].labels(*labels).observe(seen.prompt_tokens)
            self._request_tokens["max_num_generation_tokens"].labels(*labels).observe(max(seen.answer_tokens))
            self._request_tokens["params_max_tokens"].labels(*labels).observe(seen.most_tokens)
            self._answers.labels(*labels).observe(seen.answers)
        for decode_s in seen.decode_s:
            self._decode_s.labels(*labels).observe(decode_s)
        if seen.gaps_s is not None:
            self._gaps_s.merge(labels, seen.gaps_s)

    def _observe_names(self, seen: Observation) -> None:
        """Count a request for its key and its device."""
        if seen.key:
            key = self._key_name.of(seen.key)
            self._by_key["requests"].labels(key).inc()
            self._by_key["prompt_tokens"].labels(key).inc(seen.prompt_tokens)
            self._by_key["output_tokens"].labels(key).inc(sum(seen.origins.values()))
            self._by_key["usd"].labels(key).inc(seen.usd)
        if seen.device:
            device = self._device_name.of(seen.device)
            self._by_device["requests"].labels(device).inc()
            self._by_device["tokens_in"].labels(device).inc(seen.device_tokens_in)
            self._by_device["tokens_out"].labels(device).inc(seen.device_tokens_out)

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


class Names:
    """Values of a label: the first `most` by their names, all others by OTHERS."""

    def __init__(self, most: int) -> None:
        self._most, self._known = most, set[str]()

    def of(self, name: str) -> str:
        """Return the label's value for a name."""
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHERS
            self._known.add(name)
        return name


class _Gaps(Collector):
    """Collector of times between tokens by model and mode, which the API counts: one by one they would be too many to
    tell."""

    def __init__(self, name: str, what: str) -> None:
        self._name, self._what = name, what
        self._seen: dict[tuple[str, str], Distribution] = {}

    def merge(self, labels: tuple[str, str], gaps_s: Distribution) -> None:
        """Count those of a request. labels: model and mode."""
        if len(gaps_s.counts) == len(TOKEN_S) + 1:  # the replica of the API may be newer than this router
            self._seen.setdefault(labels, Distribution.over(TOKEN_S)).merge(gaps_s)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._what, labels=("model_name", "mode"))
        for labels, seen in self._seen.items():
            family.add_metric(labels, seen.cumulative(TOKEN_S), seen.total)
        return [family]
