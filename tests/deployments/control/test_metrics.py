"""The router's counters, and input that must not break them. Their exposition: tests/app/api/test_operations.py."""

from __future__ import annotations

from tandem.deployments.control.metrics import Metrics, Observation
from tandem.deployments.routing.directory import Snapshot


def shown(metrics: Metrics, as_openmetrics: bool = False) -> str:
    text, _ = metrics.exposition(as_openmetrics)
    return text.decode()


def test_requests_add_up_whoever_tells_of_them() -> None:
    metrics = Metrics("tandem", Snapshot, lambda: 0)
    for tokens in (3, 4):
        metrics.observe(Observation("race", 200, origins={"device": tokens}, usd=0.5, replans=1, joules=2.0))
    text = shown(metrics)
    assert 'tandem_requests_total{mode="race",status="200"} 2.0' in text
    assert 'vllm:generation_tokens_total{model_name="tandem",origin="device"} 7.0' in text
    assert 'tandem_usd_total{mode="race"} 1.0' in text
    assert 'tandem_device_joules_total{mode="race"} 4.0' in text
    assert 'tandem_replans_total{mode="race"} 2.0' in text


def test_what_only_a_newer_replica_of_the_api_counts_is_left_out() -> None:
    metrics = Metrics("tandem", Snapshot, lambda: 0)
    metrics.observe(Observation("cloud", 200, counted={("novelties", "all"): 1, ("migrations", "cost"): 1}))
    assert "novelties" not in shown(metrics)
    assert 'tandem_migrations_total{reason="cost"} 1.0' in shown(metrics)


def test_nobody_is_told_when_a_series_was_created() -> None:
    metrics = Metrics("tandem", Snapshot, lambda: 0)
    metrics.observe(Observation("cloud", 200, ttft_s=0.1))
    for as_openmetrics in (False, True):
        assert "vllm:time_to_first_token_seconds_count" in shown(metrics, as_openmetrics)
        assert "_created" not in shown(metrics, as_openmetrics)
