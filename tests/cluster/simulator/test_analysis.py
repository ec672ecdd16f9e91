from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cluster.simulator.plot import plot
from cluster.simulator.run import simulate
from tests.cluster.simulator.configurations import config


def test_the_summary_agrees_with_the_requests() -> None:
    result = simulate(config())
    summary, frame = result.summary(), result.frame()
    assert summary["requests"] == summary["finished"] == len(frame) == 12
    assert summary["ttft_s"]["mean"] == pytest.approx(frame.ttft_s.mean())
    assert summary["tpot_s"]["p99"] == pytest.approx(frame.tpot_s.dropna().quantile(0.99))
    assert summary["acceptance"] == pytest.approx(frame.accepted.sum() / frame.drafted.sum())
    assert sum(summary["tokens_by_origin"].values()) == frame.output_tokens.sum()
    span_s = (frame.arrival_s + frame.e2e_s).max() - frame.arrival_s.min()
    assert summary["requests_per_s"] == pytest.approx(12 / span_s)
    assert all(0 < share <= 1 for share in summary["utilisation"])
    assert summary["network_wait_s"] > 0  # jitter, and 1 Mbit/s upwards


def test_the_json_says_what_it_is_of(tmp_path: Path) -> None:
    result = simulate(config())
    result.write(tmp_path / "r.json")
    document = msgspec.json.decode((tmp_path / "r.json").read_bytes())
    assert document["times"] == "simulated"
    assert document["config"]["name"] == "small"
    assert document["summary"] == result.summary()
    assert len(document["requests"]) == 12


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    plot(simulate(config()), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
