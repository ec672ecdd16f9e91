from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tandem.policies.race.dispatch import Side
from tandem.policies.reader.quality import effective_tokens, stall_s
from tandem.policies.speculation.window import StaticWindow
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request
from tests.simulator.configurations import DEVICE, TARGET, config, raw

WORKLOAD = raw()["workload"]


def test_the_summary_agrees_with_the_requests() -> None:
    result = simulate(config())
    summary, frame = result.summary(), result.frame()
    assert summary["requests"] == summary["finished"] == len(frame) == 12
    assert summary["ttft_s"]["mean"] == pytest.approx(frame.ttft_s.mean())
    assert summary["tpot_s"]["p99"] == pytest.approx(frame.tpot_s.dropna().quantile(0.99))
    drafted, accepted = frame["modes.speculative.drafted"], frame["modes.speculative.accepted"]
    assert summary["modes"]["speculative"]["acceptance"] == accepted.sum() / drafted.sum()
    assert sum(summary["tokens_by_origin"].values()) == frame.output_tokens.sum()
    span_s = (frame.arrival_s + frame.e2e_s).max() - frame.arrival_s.min()
    assert summary["requests_per_s"] == pytest.approx(12 / span_s)
    assert all(0 < share <= 1 for share in summary["utilisation"])
    assert summary["network_wait_s"] > 0  # jitter, and 1 Mbit/s upwards
    assert summary["usd"] == pytest.approx(frame.usd.sum())
    assert set(frame.server) == {0, 1}
    assert list(frame.device) == [i % 5 for i in range(12)]


def test_the_json_says_what_it_is_of(tmp_path: Path) -> None:
    result = simulate(config())
    result.write(tmp_path / "r.json")
    document = msgspec.json.decode((tmp_path / "r.json").read_bytes())
    assert document["times"] == "simulated"
    assert document["config"]["name"] == "small"
    assert document["summary"] == result.summary()
    assert len(document["requests"]) == 12
    assert {pool: len(loads) for pool, loads in document["loads"].items()} == {
        pool: len(loads) for pool, loads in result.loads.items()
    }


def test_stalls_and_effective_tokens_are_those_of_the_readers() -> None:
    slow = [{**TARGET, "measured": {"base_s": 0.3}}]
    workload = {**WORKLOAD, "readers": [[0.5, 4.0], [0.5, 8.0]]}
    result = simulate(config(mode="cloud", workload=workload, targets=slow))
    frame, reading = result.frame(), result.summary()["reading"]
    for answer, stalled, effective in zip(result.answers, frame.stall_s, frame.effective_tokens, strict=True):
        assert stalled == stall_s(answer.times_s, answer.rate)
        assert effective == effective_tokens(answer.times_s, answer.rate)
    assert reading["stall_mean_s"] == pytest.approx(frame.stall_s.mean())
    assert reading["stall_max_s"] > 0.1  # 0.3 s a token, for who reads 8 in a second
    assert reading["effective_throughput"] <= reading["throughput"]
    assert simulate(config()).summary()["reading"] is None


def test_what_devices_spend_is_booked() -> None:
    devices = [{**DEVICE, "count": 5, "sessions": 4, "power_w": 4.0}]
    summary = simulate(config(mode="device", devices=devices, accounts={"exchange_rate": 0.5})).summary()
    work = [(r["prompt_tokens"], r["output_tokens"]) for r in simulate_rows("device")]
    joules = 4.0 * sum(prompt / 400 + output / 80 for prompt, output in work)
    assert summary["device_joules"] == pytest.approx(joules, rel=0.01)
    assert summary["usd"] == pytest.approx(0.5 * joules, rel=0.01)
    assert not summary["budgets"]


def simulate_rows(mode: str) -> list[dict[str, int]]:
    devices = [{**DEVICE, "count": 5, "sessions": 4}]
    rows: list[dict[str, int]] = simulate(config(mode=mode, devices=devices)).frame().to_dict("records")
    return rows


def test_budgets_are_told_by_the_side_they_bind() -> None:
    devices = [{**DEVICE, "count": 5, "power_w": 4.0}]
    result = simulate(config(mode="race", devices=devices, accounts={"budget": 0.5, "exchange_rate": 1.0}))
    (side, told), *others = result.summary()["budgets"].items()
    assert (side, others) == (Side.DEVICE, [])
    assert told["prompt_tokens"] == sum(answer.prompt_tokens for answer in result.answers)
    assert 0 < told["share"] <= 1
    assert told["share"] == told["taken_in"] / told["prompt_tokens"]


def test_what_is_larger_than_the_kv_cache_is_refused_and_counted_and_the_others_go_on() -> None:
    small = [{**TARGET, "engine": {"kv_blocks": 8}}]  # 128 tokens
    asked = [
        Request(0.0, 20, 10),
        Request(0.1, 500, 10),
        Request(0.2, 100, 10, max_tokens=100),
        Request(0.3, 100, 100),
        Request(0.4, 20, 10),
    ]
    result = simulate(config(mode="cloud", targets=small), requests=asked)
    frame, summary = result.frame(), result.summary()
    assert list(frame.failure.fillna("")) == ["", *["context_length_exceeded"] * 2, "", ""]
    assert list(frame.output_tokens) == [10, 0, 0, 28, 10]
    assert list(frame.finish.fillna("")) == ["stop", "", "", "length", "stop"]
    assert summary["finished"] == 3
    assert (summary["failed"], summary["failures"]) == (2, {"context_length_exceeded": 2})
    assert summary["cut"] == 1


def test_whoever_finds_no_room_is_counted() -> None:
    engine = {"max_sessions": 1, "max_waiting": 0}
    asked = [Request(0.0, 20, 10), Request(0.1, 20, 10)]
    result = simulate(config(mode="cloud", engine=engine, targets=[TARGET]), requests=asked)
    assert result.summary()["failures"] == {"overloaded": 1}
    assert [answer.failure for answer in result.answers] == [None, "overloaded"]


def test_a_run_in_which_nobody_got_a_token_has_a_summary() -> None:
    small = [{**TARGET, "engine": {"kv_blocks": 8}}]
    summary = simulate(config(mode="cloud", targets=small), requests=[Request(0.0, 500, 10)]).summary()
    assert (summary["failed"], summary["finished"], summary["tokens_per_s"]) == (1, 0, 0.0)
    assert summary["ttft_s"] is None
    assert summary.keys() == simulate(config()).summary().keys()


def test_rounds_of_one_token_are_the_targets_and_count_for_nobody() -> None:
    """8 tokens at a window of 4: 1, then 5, then a round of 2 with a draft of one, as its client allows no more; or 7
    of them: then the last one is the target's alone."""
    for allowed, windows in ((8, [4, 1]), (7, [4])):
        asked = [Request(0.0, 10, 30, bytes([1] * 30), max_tokens=allowed)]
        result = simulate(config(history=True), requests=asked, window=lambda: StaticWindow(4))
        (answer,), (row,) = result.answers, result.frame().to_dict("records")
        assert answer.rounds.rounds == 2
        assert answer.rounds.distributed_rounds == len(windows)
        rounds = result.summary()["modes"]["speculative"]
        assert row["modes.speculative.mean_window"] == rounds["mean_window"] == sum(windows) / len(windows)
        assert row["modes.speculative.fused_share"] == rounds["fused_share"] == 0.0
        assert [r.window for r in answer.history or () if r.distributed] == windows


def test_loads_show_the_queue() -> None:
    workload = {**WORKLOAD, "count": 60, "arrival": {"kind": "poisson", "rate_per_s": 60.0}}
    result = simulate(config(mode="cloud", workload=workload, targets=[TARGET]))
    loads = result.loads["verifier"]
    assert max(load.sessions for load in loads) > 10
    assert loads[-1].sessions < 10
    assert [load.time_s for load in loads] == sorted(load.time_s for load in loads)
