"""HAT's equation for a chunk's size beside fixed chunks that overlap, simulated: what it brings in TTFT.

    tandem benchmark hat_chunks [--seeds 2]

The setting is that of `benchmarks hat`, with half as many requests, for a cloud of 1, 4 and 8 stages, at rates that
keep it about as busy. The equation (policy `hat`) stands with its floor of 32 tokens and without one. All have P + 2
chunks under way, and the shortest remaining prompt goes first.

equation_cut_min: by how much TTFT with the equation, the better of the two, is less than with fixed chunks of 128
tokens, the default, in the cell where it is least so; medians over seeds. *_cut_mean, *_cut_max: over all cells.
equation_tbt_mean: its time between tokens beside theirs, over all cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.hat import setting
from tandem.benchmarks.hat.setting import CNNDM, DATASETS, SPECBENCH, Cell, System, measure
from tandem.simulator.runs.tasks import ray_map


def _chunks(name: str, **parameters: object) -> System:
    return System(chunking={"name": name, "parameters": parameters})


EQUATION = {"equation, 32 or more": _chunks("hat", least=32), "equation": _chunks("hat", least=1)}
FIXED = {f"fixed {size}": _chunks("fixed", size=size, overlap=True) for size in (32, 64, 128)}
SYSTEMS = EQUATION | FIXED
DEFAULT = "fixed 128"
RATES = {1: (2.0, 1.0), 4: (6.0, 4.0), 8: (9.0, 6.0)}
"""Requests/s on SpecBench and CNN/DM, by stages."""


class Run(NamedTuple):
    """One simulation."""

    dataset: str
    stages: int
    rate: float
    system: str
    seed: int


Found = Mapping[Run, Cell]


def runs(seeds: int) -> list[Run]:
    """Return all of them."""
    return [
        Run(dataset.name, stages, rate, system, seed)
        for stages, rates in RATES.items()
        for dataset, rate in zip((SPECBENCH, CNNDM), rates, strict=True)
        for system in SYSTEMS
        for seed in range(seeds)
    ]


def _simulated(item: tuple[int, Run]) -> tuple[int, Cell]:
    number, run = item
    setting.WARM_UP, setting.COUNT = 30, 60
    found = measure(DATASETS[run.dataset], SYSTEMS[run.system], run.rate, seed=run.seed, stages=run.stages)
    return number, found


def cells(found: Found) -> dict[tuple[str, int], dict[str, Cell]]:
    """Return medians over seeds, by data set and stages, and then by system."""
    grouped: dict[tuple[str, int], dict[str, list[Cell]]] = {}
    for run, cell in found.items():
        grouped.setdefault((run.dataset, run.stages), {}).setdefault(run.system, []).append(cell)
    return {
        key: {
            system: Cell(*(median(values) for values in zip(*each, strict=True)))
            for system, each in systems.items()
        }
        for key, systems in grouped.items()
    }


def best(systems: Mapping[str, Cell], among: Iterable[str]) -> Cell:
    """Return the cell with the least TTFT."""
    return min((systems[one] for one in among), key=lambda cell: cell.ttft_s)


def figures(found: Found) -> dict[str, Any]:
    """Return the figures that the module's docstring lists."""
    pairs = [(best(one, EQUATION), one[DEFAULT]) for one in cells(found).values()]
    cuts = [1 - ours.ttft_s / theirs.ttft_s for ours, theirs in pairs]
    return {
        "equation_cut_min": round(min(cuts), 4),
        "equation_cut_mean": round(fmean(cuts), 4),
        "equation_cut_max": round(max(cuts), 4),
        "equation_tbt_mean": round(fmean(ours.tbt_s / theirs.tbt_s for ours, theirs in pairs), 3),
    }


def main(arguments: Sequence[str] = ()) -> None:
    """The command."""
    parser = report.parser("hat_chunks", __doc__)
    parser.add_argument("--seeds", type=int, default=2, help="runs of each cell (default 2)")
    options = parser.parse_args(arguments)
    wanted = runs(options.seeds)
    simulated = ray_map(_simulated, list(enumerate(wanted)), chunk=1)
    numbered = dict(next(simulated) for _ in report.progress(wanted, "simulations"))
    found = {run: numbered[number] for number, run in enumerate(wanted)}
    report.table(
        f"Chunks, medians of {options.seeds} seeds (simulated)",
        ["data", "stages", "chunks", "TTFT ms", "TBT ms", "SLA", "cloud busy"],
        [
            [
                name,
                str(stages),
                system,
                f"{1e3 * cell.ttft_s:.0f}",
                f"{1e3 * cell.tbt_s:.1f}",
                f"{cell.sla:.1%}",
                f"{cell.busy:.0%}",
            ]
            for (name, stages), systems in cells(found).items()
            for system, cell in systems.items()
        ],
    )
    report.figures("hat_chunks", figures(found))


if __name__ == "__main__":
    main()
