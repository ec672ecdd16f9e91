"""The router's counters, and input that must not break them. Their exposition: tests/app/api/test_operations.py."""

from __future__ import annotations

from tandem.deployments.control.metrics import Metrics
from tandem.deployments.control.observation import Observation
from tandem.deployments.request.assignment import EndpointInfo, Load
from tandem.deployments.request.forecast import Compared
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.base import EngineStats
from tandem.engine.distribution import REQUEST_S, TOKEN_S, Distribution


def shown(metrics: Metrics, as_openmetrics: bool = False) -> str:
    text, _ = metrics.exposition(as_openmetrics)
    return text.decode()


def test_requests_add_up_whoever_tells_of_them() -> None:
    metrics = Metrics({"tandem": Snapshot})
    for tokens in (3, 4):
        metrics.observe(
            Observation(
                "race", 200, origins={"device": tokens}, usd=0.5, replans=1, joules=2.0, changes=("cloud",)
            )
        )
    text = shown(metrics)
    assert 'tandem_requests_total{mode="race",status="200"} 2.0' in text
    assert 'vllm:generation_tokens_total{model_name="tandem",origin="device"} 7.0' in text
    assert 'tandem_usd_total{mode="race"} 1.0' in text
    assert 'tandem_device_joules_total{mode="race"} 4.0' in text
    assert 'tandem_replans_total{mode="race"} 2.0' in text
    assert 'tandem_mode_changes_total{mode="cloud"} 2.0' in text


def test_an_adapters_requests_count_under_its_name_and_unknown_ones_under_the_first_models() -> None:
    metrics = Metrics({"tandem": Snapshot}, adapters=["poems"])
    for model, tokens in (("poems", 3), ("tandem", 4), ("", 5), ("invented", 6)):
        metrics.observe(Observation("cloud", 200, origins={"cloud": tokens}, model=model))
    text = shown(metrics)
    for model, total in (("poems", 3), ("tandem", 15)):
        assert f'vllm:generation_tokens_total{{model_name="{model}",origin="cloud"}} {total}.0' in text
    assert "invented" not in text


def test_what_only_a_newer_replica_of_the_api_counts_is_left_out() -> None:
    metrics = Metrics({"tandem": Snapshot})
    metrics.observe(Observation("cloud", 200, counted={("novelties", "all"): 1, ("migrations", "cost"): 1}))
    assert "novelties" not in shown(metrics)
    assert 'tandem_migrations_total{reason="cost"} 1.0' in shown(metrics)


def test_nobody_is_told_when_a_series_was_created() -> None:
    metrics = Metrics({"tandem": Snapshot})
    metrics.observe(Observation("cloud", 200, ttft_s=0.1))
    for as_openmetrics in (False, True):
        assert "vllm:time_to_first_token_seconds_count" in shown(metrics, as_openmetrics)
        assert "_created" not in shown(metrics, as_openmetrics)


def test_sizes_and_times_of_answers() -> None:
    gaps_s = Distribution.over(TOKEN_S)
    for gap_s in (0.0005, 0.03):
        gaps_s.add(gap_s, TOKEN_S)
    seen = Observation(
        "cloud", 200, 100, answers=2, most_tokens=64, answer_tokens=(3, 40), decode_s=(0.5, 4), gaps_s=gaps_s
    )
    metrics = Metrics({"tandem": Snapshot})
    for _ in range(2):
        metrics.observe(seen)
    metrics.observe(
        Observation("cloud", 200, gaps_s=Distribution([1, 2, 3]))
    )  # of a newer replica of the API
    text = shown(metrics)
    labels = 'mode="cloud",model_name="tandem"'
    assert f"vllm:inter_token_latency_seconds_count{{{labels}}} 4.0" in text
    assert f'vllm:inter_token_latency_seconds_bucket{{le="0.0005",{labels}}} 2.0' in text
    for name, total in (
        ("prompt_tokens", 200),
        ("generation_tokens", 86),
        ("max_num_generation_tokens", 80),
        ("params_max_tokens", 128),
        ("params_n", 4),
        ("decode_time_seconds", 9),
    ):
        assert f"vllm:request_{name}_sum{{{labels}}} {total}.0" in text


def test_an_answer_that_broke_off_has_no_size() -> None:
    metrics = Metrics({"tandem": Snapshot})
    metrics.observe(Observation("cloud", 500, 100, origins={"cloud": 3}, answers=1, most_tokens=64))
    assert "vllm:request_prompt_tokens_count" not in shown(metrics)


def test_keys_and_devices_are_named_up_to_a_number() -> None:
    metrics = Metrics({"tandem": Snapshot})
    for i in range(10_000):
        metrics.observe(
            Observation("race", 200, 7, {"cloud": 2}, key=f"key-{i}", device=f"d{i}", device_tokens_out=3)
        )
    metrics.observe(Observation("cloud", 200, 7, {"cloud": 2}))
    text = shown(metrics)
    assert 'tandem_key_requests_total{key="key-0"} 1.0' in text
    assert 'tandem_key_prompt_tokens_total{key="key-0"} 7.0' in text
    assert 'tandem_key_output_tokens_total{key="others"} 19600.0' in text
    assert 'tandem_device_tokens_out_total{device="others"} 29400.0' in text
    assert text.count("tandem_key_requests_total{") == text.count("tandem_device_requests_total{") == 201


def test_a_service_that_serves_nothing_is_shown() -> None:
    refusals = {"a:1": "no credit", "b:1": "", "c:1": None}
    up = tuple(EndpointInfo("verifier", at, "verifier", refusal=why) for at, why in refusals.items())
    text = shown(Metrics({"tandem": lambda: Snapshot(1, {"verifier": up})}))
    for at, value in (("a:1", "1.0"), ("b:1", "0.0")):
        labels = f'model_name="tandem",pool="verifier",replica="{at}"'
        assert f"tandem_service_refused{{{labels}}} {value}" in text
    assert text.count("tandem_service_refused{") == 2


def test_of_a_service_nothing_is_shown_that_nobody_knows() -> None:
    stats = EngineStats(blocks_free=2, blocks_total=8, refusal="")
    stats.served.queue_s.add(0.25, REQUEST_S)
    replica = EndpointInfo("verifier 1", "v:1", "verifier", load=Load.of(stats, places=8), refusal="")
    text = shown(Metrics({"tandem": lambda: Snapshot(1, {"verifier": (replica,)})}))
    seen = {line.split("{")[0] for line in text.splitlines() if 'replica="v:1"' in line}
    told = ("request_queue_time", "request_prefill_time", "request_inference_time")
    times = {f"vllm:{name}_seconds_{part}" for name in told for part in ("bucket", "count", "sum")}
    waiting = {"vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"}
    assert seen == times | waiting | {"vllm:num_requests_running", "tandem_service_refused"}


def test_what_engines_tell_is_shown_by_replica() -> None:
    stats = EngineStats(
        waiting=1,
        blocks_free=2,
        blocks_total=8,
        block_size=16,
        preempted=3,
        tokens_queried=50,
        tokens_from_prefix=20,
    )
    stats.served.queue_s.add(0.25, REQUEST_S)
    replica = EndpointInfo("verifier 1", "v:1", "verifier", sessions=4, load=Load.of(stats, places=8))
    text = shown(Metrics({"tandem": lambda: Snapshot(1, {"verifier": (replica,)})}))
    labels = 'model_name="tandem",pool="verifier",replica="v:1"'
    for name, value in (
        ("num_requests_running", 3),
        ("num_preemptions_total", 3),
        ("prefix_cache_queries_total", 50),
        ("prefix_cache_hits_total", 20),
        ("request_queue_time_seconds_count", 1),
        ("request_queue_time_seconds_sum", 0.25),
        ("iteration_tokens_total_count", 0),
    ):
        assert f"vllm:{name}{{{labels}}} {float(value)}" in text
    reasons = 'model_name="tandem",pool="verifier",reason="capacity",replica="v:1"'
    assert f"vllm:num_requests_waiting_by_reason{{{reasons}}} 1.0" in text
    info = 'block_size="16",model_name="tandem",num_gpu_blocks="8",pool="verifier",replica="v:1"'
    assert f"vllm:cache_config_info{{{info}}} 1.0" in text


def test_forecasts_are_counted_beside_what_came() -> None:
    metrics = Metrics({"tandem": Snapshot})
    compared = Compared("ttft_s", 1.3, True), Compared("tpot_s", 3.0, False)
    metrics.observe(Observation("race", 200, forecasts=compared))
    told = shown(metrics)
    assert 'tandem_forecast_ratio_bucket{figure="ttft_s",le="1.5",mode="race"} 1.0' in told
    assert 'tandem_forecast_ratio_count{figure="tpot_s",mode="race"} 1.0' in told
    assert 'tandem_forecasts_total{figure="ttft_s",held="yes",mode="race"} 1.0' in told
    assert 'tandem_forecasts_total{figure="tpot_s",held="no",mode="race"} 1.0' in told
