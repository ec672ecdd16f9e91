"""PICE's table III, simulated: answers a minute and latency for four LLMs, and their dependencies.

    tandem benchmark pice_table3 [--seeds 3]

All systems are settings of one application in virtual time (simulated). They use of the paper: the cloud's places
(20) and answers a minute of table III's row "cloud-only", from which follows what a full batch takes a step; table I's
tokens/s of an answer alone, to which steps come down as places become free; answers of 500 tokens, sketches of 200;
arrivals of 30 a minute, 1.84 times what Llama3-70B alone can answer, and the others' likewise; four Jetson AGX Orin
with Qwen2.5-1.5B, 44 tokens/s each from the row "edge-only". No figure of the row "PICE" is used. A place is memory for
an answer, and a sequence of a step: sessions between two rounds of speculation leave the step to others.

The paper does not say how many questions a run has. Overloaded as the cloud is, its latency grows with every one of
them. So latency is of runs of 80, as MT-bench and Vicuna-bench have, in which cloud-only comes near to the paper's own;
answers a minute are of runs of 800, where beginning and end count little.

Rivals: Tandem's own fused speculation with a drafter of 1.5B beside the target, whose step times are the target's by
their parameters, at acceptances of 0.7 and 0.8 (lossless, no devices; short runs only); with it, mode sketch writes
sketches and answers in full so. The static scheduler, which decides by length alone. The same money on places, five
more (at 32,000 $ for 20), as if they made no step longer. Routing by difficulty, an oracle's that knows how long the
answers are and leaves those of up to so many tokens to devices as gave the most answers a minute on another seed, with
Llama3-70B and as long as devices refuse nobody. What is answered there is the small model's own, without a sketch: this
table is blind to quality (see `pice_quality`).

llama70b_x: PICE's answers a minute over cloud-only's. llama70b_latency_cut: of the mean latency.
worst_column_x: the least of all LLMs' ratios, in short runs and long ones.
worst_over_best: answers a minute of mode sketch with a drafter over the best of cloud-only, more places and speculation
    with that drafter; the least of all LLMs, seeds and acceptances, in short runs.
<llm>_x, <llm>_short_x, <llm>_latency_cut; more_places_x, static_x, routing_x: the rivals', with Llama3-70B.
All medians over seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import fmean, median
from typing import Any, NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.pice.live import DEVICES, MORE_PLACES, PLACES
from tandem.cluster.devices.profile import load_profile
from tandem.simulator.config.config import Config, parse
from tandem.simulator.runs.run import simulate
from tandem.simulator.runs.tasks import ray_map
from tandem.simulator.workload import build

PROFILE = "jetson-orin-qwen15b"
ANSWER, SKETCH = 500, 200  # tokens (section II-B)
DRAFTER_BILLIONS = 1.5  # parameters of Tandem's drafter beside the target; the paper has none
PER_MINUTE = 30.0  # that come (section V-B)
SHORT, LONG = 80, 800  # questions of a run
BANDWIDTH = 100  # megabits/s
RTT_MS = 20
SPREAD = 0.3  # of answers' lengths, standard deviation over mean; the paper has none
FOREVER_S = 36_000
PLACE_BLOCKS = 50  # of 16 tokens: memory of a place, for a prompt and an answer of 1.5 times the mean
MANY = 1_000_000


class Llm(NamedTuple):
    """A column of table III.

    per_minute, latency_s: of cloud-only.
    alone: tokens/s of a single answer (table I).
    billions: parameters.
    pice_per_minute, pice_latency_s: the paper's own, to be shown beside ours.
    """

    per_minute: float
    latency_s: float
    alone: float
    billions: float
    pice_per_minute: float
    pice_latency_s: float

    @property
    def arrivals(self) -> float:
        """A minute: as overloaded as Llama3-70B."""
        return PER_MINUTE * self.per_minute / LLAMA70B.per_minute

    def steps(self, places: int) -> dict[str, float]:
        """Return the target's step times, linear in the number of sequences: a single one as in table I; all places
        taken, however many there are, as in table III."""
        full_s = 60 * PLACES / (self.per_minute * ANSWER)
        sequence_s = (full_s - 1 / self.alone) / (places - 1)
        return {"base_s": max(0.0, 1 / self.alone - sequence_s), "sequence_s": sequence_s}

    def draft_steps(self, places: int) -> dict[str, float]:
        """Return the step times of a drafter beside it: the target's, by their parameters."""
        return {
            name: seconds * DRAFTER_BILLIONS / self.billions for name, seconds in self.steps(places).items()
        }


LLAMA70B = Llm(16.33, 121.54, 18.82, 70, 25.98, 75.15)
LLMS = {
    "Qwen2.5-72B": Llm(14.891, 138.62, 18.19, 72, 21.24, 97.34),
    "Llama3-70B": LLAMA70B,
    "Qwen2.5-32B": Llm(32.13, 72.32, 22.13, 32, 34.81, 61.22),
    "Llama3-8B": Llm(75.51, 28.57, 76.5, 8, 70.48, 30.21),
}
FIGURES = {
    "Qwen2.5-72B": "qwen72b",
    "Llama3-70B": "llama70b",
    "Qwen2.5-32B": "qwen32b",
    "Llama3-8B": "llama8b",
}


@dataclass(frozen=True, slots=True)
class System:
    """A way to serve.

    mode: of its requests.
    places: in the cloud.
    sketch: settings.
    easy: longest answer, in tokens, that goes to devices.
    acceptance: of a drafter beside the target; 0: there is none.
    """

    mode: str = "cloud"
    places: int = PLACES
    sketch: Mapping[str, Any] = field(default_factory=dict)
    easy: int = 0
    acceptance: float = 0.0

    def __hash__(self) -> int:
        return hash(repr(self))


def waiting(capacity: int) -> System:
    """Return PICE with a job queue of this capacity."""
    return System("sketch", sketch={"queue": {"name": "multi_list", "parameters": {"capacity": capacity}}})


CLOUD, PICE = System(), System("sketch")
SYSTEMS = {
    "cloud-only": CLOUD,
    "PICE": PICE,
    "static": System(
        "sketch", sketch={"sketching": {"name": "always", "parameters": {"share": SKETCH / ANSWER}}}
    ),
    "more places": System(places=PLACES + MORE_PLACES),
    **{
        f"{name} {acceptance}": System(mode, acceptance=acceptance)
        for acceptance in (0.7, 0.8)
        for name, mode in (("speculation", "speculative"), ("PICE with drafter", "sketch"))
    },
}
EASY = (300, 400, 500, 600)
CHOOSING = 1000  # the seed that is chosen on


class Cell(NamedTuple):
    """One run.

    llm: the column's name.
    mbit_per_s: of each device's link, up and down.
    arrivals: a minute; 0: the column's.
    """

    llm: str
    system: System
    questions: int
    seed: int
    mbit_per_s: float = BANDWIDTH
    arrivals: float = 0.0


class Outcome(NamedTuple):
    """per_minute: answers, from the first arrival to the last end.
    latency_s: mean, from a question's arrival to its answer's end.
    ttft_s: median, from a question's arrival to its answer's first token.
    sketched: share of the answers.
    failed: questions without an answer.
    """

    per_minute: float
    latency_s: float
    ttft_s: float
    sketched: float
    failed: int


Outcomes = dict[Cell, Outcome]


def setting(cell: Cell) -> Config:
    """Return the simulator configuration of a cell."""
    llm, system, profile = LLMS[cell.llm], cell.system, load_profile(PROFILE)
    link = {"rtt_ms": RTT_MS, "up_mbit_per_s": cell.mbit_per_s, "down_mbit_per_s": cell.mbit_per_s}
    return parse(
        {
            "name": f"{cell.llm}, {system}",
            "seed": cell.seed,
            "mode": system.mode,
            "reader": "cloud",
            "workload": {
                "count": cell.questions,
                "prompt": {"mean": 60, "cv": 0.5, "least": 8},
                "output": {"mean": ANSWER, "cv": SPREAD, "least": 100, "most": 1500},
                "arrival": {"kind": "poisson", "rate_per_s": (cell.arrivals or llm.arrivals) / 60},
                "acceptance": {"kind": "alpha", "alpha": system.acceptance},
                "seed": cell.seed,
            },
            "sketch": {"share": SKETCH / ANSWER, **system.sketch},
            "limits": dict.fromkeys(("open_s", "first_s", "step_s", "assign_s"), FOREVER_S),
            "targets": [
                {
                    "model": cell.llm,
                    "measured": llm.steps(system.places),
                    **({"measured_draft": llm.draft_steps(system.places)} if system.acceptance else {}),
                    "engine": {
                        "max_sessions": MANY,
                        "max_running": system.places,
                        "kv_blocks": system.places * PLACE_BLOCKS,
                        "scheduling": {"name": "fcfs"},
                    },
                }
            ],
            "devices": [{"count": DEVICES, "profile": PROFILE, "sessions": profile.sessions, "link": link}],
        }
    )


def run(cell: Cell) -> tuple[Cell, Outcome]:
    """The cell with its outcome."""
    config = setting(cell)
    requests = build(config.workload)
    easy = cell.system.easy
    requests = [
        replace(request, mode="device") if request.output_tokens <= easy else request for request in requests
    ]
    answers = simulate(config, requests=requests).answers
    done = [answer for answer in answers if answer.finished]
    span_s = max(answer.ended_s for answer in answers) - min(answer.arrival_s for answer in answers)
    return cell, Outcome(
        per_minute=60 * len(done) / span_s,
        latency_s=fmean(answer.e2e_s for answer in done),
        ttft_s=median(answer.ttft_s for answer in done),
        sketched=fmean(bool(answer.origins.get("expansion")) for answer in done),
        failed=len(answers) - len(done),
    )


def outcomes(cells: Iterable[Cell], what: str) -> Outcomes:
    """Simulate all cells, each once; the long ones first."""
    todo = sorted(dict.fromkeys(cells), key=lambda cell: -cell.questions)
    return dict(report.progress(ray_map(run, todo, chunk=1), what))


def columns(seeds: Sequence[int], systems: Mapping[str, System], sizes: Sequence[int]) -> list[Cell]:
    """Table III. Routing has been chosen for one of the LLMs."""
    return [
        Cell(llm, system, questions, seed)
        for questions in sizes
        for llm in LLMS
        for system in systems.values()
        for seed in seeds
        if (llm == "Llama3-70B" or not system.easy) and (questions == min(sizes) or not system.acceptance)
    ]


def choose_routing(questions: int) -> System:
    """Return the routing with the length that gives the most answers a minute, all of them answered."""
    cells = [Cell("Llama3-70B", System(easy=easy), questions, CHOOSING) for easy in EASY]
    found = outcomes(cells, "choosing routing")
    return max(found, key=lambda cell: (-found[cell].failed, found[cell].per_minute)).system


def ratio(found: Outcomes, ours: System, seeds: Sequence[int], llm: str, questions: int) -> float:
    """Return the ratio of answers a minute to cloud-only's."""
    return median(
        found[Cell(llm, ours, questions, seed)].per_minute
        / found[Cell(llm, CLOUD, questions, seed)].per_minute
        for seed in seeds
    )


def latency_cut(found: Outcomes, ours: System, seeds: Sequence[int], llm: str, questions: int) -> float:
    """Return by which share the mean latency is below cloud-only's."""
    return 1 - median(
        found[Cell(llm, ours, questions, seed)].latency_s / found[Cell(llm, CLOUD, questions, seed)].latency_s
        for seed in seeds
    )


def rivals(ours: System, systems: Mapping[str, System]) -> list[System]:
    """Return what a cloud can be without sketches, with the same drafter or none."""
    alone = [system for system in systems.values() if system.mode != "sketch" and not system.easy]
    return [system for system in alone if system.acceptance in (0.0, ours.acceptance)]


def figures(
    found: Outcomes, seeds: Sequence[int], systems: Mapping[str, System], sizes: Sequence[int]
) -> dict[str, float]:
    """Return the figures of the bars, and the rivals' own. sizes: of short runs and of long ones."""
    short, long = sizes
    values: dict[str, float] = {}
    ratios = []
    for llm, name in FIGURES.items():
        values[f"{name}_x"] = ratio(found, PICE, seeds, llm, long)
        values[f"{name}_short_x"] = ratio(found, PICE, seeds, llm, short)
        values[f"{name}_latency_cut"] = latency_cut(found, PICE, seeds, llm, short)
        ratios += [values[f"{name}_x"], values[f"{name}_short_x"]]
    values["worst_column_x"] = min(ratios)
    values["worst_over_best"] = min(
        (
            found[Cell(llm, ours, short, seed)].per_minute
            / max(found[Cell(llm, rival, short, seed)].per_minute for rival in rivals(ours, systems))
            for ours in systems.values()
            if ours.mode == "sketch" and ours.acceptance
            for llm in FIGURES
            for seed in seeds
        ),
        default=inf,
    )
    for name, system in systems.items():
        if system not in (CLOUD, PICE) and not system.acceptance:
            values[f"{name.replace(' ', '_')}_x"] = ratio(found, system, seeds, "Llama3-70B", long)
            values[f"{name.replace(' ', '_')}_latency_cut"] = latency_cut(
                found, system, seeds, "Llama3-70B", short
            )
    values["failed"] = sum(outcome.failed for outcome in found.values())
    return {name: round(value, 3) for name, value in values.items()}


def _show(found: Outcomes, seeds: Sequence[int], systems: Mapping[str, System], sizes: Sequence[int]) -> None:
    short, long = sizes
    rows = []
    for llm, published in LLMS.items():
        for name, system in systems.items():
            if Cell(llm, system, short, seeds[0]) not in found:
                continue
            paper = {
                CLOUD: f"{published.per_minute} / {published.latency_s} s",
                PICE: f"{published.pice_per_minute} / {published.pice_latency_s} s",
            }
            there = [size for size in sizes if Cell(llm, system, size, seeds[0]) in found]
            runs = {size: [found[Cell(llm, system, size, seed)] for seed in seeds] for size in there}
            rows.append(
                [
                    llm,
                    name,
                    report.spread([run.per_minute for run in runs[long]]) if long in runs else "",
                    report.spread([run.per_minute for run in runs[short]]),
                    report.spread([run.latency_s for run in runs[short]]),
                    report.spread([run.ttft_s for run in runs[short]]),
                    f"{median(run.sketched for run in runs[there[-1]]):.2f}",
                    paper[system] if system in (CLOUD, PICE) else "",
                ]
            )
    names = (
        "LLM",
        "system",
        f"answers/min of {long}",
        f"of {short}",
        f"latency s of {short}",
        f"TTFT s of {short}",
        "sketched",
        "paper",
    )
    report.table(f"Table III, simulated; {len(seeds)} seeds", names, rows)


Way = tuple[System, float, float]  # megabits/s, arrivals a minute


def _both(
    mbit_per_s: float = BANDWIDTH, arrivals: float = PER_MINUTE, capacity: int | None = None
) -> list[Way]:
    """Cloud-only and PICE."""
    pice = PICE if capacity is None else waiting(capacity)
    return [(system, mbit_per_s, arrivals) for system in (CLOUD, pice)]


SWEEPS = {
    "arrivals a minute": {f"{rate}": _both(arrivals=rate) for rate in (10, 20, 30, 40)},
    "jobs that may wait": {f"{capacity}": _both(capacity=capacity) for capacity in (1, 2, 4, 8, 16)},
    "megabits/s": {f"{rate}": _both(mbit_per_s=rate) for rate in (1, 10, 100, 1000)},
}
"""The paper's figures 12 to 14, with Llama3-70B: what cloud-only and PICE get."""


def sweep(seeds: Sequence[int], questions: int) -> None:
    """Print them."""
    cells = {
        (what, value, n): [Cell("Llama3-70B", system, questions, seed, *way) for seed in seeds]
        for what, values in SWEEPS.items()
        for value, pair in values.items()
        for n, (system, *way) in enumerate(pair)
    }
    found = outcomes((cell for row in cells.values() for cell in row), "sweeps")
    for what, values in SWEEPS.items():
        rows = []
        for value in values:
            cloud, pice = ([found[cell] for cell in cells[what, value, n]] for n in (0, 1))
            rows.append(
                [
                    value,
                    *(report.spread([run.per_minute for run in runs]) for runs in (cloud, pice)),
                    *(report.spread([run.latency_s for run in runs]) for runs in (cloud, pice)),
                    *(report.spread([run.ttft_s for run in runs]) for runs in (cloud, pice)),
                    f"{median(run.sketched for run in pice):.2f}",
                ]
            )
        names = [
            f"{system} {unit}"
            for unit in ("/min", "latency s", "TTFT s")
            for system in ("cloud-only", "PICE")
        ]
        report.table(
            f"Llama3-70B by {what}, {questions} questions, simulated", [what, *names, "sketched"], rows
        )


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("pice_table3", __doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell (%(default)s)")
    parser.add_argument("--short", type=int, default=SHORT, help="questions of a short run (%(default)s)")
    parser.add_argument("--long", type=int, default=LONG, help="questions of a long run (%(default)s)")
    options = parser.parse_args(arguments)
    seeds, sizes = range(1, options.seeds + 1), (options.short, options.long)
    systems = {**SYSTEMS, "routing": choose_routing(options.long)}
    found = outcomes(columns(seeds, systems, sizes), "table III")
    _show(found, seeds, systems, sizes)
    sweep(seeds, 4 * options.short)
    report.figures("pice_table3", figures(found, seeds, systems, sizes))


if __name__ == "__main__":
    main()
