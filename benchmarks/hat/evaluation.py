"""HAT's evaluation, simulated: time to first token and between tokens, four systems, ablation, load and Wi-Fi.

    tandem benchmark hat [--seeds 3]

All systems are policies of one live mode, `split`, in virtual time (simulated); none has code of its own. U-shape sends
the prompt in one piece and drafts nothing; U-Sarathi cuts it into fixed chunks, at the device (no chunk leaves before
the one ahead is answered) or at the server; U-Medusa drafts with heads, all tokens of a draft in one pass. Each has the
settings with the least mean time of a whole answer on another seed than those that are judged.

The middle sends back what the device has use for: a row for each token to judge. In the paper it sends back all of a
prompt, which is most of what its baselines lose in TTFT; "published" is that reading, for all systems.

The paper's claim (TTFT −41 … −54 %, TBT −41 … −77 %) is that of CNN/DM at 4 requests/s; so are these figures:

ttft_cut_min, tbt_cut_min: by how much HAT's is less than the best baseline's, be that one with the settings chosen here
or with the paper's (chunks of 128, drafts of 8); *_published: in that reading, all with the paper's; *_specbench: with
SpecBench at 6 requests/s; *_wifi: the same on measured Wi-Fi. Medians over seeds, *_range their range.
ttft_cut_coded_min: the same with HAT's hidden states in `int6`, which no baseline of the paper has;
ttft_cut_equal_bytes_min: with those of HAT and of the baselines in it, each with settings chosen with it.
ablation_in_order: whether the rows of Table V have the paper's order in TBT, and chunked ones less TTFT than others,
for both data sets, with HAT's chosen settings; ablation_pairs: share of the pairs of rows that have.
accepted_length: tokens of a round with η = 0.6, one device, as in Table IV. It is what the acceptance was set by.
speedup, speedup_medusa: times between tokens of U-shape over those of HAT and of U-Medusa there, SpecBench; *_cnndm.
tbt_growth: of HAT's TBT from 4 to 9 requests/s on SpecBench.
prefill_sla: share of HAT's requests with a TTFT of 350 ms or less per 128 tokens of prompt (SpecBench, 6 requests/s).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.hat import setting
from tandem.benchmarks.hat.setting import (
    CNNDM,
    DATASETS,
    NONE,
    SPECBENCH,
    WHOLE,
    Cell,
    Choice,
    Dataset,
    System,
    measure,
)
from tandem.benchmarks.paths import DATA
from tandem.engine.split.hidden_states import COMMON, Kind
from tandem.simulator.runs.tasks import ray_map

_SOURCES = (setting.__doc__ or "").partition("\n\n")[2]
CHOOSING = 1000  # the seed that settings are chosen on
HAT, U_SHAPE, U_SARATHI, U_MEDUSA = "HAT", "U-shape", "U-Sarathi", "U-Medusa"
BASELINES = (U_SHAPE, U_SARATHI, U_MEDUSA)
RATES = {SPECBENCH.name: (4.0, 6.0, 9.0), CNNDM.name: (4.0,)}
CELLS = ((SPECBENCH, 6.0), (CNNDM, 4.0))
CODED: Kind = "int6"
TREE = 8  # tokens that the paper's U-Medusa verifies


EQUATION: Choice = {"name": "hat"}
FIXED: Choice = {"name": "fixed"}


def _plain(**changes: object) -> System:
    return System(**({"drafting": NONE, "parallel": NONE, "drafter": "none"} | changes))  # type: ignore[arg-type]


def _hat(drafting: str = "threshold", k: int = 4, chunking: Choice = EQUATION, **parameters: float) -> System:
    return System(
        chunking=chunking,
        drafting={"name": drafting, "parameters": parameters},
        parallel={"name": "hat", "parameters": {"k": k}},
    )


def _sarathi(size: int) -> System:
    """Chunks that do not overlap."""
    return _plain(chunking={"name": "fixed", "parameters": {"size": size, "overlap": False}})


def _medusa(window: int) -> System:
    drafting = {"name": "threshold", "parameters": {"eta": 0.0, "most": window}}
    return System(WHOLE, drafting, NONE, "heads")


PAPERS = _hat(eta=0.6)
PUBLISHED = {
    HAT: PAPERS,
    U_SHAPE: _plain(chunking=WHOLE),
    U_SARATHI: _sarathi(128),
    U_MEDUSA: _medusa(TREE),
}
"""The systems with the paper's settings."""
CANDIDATES: dict[str, tuple[System, ...]] = {
    HAT: (
        *(_hat(k=k, chunking=one, eta=0.6) for k in (4, 8) for one in (EQUATION, FIXED)),
        *(_hat("expected_gain", k=k) for k in (4, 8)),
    ),
    U_SHAPE: (_plain(chunking=WHOLE),),
    U_SARATHI: (
        *(_sarathi(size) for size in (64, 128, 256, 512)),
        *(_plain(chunking=WHOLE, server_chunk=size) for size in (64, 128, 256, 512)),
    ),
    U_MEDUSA: tuple(_medusa(window) for window in (2, 3, 4, TREE)),
}


def ablated(full: System) -> dict[str, System]:
    """HAT with some of its parts only: SD, speculative decoding; PC, prompt chunking; PD, parallel drafting, which
    needs drafts. full: with all."""
    return {
        "none": _plain(chunking=WHOLE),
        "PC": _plain(chunking=full.chunking),
        "SD": System(WHOLE, full.drafting, NONE),
        "SD PD": System(WHOLE, full.drafting, full.parallel),
        "SD PC": System(full.chunking, full.drafting, NONE),
        "SD PC PD": full,
    }


TABLE_IV = {  # accepted tokens a round, and speed-up of decoding over U-shape
    SPECBENCH.name: {HAT: (2.06, 1.65), U_MEDUSA: (1.89, 1.41)},
    CNNDM.name: {HAT: (1.98, 1.60), U_MEDUSA: (1.75, 1.45)},
}
TABLE_V = {  # TTFT and TBT, ms
    SPECBENCH.name: (
        (655.6, 52.3),
        (384.0, 39.4),
        (655.3, 38.3),
        (657.9, 33.8),
        (384.3, 30.6),
        (384.2, 26.4),
    ),
    CNNDM.name: (
        (1989.0, 128.1),
        (1038.7, 74.2),
        (1993.5, 84.3),
        (1992.1, 74.9),
        (1039.1, 49.3),
        (1039.9, 43.5),
    ),
}


class Run(NamedTuple):
    """One simulation; see `setting.measure`."""

    dataset: str
    system: System
    rate: float
    seed: int
    varying: str = ""
    everything: bool = False
    devices: int = 30


Found = dict[Run, Cell]


def _simulated(item: tuple[int, Run]) -> tuple[int, Cell]:
    number, run = item
    cell = measure(
        DATASETS[run.dataset],
        run.system,
        run.rate,
        varying=run.varying,
        everything=run.everything,
        seed=run.seed,
        devices=run.devices,
    )
    return number, cell


def simulate_all(runs: Iterable[Run], what: str) -> list[tuple[Run, Cell]]:
    """Simulate on all cores, each run once."""
    distinct: list[Run] = []
    for run in runs:
        if run not in distinct:
            distinct.append(run)
    found = ray_map(_simulated, list(enumerate(distinct)), chunk=1)
    cells = dict(next(found) for _ in report.progress(distinct, what))
    return [(run, cells[number]) for number, run in enumerate(distinct)]


class Results:
    """Cells by run, over all seeds."""

    def __init__(self, found: Sequence[tuple[Run, Cell]], seeds: int) -> None:
        self._found, self._seeds = found, range(seeds)

    def of(
        self, dataset: Dataset, system: System, rate: float, figure: str, **changes: object
    ) -> list[float]:
        """One figure, a value a seed."""
        runs = [Run(dataset.name, system, rate, seed, **changes) for seed in self._seeds]  # type: ignore[arg-type]
        return [float(getattr(self._cell(run), figure)) for run in runs]

    def _cell(self, wanted: Run) -> Cell:
        return next(cell for run, cell in self._found if run == wanted)


Chosen = Mapping[tuple[str, str], System]
"""Settings chosen, by data set and system's name."""


def choose(wire: Kind = COMMON) -> Chosen:
    """Each system's settings with the least time of a whole answer on a seed that is not judged, with such states."""
    wanted = {
        (dataset.name, name): [
            Run(dataset.name, replace(one, wire=wire), rate, CHOOSING) for one in candidates
        ]
        for dataset, rate in CELLS
        for name, candidates in CANDIDATES.items()
    }
    needed = [run for runs in wanted.values() if len(runs) > 1 for run in runs]
    found = simulate_all(needed, f"choosing settings, {wire}")

    def answer_s(run: Run) -> float:
        return next(cell.answer_s for one, cell in found if one == run)

    return {
        key: (min(runs, key=answer_s) if len(runs) > 1 else runs[0]).system for key, runs in wanted.items()
    }


def _rivals(chosen: Chosen, dataset: Dataset) -> list[System]:
    """All baselines, with the settings chosen and with the paper's."""
    own = [chosen[dataset.name, name] for name in BASELINES]
    return own + [replace(PUBLISHED[name], wire=own[0].wire) for name in BASELINES]


def runs(chosen: Chosen, coded: Chosen, seeds: int) -> list[Run]:
    """Return all runs to judge. coded: with hidden states in an entropy code."""
    wanted: list[Run] = []
    for seed in range(seeds):
        for dataset in DATASETS.values():
            for name in CANDIDATES:
                system = chosen[dataset.name, name]
                wanted += [Run(dataset.name, system, rate, seed) for rate in RATES[dataset.name]]
        for dataset, rate in CELLS:
            rows = ablated(chosen[dataset.name, HAT]).values()
            wanted += [Run(dataset.name, system, rate, seed) for system in rows]
            for one in PUBLISHED.values():
                wanted += [Run(dataset.name, one, rate, seed, everything=back) for back in (False, True)]
            for system in (coded[dataset.name, HAT], *_rivals(coded, dataset)):
                wanted.append(Run(dataset.name, system, rate, seed))
            for system in (PAPERS, PUBLISHED[U_MEDUSA], PUBLISHED[U_SHAPE]):
                wanted.append(Run(dataset.name, system, ALONE, seed, devices=1))
        if _has_wifi():
            systems = [chosen[SPECBENCH.name, HAT], *_rivals(chosen, SPECBENCH)]
            wanted += [Run(SPECBENCH.name, one, 6.0, seed, "Wi-Fi") for one in systems]
    return wanted


ALONE = 0.05  # requests/s of one undisturbed device


def _has_wifi() -> bool:
    return (DATA / "network" / "wifi_solis.csv").exists()


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("hat", f"{__doc__}\n{_SOURCES}")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell (default 3)")
    options = parser.parse_args(arguments)
    chosen, coded = choose(), choose(CODED)
    results = Results(simulate_all(runs(chosen, coded, options.seeds), "simulations"), options.seeds)
    for dataset in DATASETS.values():
        _table_of_systems(results, chosen, coded, dataset)
    for dataset, rate in CELLS:
        _table_of_ablation(results, dataset, ablated(chosen[dataset.name, HAT]), rate)
    report.figures("hat", figures(results, chosen, coded))


def figures(results: Results, chosen: Chosen, coded: Chosen) -> dict[str, float | bool | list[float]]:
    """Return the figures that the module's docstring lists. coded: with hidden states in an entropy code."""
    found: dict[str, float | bool | list[float]] = {}
    for dataset, rate in reversed(CELLS):
        suffix = "" if dataset is CNNDM else "_specbench"
        for metric in ("ttft", "tbt"):
            ours, theirs = chosen[dataset.name, HAT], _rivals(chosen, dataset)
            cuts = _least_cut(results, dataset, rate, f"{metric}_s", ours, theirs)
            found[f"{metric}_cut_min{suffix}"], found[f"{metric}_cut_min{suffix}_range"] = _summed(cuts)
            theirs = [PUBLISHED[name] for name in BASELINES]
            cuts = _least_cut(results, dataset, rate, f"{metric}_s", PAPERS, theirs, everything=True)
            found[f"{metric}_cut_min{suffix}_published"] = _summed(cuts)[0]
        for name, rivals in (("coded", chosen), ("equal_bytes", coded)):
            theirs = _rivals(rivals, dataset)
            cuts = _least_cut(results, dataset, rate, "ttft_s", coded[dataset.name, HAT], theirs)
            found[f"ttft_cut_{name}_min{suffix}"] = _summed(cuts)[0]
    if _has_wifi():
        ours, theirs = chosen[SPECBENCH.name, HAT], _rivals(chosen, SPECBENCH)
        for metric in ("ttft", "tbt"):
            cuts = _least_cut(results, SPECBENCH, 6.0, f"{metric}_s", ours, theirs, varying="Wi-Fi")
            found[f"{metric}_cut_min_wifi"] = _summed(cuts)[0]
    pairs = [
        pair
        for dataset, rate in CELLS
        for pair in _pairs(results, dataset, ablated(chosen[dataset.name, HAT]), rate)
    ]
    found["ablation_in_order"] = all(pairs)
    found["ablation_pairs"] = round(sum(pairs) / len(pairs), 3)
    found["accepted_length"] = round(median(results.of(SPECBENCH, PAPERS, ALONE, "accepted", devices=1)), 3)
    found["accepted_length_cnndm"] = round(median(results.of(CNNDM, PAPERS, ALONE, "accepted", devices=1)), 3)
    for dataset, suffix in ((SPECBENCH, ""), (CNNDM, "_cnndm")):
        for name, system in (("speedup", PAPERS), ("speedup_medusa", PUBLISHED[U_MEDUSA])):
            drafting_s, plain_s = (
                median(results.of(dataset, one, ALONE, "tbt_s", devices=1))
                for one in (system, PUBLISHED[U_SHAPE])
            )
            found[f"{name}{suffix}"] = round(plain_s / drafting_s, 3)
    hat = chosen[SPECBENCH.name, HAT]
    slow, fast = (results.of(SPECBENCH, hat, rate, "tbt_s") for rate in (4.0, 9.0))
    growth = [b / a - 1 for a, b in zip(slow, fast, strict=True)]
    found["tbt_growth"], found["tbt_growth_range"] = _summed(growth)
    found["prefill_sla"] = round(median(results.of(SPECBENCH, hat, 6.0, "sla")), 3)
    return found


def _summed(values: Sequence[float]) -> tuple[float, list[float]]:
    return round(median(values), 4), [round(min(values), 4), round(max(values), 4)]


def _least_cut(
    results: Results,
    dataset: Dataset,
    rate: float,
    figure: str,
    ours: System,
    theirs: Sequence[System],
    **changes: object,
) -> list[float]:
    """Return by how much HAT's figure is less than that of the baseline that comes nearest to it, seed by seed."""
    here = results.of(dataset, ours, rate, figure, **changes)
    cuts = [
        [1 - a / b for a, b in zip(here, results.of(dataset, one, rate, figure, **changes), strict=True)]
        for one in theirs
    ]
    return min(cuts, key=median)


def _pairs(results: Results, dataset: Dataset, rows: Mapping[str, System], rate: float) -> list[bool]:
    """Return for each two rows of the ablation whether they are in the paper's order."""
    printed = TABLE_V[dataset.name]
    tbt = [median(results.of(dataset, system, rate, "tbt_s")) for system in rows.values()]
    ttft = [median(results.of(dataset, system, rate, "ttft_s")) for system in rows.values()]
    numbers = list(combinations(range(len(printed)), 2))
    chunked = ["PC" in row for row in rows]
    return [
        *((tbt[a] < tbt[b]) == (printed[a][1] < printed[b][1]) for a, b in numbers),
        *((ttft[a] < ttft[b]) == chunked[a] for a, b in numbers if chunked[a] != chunked[b]),
    ]


def _table_of_systems(results: Results, chosen: Chosen, coded: Chosen, dataset: Dataset) -> None:
    def row(name: str, system: System, rate: float, label: str, **changes: object) -> list[str]:
        def of(figure: str) -> list[float]:
            return results.of(dataset, system, rate, figure, **changes)

        return [
            label,
            name,
            str(system) or "as it is",
            *(report.spread([1e3 * value for value in of(figure)]) for figure in ("ttft_s", "tbt_s")),
            f"{median(of('accepted')):.2f}",
            f"{median(of('sla')):.1%}",
            f"{median(of('busy')):.0%}",
            f"{sum(of('failed')):.0f}",
        ]

    rows = [
        row(name, chosen[dataset.name, name], rate, f"{rate:g}/s")
        for rate in RATES[dataset.name]
        for name in CANDIDATES
    ]
    for one, rate in CELLS:
        if one is dataset:
            rows += [
                row(name, one, rate, f"{rate:g}/s, paper's settings")
                for name, one in PUBLISHED.items()
                if one != chosen[dataset.name, name]
            ]
            rows += [
                row(name, one, rate, f"{rate:g}/s, published", everything=True)
                for name, one in PUBLISHED.items()
            ]
            rows += [
                row(name, coded[dataset.name, name], rate, f"{rate:g}/s, {CODED}") for name in CANDIDATES
            ]
    if dataset is SPECBENCH and _has_wifi():
        rows += [
            row(name, chosen[dataset.name, name], 6.0, "6/s, Wi-Fi", varying="Wi-Fi") for name in CANDIDATES
        ]
    rows += [
        row(name, system, ALONE, "one device", devices=1)
        for name, system in ((HAT, PAPERS), *((name, PUBLISHED[name]) for name in (U_MEDUSA, U_SHAPE)))
    ]
    report.table(
        f"{dataset.name}, {dataset.model} split after layer {dataset.layers} (simulated): medians and ranges",
        ["load", "system", "settings", "TTFT ms", "TBT ms", "tokens a round", "SLA", "cloud busy", "failed"],
        rows,
    )


def _table_of_ablation(results: Results, dataset: Dataset, rows: Mapping[str, System], rate: float) -> None:
    report.table(
        f"Ablation, {dataset.name} at {rate:g} requests/s (simulated); the paper's beside it",
        ["", "TTFT ms", "paper", "TBT ms", "paper"],
        [
            [
                name,
                report.spread([1e3 * value for value in results.of(dataset, system, rate, "ttft_s")]),
                f"{ttft:g}",
                report.spread([1e3 * value for value in results.of(dataset, system, rate, "tbt_s")]),
                f"{tbt:g}",
            ]
            for (name, system), (ttft, tbt) in zip(rows.items(), TABLE_V[dataset.name], strict=True)
        ],
    )


if __name__ == "__main__":
    main()
