"""The benchmark of TokenFlow on vLLM with host memory, on a small burst."""

from __future__ import annotations

import json
import warnings

import pytest

from tandem.benchmarks.tokenflow import offloading, simulated
from tandem.benchmarks.tokenflow.simulated import Setup
from tandem.engine import vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small setup, in this process."""
    vllm.set_environment()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        import tandem.simulator.engines.vllm  # noqa: F401
    setup = Setup("small", "RTX4090", "Llama-3.1-8B", 64, 128, burst=24, count=24, kv_tokens=1600)
    monkeypatch.setattr(offloading, "SETUPS", (setup,))
    monkeypatch.setattr(simulated, "ray_map", lambda function, jobs, chunk: map(function, jobs))


def test_it_says_what_each_engine_gave(capsys: pytest.CaptureFixture[str]) -> None:
    offloading.main(["--seeds", "1"])
    said = capsys.readouterr().out
    assert "buffer_aware, host memory" in said
    figures = json.loads(said.splitlines()[-1])["figures"]
    assert figures["stall_s"] < figures["fcfs_stall_s"]
    assert figures["throughput_over_fcfs"] > figures["without_throughput_over_fcfs"]
    assert figures["effective_over_fcfs"] > 1
