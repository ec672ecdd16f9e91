"""The benchmarks by name; nothing here imports one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent


class Benchmark(NamedTuple):
    """One benchmark.

    module: its path below `benchmarks`, dotted.
    minutes: that it takes with its defaults on two cores, about.
    """

    module: str
    minutes: float

    @property
    def line(self) -> str:
        """Return the first line of its docstring."""
        source = (FOLDER / Path(*self.module.split("."))).with_suffix(".py").read_text()
        return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]


BENCHMARKS = {
    "awc": Benchmark("dsd.awc", 25),
    "dsd_table2": Benchmark("dsd.table2", 15),
    "speculation": Benchmark("dsd.speculation", 15),
    "window_live": Benchmark("dsd.window_live", 8),
    "windows": Benchmark("dsd.shipped", 3),
    "disco": Benchmark("disco.evaluation", 12),
    "migration_quality": Benchmark("disco.migration_quality", 5),
    "race_live": Benchmark("disco.race_live", 20),
    "hat": Benchmark("hat.evaluation", 8),
    "hat_chunks": Benchmark("hat.chunks", 5),
    "hat_leakage": Benchmark("hat.leakage", 4),
    "hat_bottleneck": Benchmark("hat.bottleneck", 6),
    "hat_wire": Benchmark("hat.wire", 2),
    "privacy": Benchmark("hat.privacy", 0.2),
    "pice_bound": Benchmark("pice.bound", 6),
    "pice_live": Benchmark("pice.live", 13),
    "pice_quality": Benchmark("pice.quality", 6),
    "pice_suitability": Benchmark("pice.decision", 0.1),
    "pice_table3": Benchmark("pice.table3", 15),
    "tokenflow": Benchmark("tokenflow.live", 8),
    "tokenflow_frontier": Benchmark("tokenflow.frontier", 45),
    "tokenflow_sim": Benchmark("tokenflow.simulated", 10),
    "tokenflow_vllm": Benchmark("tokenflow.offloading", 5),
    "calibration": Benchmark("calibration.compare", 20),
    "hardware": Benchmark("calibration.hardware", 0.1),
    "auto": Benchmark("choice.evaluation", 4),
    "auto_live": Benchmark("choice.live", 10),
    "autoscaling": Benchmark("autoscaling.frontier", 10),
    "autoscaling_live": Benchmark("autoscaling.live", 8),
    "real": Benchmark("real.live", 55),
    "real_gpu": Benchmark("real.gpu", 6),
    "real_pairs": Benchmark("real.pairs", 4),
    "real_profile": Benchmark("real.profile", 4),
    "real_record": Benchmark("real.recording", 12),
    "real_sketch": Benchmark("real.sketch", 12),
    "chaos": Benchmark("robustness.chaos", 6),
    "chaos_live": Benchmark("robustness.chaos_live", 10),
    "connections": Benchmark("robustness.connections", 6),
    "bills": Benchmark("robustness.bills", 8),
    "redeploy": Benchmark("robustness.redeploy", 4),
    "soak": Benchmark("robustness.soak", 15),
    "engine": Benchmark("speed.engine", 2),
    "gateway": Benchmark("speed.gateway", 8),
    "llamacpp": Benchmark("speed.llamacpp", 25),
    "mask": Benchmark("speed.mask", 0.5),
    "policies": Benchmark("speed.policies", 0.5),
    "simulator": Benchmark("speed.simulator", 12),
    "tracing": Benchmark("speed.tracing", 1),
    "versus_vllm": Benchmark("speed.versus_vllm", 20),
    "wire": Benchmark("speed.wire", 1),
}
"""Benchmarks, by the names that `tandem benchmark` takes, folder by folder."""
