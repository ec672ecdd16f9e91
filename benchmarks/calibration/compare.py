"""The simulator against reality: the same requests live on this machine and simulated.

    tandem benchmark calibration [--requests 200] [--grow 4] [--engine vllm] [--modes split]
    tandem benchmark calibration --real real.jsonl

Live: a target (the embedded one, grown), and emulated devices behind emulated links, in processes of their own, driven
by the executor over the wire. In mode split: the embedded target cut in two (m = 2), its middle in another process, and
one device with its ends, at this machine's speed, behind an emulated link. In mode sketch: fewer devices, which expand,
and answers that end by themselves. Before and after every case the live
deployment is profiled while it answers requests that come ever faster: the engines' own step times, regressed on what
was in the steps, and what a call takes that waits for no step (a shared machine is now faster, now slower; both
profiles are taken together). That is all that is fitted. Settings are the same in both worlds, and requests too: their
arrivals and lengths, and which drafts are accepted, as the live token logs show it, or as the device's adapter says in
mode split when it is asked afterwards, with how sure it is; and in mode sketch what the models would write of an answer
in full, of its sketch, and from that. Three loads, two RTTs, every mode.

MODE_ttft_p50_error and the like: relative, the mean over the six cases of a mode. sketch_agreed, sketch_tokens_agreed:
share of the answers that both worlds sketched or both did not, and that came out equally long. Races are decided by
policies that learn; each world learns for itself, as devices in mode split do.

With --real: answers of `benchmarks real`, with nothing fitted to them (see `benchmarks.calibration.real`).
real_ttft_error, real_rate_error: relative, of a mode's median TTFT and tokens/s, the mean over its modes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.calibration import real, sketch, split
from tandem.benchmarks.calibration.errors import Compared, Figures, show
from tandem.benchmarks.calibration.live import (
    DEVICES,
    GAMMA,
    MAX_TOKENS,
    PROFILE,
    TARGET,
    VLLM,
    WINDOW,
    Live,
    Seen,
    whole_models,
)
from tandem.benchmarks.calibration.profile import Costs
from tandem.benchmarks.real.gpu import SAMPLE
from tandem.benchmarks.real.recording import read
from tandem.deployments.modes import AT_FRONT_DOORS, MODES
from tandem.deployments.modes.sketch.mode import SketchMode
from tandem.deployments.modes.split import SplitMode
from tandem.deployments.pools.engines import MiddleSettings, TorchSettings, VllmSettings
from tandem.deployments.request.tokenlog import Origin
from tandem.engine import family
from tandem.engine.config import EngineConfig
from tandem.engine.family.grow import grow as write_grown
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.vllm.config import VllmConfig
from tandem.simulator.config.config import parse
from tandem.simulator.hardware import MeasuredEnds
from tandem.simulator.results.analysis import Result
from tandem.simulator.runs.run import simulate
from tandem.training.family.prompts import heldout_questions

RTTS_S = (0.010, 0.030)
LOADS = (0.25, 0.5, 0.8)  # share of what the pool can do at most, see `capacity`


@dataclass(frozen=True, slots=True)
class Case:
    """One live run.

    rate_per_s: of requests.
    seen: what became of them.
    costs: of the deployment meanwhile.
    engine: of the target, as a simulation's settings have it.
    """

    mode: str
    rtt_s: float
    rate_per_s: float
    seen: list[Seen]
    costs: Costs
    engine: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.mode}, {self.rtt_s * 1e3:.0f} ms, {self.rate_per_s:.1f} requests/s"


def simulated(case: Case) -> Result:
    """Simulate the same requests. Raises RuntimeError if one fails."""
    config = parse(
        {
            "name": case.name,
            "mode": case.mode,
            "workload": {"count": len(case.seen)},  # the live run's own take its place
            "engine": case.engine,
            **PARTS.get(case.mode, _whole)(case),
        }
    )
    result = simulate(config, requests=[one.request for one in case.seen])
    if failures := {answer.failure for answer in result.answers if not answer.finished}:
        raise RuntimeError(f"{case.name}: simulated requests failed: {failures}, {case.costs}")
    return result


def _whole(case: Case) -> dict[str, Any]:
    """Return the topology of modes that need only whole models."""
    return {
        "reader": "cloud",
        "window": WINDOW,
        "targets": [_target(case)],
        "devices": [
            {
                "count": DEVICES,
                "sessions": PROFILE.sessions,
                "rates": RATES,
                "link": {"rtt_ms": case.rtt_s * 1e3},
            }
        ],
    }


def _split(case: Case) -> dict[str, Any]:
    """The two parts of one."""
    return {
        "split": {**split.SPLIT.model_dump(), "engine": split.OUTER},
        "targets": [{**_target(case), "first": split.LAYERS}],
        "devices": [
            {"rates": RATES, "ends": msgspec.to_builtins(case.costs.ends), "link": split.link(case.rtt_s)}
        ],
    }


def _sketch(case: Case) -> dict[str, Any]:
    """A target, and devices that expand."""
    return {
        "reader": "cloud",
        "sketch": {
            **sketch.SETTINGS.model_dump(),
            "models": {"devices-0": sketch.EXPANDING},
            "asking": sketch.ASKING,
        },
        "targets": [_target(case)],
        "devices": [
            {
                "count": sketch.DEVICES,
                "sessions": sketch.SMALL.sessions,
                "batch": sketch.SMALL.batch,
                "rates": RATES,
                "link": {"rtt_ms": case.rtt_s * 1e3},
            }
        ],
    }


PARTS: dict[str, Callable[[Case], dict[str, Any]]] = {SplitMode.name: _split, SketchMode.name: _sketch}
"""Topology of modes that need further parts."""
RATES = {
    "prefill_tokens_per_s": PROFILE.prefill_tokens_per_s,
    "decode_tokens_per_s": PROFILE.decode_tokens_per_s,
}


def _target(case: Case) -> dict[str, Any]:
    costs = case.costs
    return {"model": "target", "measured": msgspec.to_builtins(costs.timer), "call_s": costs.call_s}


def _live_figures(seen: list[Seen]) -> Figures:
    ttft = [one.first_s - one.arrival_s for one in seen]
    tpot = [(one.last_s - one.first_s) / (len(one.origins) - 1) for one in seen if len(one.origins) > 1]
    span_s = max(one.last_s for one in seen) - seen[0].arrival_s
    return _figures(ttft, tpot, sum(len(one.origins) for one in seen) / span_s)


def _simulated_figures(result: Result) -> Figures:
    ttft = [answer.ttft_s for answer in result.answers]
    tpot = [answer.tpot_s for answer in result.answers if answer.tokens > 1]
    return _figures(ttft, tpot, result.summary()["tokens_per_s"])


def _figures(ttft: list[float], tpot: list[float], throughput: float) -> Figures:
    return {
        "ttft_p50": float(np.percentile(ttft, 50)),
        "ttft_p99": float(np.percentile(ttft, 99)),
        "tpot_p50": float(np.percentile(tpot, 50)),
        "tpot_p99": float(np.percentile(tpot, 99)),
        "throughput": throughput,
    }


def agreement(case: Case, result: Result) -> Figures:
    """Return how far live and simulated answers of mode sketch agree, see the module's docstring."""
    pairs = list(zip(case.seen, result.answers, strict=True))
    return {
        "agreed": mean(one.sketched == bool(answer.origins.get(Origin.EXPANSION)) for one, answer in pairs),
        "tokens_agreed": mean(len(one.origins) == answer.tokens for one, answer in pairs),
    }


@contextmanager
def grown(engine: str, grow: int) -> Iterator[TorchSettings | VllmSettings]:
    """Yield the target's settings with `grow` times its layers, on an engine of that kind."""
    if engine == "torch":
        yield TARGET.model_copy(update={"grow": grow})
        return
    with TemporaryDirectory() as folder:
        write_grown(family.path("target"), grow, Path(folder))
        yield VLLM.model_copy(update={"model": folder})


def as_simulated(target: TorchSettings | MiddleSettings | VllmSettings) -> dict[str, Any]:
    """Return its settings without those of its model."""
    limits = VllmConfig if isinstance(target, VllmSettings) else EngineConfig
    return target.model_dump(include={"kind", *limits.model_fields})


async def play(
    target: TorchSettings | VllmSettings, requests: int, seed: int, modes: Sequence[str]
) -> list[Case]:
    """All cases, live."""
    tokenizer = Tokenizer.load(family.path("target"))
    prompts = [
        tokenizer.render_chat([{"role": "user", "content": question}])
        for question in heldout_questions(requests, seed=3)
    ]
    played: list[Case] = []
    if doors := [mode for mode in modes if mode in AT_FRONT_DOORS and mode not in PARTS]:
        async with whole_models(target, prompts) as deployment:
            await deployment("speculative").run(RTTS_S[0], [0.0] * 8)  # warms up
            for mode in doors:
                played += await _cases(mode, partial(deployment, mode), as_simulated(target), requests, seed)
    if SplitMode.name in modes:
        async with split.split_model(prompts) as fresh:
            await fresh().run(RTTS_S[0], [0.0] * 8)
            played += await _cases(SplitMode.name, fresh, as_simulated(split.MIDDLE), requests, seed)
    if SketchMode.name in modes:
        async with sketch.sketching_models(target, sketch.questions(requests, seed=3)) as fresh:
            await fresh().run(RTTS_S[0], [0.0] * 8)
            played += await _cases(SketchMode.name, fresh, as_simulated(target), requests, seed)
    return played


async def _cases(
    mode: str, fresh: Callable[[], Live], engine: dict[str, Any], requests: int, seed: int
) -> list[Case]:
    """Return the cases of one mode."""
    before = await fresh().profile(RTTS_S[0])
    top = capacity(before.costs(), mode)
    profiles, played = [before], []
    for rtt_s, load in report.progress(
        [(rtt_s, load) for rtt_s in RTTS_S for load in LOADS], f"{mode}, live"
    ):
        rate = load * top
        random = np.random.default_rng([seed, round(rtt_s * 1e3), round(load * 100)])
        seen = await fresh().run(rtt_s, np.cumsum(random.exponential(1 / rate, requests)).tolist())
        after = await fresh().profile(rtt_s)
        played.append(Case(mode, rtt_s, rate, seen, (before + after).costs(), engine))
        before = after
        profiles.append(after)
    costs = [one.costs() for one in profiles]
    ends = [one.ends for one in costs if one.ends is not None]
    report.table(
        f"Profiles of the live deployment, mode {mode}",
        ["", "ms"],
        [
            *([name, _spread_ms(map(value, costs))] for name, value in PROFILED.items()),
            *([name, _spread_ms(map(value, ends))] for name, value in PROFILED_ENDS.items() if ends),
        ],
    )
    return played


def _spread_ms(seconds: Iterable[float]) -> str:
    return report.spread([1e3 * each for each in seconds])


PROFILED: dict[str, Callable[[Costs], float]] = {
    "a step": lambda costs: costs.timer.base_s,
    "… and a position": lambda costs: costs.timer.token_s,
    "… and a sequence": lambda costs: costs.timer.sequence_s,
    "a call of the target beside steps": lambda costs: costs.call_s,
}
PROFILED_ENDS: dict[str, Callable[[MeasuredEnds], float]] = {
    "a step of the device": lambda ends: ends.base_s,
    "… and a position of it": lambda ends: ends.token_s,
    "… and its head": lambda ends: ends.head_s,
}


def capacity(costs: Costs, mode: str) -> float:
    """Requests/s of one target, or of the devices, with eight sessions at work all the time."""
    if mode == "device":
        return 8 / PROFILE.decode_s(MAX_TOKENS)
    if (
        ends := costs.ends
    ) is not None:  # one device, which drafts six tokens of a round one after the other, roughly
        round_s = 6 * (ends.step_s(8, 0, 0) + ends.head_s) + costs.timer.step_s(8 * 7, 0, 0)
        return 8 * 5 / round_s / MAX_TOKENS
    if mode == "sketch":  # with all answers in full
        return 8 / costs.timer.step_s(8, 8, 8 * 100) / sketch.ANSWER_TOKENS
    positions = GAMMA + 1 if mode == "speculative" else 1
    tokens = 3.5 if mode == "speculative" else 1.0  # a round, roughly
    return 8 * tokens / costs.timer.step_s(8 * positions, 8, 8 * 100) / MAX_TOKENS


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("calibration", __doc__)
    parser.add_argument("--requests", type=int, default=200, help="of each case (default 200)")
    parser.add_argument("--grow", type=int, default=4, help="how many times dearer the target is")
    parser.add_argument("--seed", type=int, default=11, help="of the arrivals")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--engine", choices=["torch", "vllm"], default="torch", help="of the target")
    parser.add_argument(
        "--real", type=Path, help="compare the answers of this file of `benchmarks real` instead"
    )
    parser.add_argument(
        "--recorded", type=Path, default=SAMPLE, help="acceptances of --real; default: Tandem's own"
    )
    parser.add_argument("--tables", type=Path, help="folder of step times of --real; default: Tandem's own")
    options = parser.parse_args(arguments)
    if options.real is not None:
        report.figures("calibration", real.errors(options.real, read(options.recorded), options.tables))
        return
    with grown(options.engine, options.grow) as target:
        cases = asyncio.run(play(target, options.requests, options.seed, options.modes))
    compared: list[Compared] = []
    agreed: dict[str, list[float]] = {}
    for case in report.progress(cases, "simulated"):
        result = simulated(case)
        compared.append(Compared(case.name, case.mode, _live_figures(case.seen), _simulated_figures(result)))
        if case.mode == SketchMode.name:
            for key, share in agreement(case, result).items():
                agreed.setdefault(f"sketch_{key}", []).append(share)
    errors = show(
        f"Live → simulated, {options.requests} requests a case (devices and links emulated)",
        ["TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms", "tokens/s"],
        compared,
    )
    report.figures("calibration", errors | {name: round(mean(found), 4) for name, found in agreed.items()})
