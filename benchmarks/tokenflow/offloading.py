"""TokenFlow on vLLM, with and without host memory, simulated: vLLM's own scheduler and offloading in virtual time.

    tandem benchmark tokenflow_vllm [--seeds 3] [--only NAME]

The bursts of `tokenflow_sim` on an RTX 4090, on vLLM as it is (first come, first served) and with `buffer_aware`, each
without host memory and with 64 GiB at 20 GB/s (`kv_offloading_size`). Both know as much, get the same requests, and
prefill in vLLM's default chunk; other chunks are not tried for either.

p99_over_fcfs, throughput_over_fcfs, effective_over_fcfs: of `buffer_aware` with host memory over vLLM's own order with
host memory, in the setup where it is the worst; stall_s, fcfs_stall_s: mean stalls there where each is the worst.
without_*: the same without host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.tokenflow.simulated import (
    BLOCK,
    HEADER,
    SETUPS,
    Setup,
    config_of,
    requests_of,
    row,
    simulate_all,
)
from tandem.policies.reader.quality import Quality, ReaderStream, assess
from tandem.simulator.runs.run import simulate

HOST = {"options": {"kv_offloading_size": 64.0}, "copy_mb_per_s": 20_000}
ENGINE: dict[str, Any] = {
    "kind": "vllm",
    "block_size": BLOCK,
    "max_sessions": 256,
    "token_budget": 2048,
    "window": 0,
}
KINDS: dict[tuple[str, bool], dict[str, Any]] = {
    (name, host): {**ENGINE, "scheduling": scheduling, **(HOST if host else {})}
    for name, scheduling in {"vLLM": None, "buffer_aware": {"name": "buffer_aware"}}.items()
    for host in (False, True)
}
"""Engines by scheduling and whether they have host memory."""


class Job(NamedTuple):
    """One simulation. kind: of KINDS."""

    setup: Setup
    kind: tuple[str, bool]
    seed: int

    def quality(self) -> Quality:
        """Simulate it."""
        config = config_of(self.setup, self.seed, KINDS[self.kind])
        result = simulate(config, requests=requests_of(self.setup, self.seed))
        streams = (ReaderStream(one.arrival_s, one.times_s or (), one.rate) for one in result.answers)
        return assess(list(streams))


Found = dict[tuple[Setup, tuple[str, bool]], list[Quality]]
"""Qualities by setup and kind, one a seed."""


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("tokenflow_vllm", __doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each setup (default 3)")
    parser.add_argument("--only", default="", help="setups whose name has this in it")
    options = parser.parse_args(arguments)
    setups = [s for s in SETUPS if s.is_burst and s.hardware == "RTX4090" and options.only in s.name]
    jobs = [Job(s, kind, seed) for s in setups for kind in KINDS for seed in range(options.seeds)]
    found: Found = {}
    for job, quality in simulate_all(jobs, "simulations").items():
        found.setdefault((job.setup, job.kind), []).append(quality)
    for setup in setups:
        report.table(
            f"{setup.name} on vLLM (simulated)",
            ["", *HEADER],
            [
                [f"{name}{', host memory' if host else ''}", *row(found[setup, (name, host)])]
                for name, host in KINDS
            ],
        )
    report.figures("tokenflow_vllm", _figures(found, setups, True) | _figures(found, setups, False))


def _figures(found: Found, setups: Sequence[Setup], host: bool) -> dict[str, float]:
    def of(setup: Setup, name: str, figure: str) -> float:
        return mean(getattr(quality, figure) for quality in found[setup, (name, host)])

    def over(figure: str) -> list[float]:
        return [of(s, "buffer_aware", figure) / of(s, "vLLM", figure) for s in setups]

    figures = {
        "p99_over_fcfs": max(over("ttft_p99_s")),
        "throughput_over_fcfs": min(over("throughput")),
        "effective_over_fcfs": min(over("effective_throughput")),
        "stall_s": max(of(s, "buffer_aware", "stall_mean_s") for s in setups),
        "fcfs_stall_s": max(of(s, "vLLM", "stall_mean_s") for s in setups),
    }
    return {("" if host else "without_") + name: round(value, 3) for name, value in figures.items()}
