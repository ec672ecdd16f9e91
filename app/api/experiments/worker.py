"""Simulates an experiment in a process of its own, with limits: its order comes on stdin, events go to stdout.

python -m tandem.app.api.experiments.worker
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

CPU_S = 90
"""Most seconds of processor time."""
MEMORY_BYTES = 3 * 2**30
"""Most address space."""
NICENESS = 10
PROGRESS_S = 0.1
"""Shortest interval between two words of progress."""
QUANTILES = 40
"""Steps of a distribution that is told."""
_TOLD = ("requests", "failed", "requests_per_s", "tokens_per_s", "usd", "device_joules", "reading")


def run(config: Mapping[str, Any], fixed: Sequence[str], vary: Sequence[str]) -> None:
    """Simulate every combination, one after another, and tell how it goes; what cannot be simulated is told as
    "refused"."""
    from tandem.simulator.runs.run import simulate
    from tandem.simulator.runs.sweep import grid

    try:
        variants = grid(config, vary, "experiment", fixed)
        tell(type="begun", total=sum(each.config.workload.count for each in variants), points=len(variants))
        progress = Progress()
        for variant in variants:
            tell(type="point", settings=variant.settings, **figures(simulate(variant.config, progress)))
        tell(type="done")
    except ValueError as error:
        tell(type="refused", message=str(error))
    except MemoryError:
        tell(type="refused", message=f"it needs more than {MEMORY_BYTES // 2**30} GiB of memory")


class Progress:
    """Tells how many requests are over, not too often."""

    def __init__(self) -> None:
        self._done, self._told_s = 0, 0.0

    def __call__(self, more: int) -> None:
        self._done += more
        if (now_s := time.monotonic()) - self._told_s > PROGRESS_S:
            self._told_s = now_s
            tell(type="progress", done=self._done)


def figures(result: Any) -> dict[str, Any]:
    """Return a simulation's means and percentiles, and the distributions of its times, in seconds."""
    import numpy as np

    summary = result.summary()
    begun = [answer for answer in result.answers if answer.tokens]
    times = {
        "ttft_s": [answer.ttft_s for answer in begun],
        "tpot_s": [answer.tpot_s for answer in begun if answer.tokens > 1],
        "e2e_s": [answer.e2e_s for answer in begun],
    }
    steps = np.linspace(0, 1, QUANTILES + 1)
    told: dict[str, Any] = {name: summary[name] for name in _TOLD}
    told |= {name: summary[name] for name in times}
    curves = {name: np.quantile(each, steps).tolist() if each else [] for name, each in times.items()}
    return {"summary": told, "curves": curves}


def tell(**event: Any) -> None:
    """Write an event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Take the order, and carry it out within the limits."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    run(**json.loads(sys.stdin.readline()))


if __name__ == "__main__":
    main()
