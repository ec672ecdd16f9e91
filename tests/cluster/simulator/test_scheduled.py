"""Servers whose requests are scheduled: what gives way comes back, from host memory where that is sooner."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.simulator.analysis import Result
from cluster.simulator.run import simulate
from policies.quality import Quality, Stream, assess
from tests.cluster.simulator.configurations import config


def burst(scheduling: dict[str, Any] | None, host: dict[str, Any] | None = None, **changes: Any) -> Result:
    """Twenty requests at once, of which the KV cache holds six; 25 tokens/s a request that runs, readers at 4."""
    return simulate(
        config(
            mode="cloud",
            reader="cloud",
            history=True,
            workload={
                "count": 20,
                "prompt": {"mean": 64},
                "output": {"mean": 96},
                "arrival": {"kind": "poisson", "rate_per_s": 1e6},
                "acceptance": {"kind": "alpha", "alpha": 0.0},
                "readers": [[1.0, 4.0]],
            },
            policies={"batching": {"name": "buffered"}, "scheduling": scheduling},
            targets=[
                {
                    "model": "t",
                    "measured": {"base_s": 0.03, "token_s": 0.001},
                    "kv_tokens": 1024,
                    "max_sessions": 8,
                    "host": host,
                    **changes,
                }
            ],
        )
    )


def quality(result: Result) -> Quality:
    return assess([Stream(log.arrival_s, log.times_s or (), log.rate) for log in result.logs])


FCFS, BUFFERED = {"name": "fcfs"}, {"name": "buffer_aware"}
FAST = {"tokens": 10_000, "copy_tokens_per_s": 1e6}


def test_readers_begin_earlier_and_nobody_waits_for_it() -> None:
    fcfs, ours = quality(burst(FCFS)), quality(burst(BUFFERED, FAST))
    assert ours.ttft_p99_s < 0.6 * fcfs.ttft_p99_s
    assert ours.effective_throughput > 1.5 * fcfs.effective_throughput
    assert ours.throughput > 0.9 * fcfs.throughput
    assert ours.stall_mean_s < 0.5


@pytest.mark.parametrize(
    ("host", "loads"), [(FAST, True), ({"tokens": 10_000, "copy_tokens_per_s": 10.0}, False), (None, False)]
)
def test_what_comes_back_is_loaded_where_that_is_sooner(host: dict[str, Any] | None, loads: bool) -> None:
    result = burst(BUFFERED, host)
    (server,) = result.servers
    assert server.preempted > 0
    assert (server.loaded > 0) == loads  # type: ignore[attr-defined]
    assert all(log.finished for log in result.logs)


def test_host_memory_that_is_full_takes_no_more() -> None:
    result = burst(BUFFERED, {"tokens": 70, "copy_tokens_per_s": 1e6})
    assert all(log.finished for log in result.logs)
    assert result.servers[0]._stored == 0  # type: ignore[attr-defined]


def test_without_write_through_and_overlap_it_takes_longer() -> None:
    """Over several links, since who runs when differs with every delay."""

    def span_s(**parts: bool) -> float:
        hosts = [{"tokens": 10_000, "copy_tokens_per_s": rate, **parts} for rate in (1e3, 2e3, 3e3, 6e3)]
        return sum(quality(burst(BUFFERED, host)).span_s for host in hosts)

    whole = span_s()
    assert span_s(write_through=False) > 1.05 * whole
    assert span_s(write_through=False, overlap=False) > 1.05 * whole
