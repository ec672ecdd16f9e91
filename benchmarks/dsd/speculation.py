"""Speculative decoding against cloud-only decoding, one request at a time, on the embedded pair.

    tandem benchmark speculation [--prompts 4] [--rounds 3] [--window 6] [--pairs 3] [--base COMMIT]

Verifier and drafter run in processes of their own and are driven by the executor over the wire, as under
Serve. Fused: the drafter is next to the verifier. Distributed: the same small model behind an emulated link
with the given round-trip time. The grown target costs so many times more and says the same.
Assisted generation is transformers' own speculative decoding, `generate(assistant_model=…)`, in this
process, with as many threads as our two processes have together: as it is by default, and with other numbers of
drafts, with its early exit (at a confidence of 0.4) and without; the fastest counts.
speculation_ratio_*: tokens/s with the grown target, this tree's over those of the commit before the rebuild, in
alternation; the median pair. speculation_ratio is the lower one; speculation_cpu_ratio, of CPU seconds for the same
answers in all modes, is what a busy machine hardly changes.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from tandem.benchmarks import baseline, report
from tandem.benchmarks.executor import device_record, local_executor, new_job
from tandem.benchmarks.processes import engine_process
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import Connection, connect
from tandem.deployments.pools.engines import TorchSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.engine import family
from tandem.engine.base import Engine, Sampling
from tandem.engine.text.tokenizer import Tokenizer
from tandem.policies.speculation.window import StaticWindow
from tandem.training.family.prompts import heldout_questions

RTTS_S = (0.0, 0.010, 0.030)
MAX_TOKENS = 160
FEW = 2  # prompts beside the other commit, which answers each in all modes
ASSISTED: dict[str, dict[str, Any]] = {  # what of transformers' generation settings is changed
    "by default": {},
    "adaptive": {"num_assistant_tokens_schedule": "heuristic"},
    **{f"{n} drafts": {"num_assistant_tokens": n} for n in (4, 8)},
    **{
        f"{n} drafts, no early exit": {"num_assistant_tokens": n, "assistant_confidence_threshold": 0.0}
        for n in (4, 8, 20)
    },
}
Answer = tuple[int, ...]


class Bench:
    """The three modes over two endpoints. Each run answers all prompts, one after the other."""

    def __init__(
        self, target: Connection, drafter: Connection, window: int, prompts: list[list[int]]
    ) -> None:
        self.prompts = prompts
        self._target, self._drafter = target, drafter
        self._links = {_device(rtt_s): Link(LinkProfile(rtt_s=rtt_s)) for rtt_s in RTTS_S}
        self._executor = local_executor(
            self._dial,
            lambda: StaticWindow(window),
            drafter=True,
            devices=[device_record(_device(rtt_s), rtt_s) for rtt_s in RTTS_S],
        )

    async def run(self, mode: str, rtt_s: float | None = None) -> tuple[list[float], list[Answer]]:
        """(tokens/s of each prompt, the answers). rtt_s None: fused."""
        device = None if rtt_s is None else _device(rtt_s)
        speeds, answers = [], []
        for prompt in self.prompts:
            ids: list[int] = []
            began = time.perf_counter()
            job = new_job(prompt, Sampling(max_tokens=MAX_TOKENS), mode, device)
            async for delta in self._executor.run(job):
                ids += delta.ids
            speeds.append(len(ids) / (time.perf_counter() - began))
            answers.append(tuple(ids))
            await self._executor.settled()
        return speeds, answers

    def _dial(self, endpoint: EndpointInfo) -> Engine:
        connection = self._target if endpoint.name == "verifier" else self._drafter
        return connection.engine("engine", self._links.get(endpoint.name))


def _device(rtt_s: float) -> str:
    return f"device {rtt_s}"


async def compare(
    grow: int, threads: int, window: int, rounds: int, prompts: list[list[int]]
) -> tuple[dict[str, list[float]], bool]:
    """Tokens/s by mode (the median prompt of each round), and whether all answers were equal."""
    target = TorchSettings(model="target", grow=grow, threads=threads, max_waiting=8)
    drafter = TorchSettings(model="small", threads=threads, max_waiting=8)
    with engine_process(target) as target_address, engine_process(drafter) as drafter_address:
        connections = await connect(target_address), await connect(drafter_address)
        bench = Bench(*connections, window, prompts)
        modes: dict[str, Callable[[], Awaitable[tuple[list[float], list[Answer]]]]] = {
            "cloud": partial(bench.run, "cloud"),
            "fused": partial(bench.run, "speculative"),
            **{f"distributed {s * 1e3:.0f} ms": partial(bench.run, "speculative", s) for s in RTTS_S},
        }
        expected = (await bench.run("cloud"))[1]  # also warms up
        speeds: dict[str, list[float]] = {mode: [] for mode in modes}
        lossless = True
        for _ in report.progress(range(rounds), f"target × {grow}"):
            for mode, run in modes.items():
                measured, answers = await run()
                speeds[mode].append(median(measured))
                lossless = lossless and answers == expected
        for connection in connections:
            await connection.close()
    return speeds, lossless


async def against_assisted(
    threads: int, window: int, rounds: int, prompts: list[list[int]]
) -> dict[str, list[float]]:
    """Tokens/s on the plain pair: our modes and transformers, plain and assisted, in alternation."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2 * threads)  # as many as our two processes have together
    target: Any = AutoModelForCausalLM.from_pretrained(family.path("target"), dtype=torch.float32).eval()
    small: Any = AutoModelForCausalLM.from_pretrained(family.path("small"), dtype=torch.float32).eval()

    assisted = {name: copy.deepcopy(small.generation_config) for name in ASSISTED}
    for name, changes in ASSISTED.items():
        assisted[name].update(**changes)

    def generate(variant: str | None) -> float:
        speeds = []
        if variant is not None:
            small.generation_config = assisted[variant]
        for prompt in prompts:
            ids = torch.tensor([prompt])
            began = time.perf_counter()
            output = target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
                assistant_model=None if variant is None else small,
            )
            speeds.append((output.shape[1] - len(prompt)) / (time.perf_counter() - began))
        return median(speeds)

    settings = TorchSettings(model="target", threads=threads, max_waiting=8)
    drafting = TorchSettings(model="small", threads=threads, max_waiting=8)
    with engine_process(settings) as target_address, engine_process(drafting) as drafter_address:
        connections = await connect(target_address), await connect(drafter_address)
        bench = Bench(*connections, window, prompts)
        speeds: dict[str, list[float]] = {}
        for turn in report.progress(range(rounds + 1), "assisted generation"):
            measured = {"Tandem cloud-only": median((await bench.run("cloud"))[0])}
            measured |= {"Tandem fused": median((await bench.run("speculative"))[0])}
            for variant in (None, *ASSISTED):  # in a thread, so that our connections stay alive
                name = "plain" if variant is None else f"assisted, {variant}"
                measured[f"transformers {name}"] = await asyncio.to_thread(generate, variant)
            if turn > 0:  # the first warms up
                for name, speed in measured.items():
                    speeds.setdefault(name, []).append(speed)
        for connection in connections:
            await connection.close()
    return speeds


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("speculation", __doc__)
    parser.add_argument("--prompts", type=int, default=4, help="held-out questions with long answers")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of all modes")
    parser.add_argument("--window", type=int, default=6, help="γ, tokens drafted a round")
    parser.add_argument("--grow", type=int, default=8, help="how many times dearer the grown target is")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each of our processes")
    parser.add_argument("--pairs", type=int, default=3, help="runs of either tree to compare (default 3)")
    baseline.add_option(parser)
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.load(family.path("target"))
    prompts = [
        tokenizer.render_chat([{"role": "user", "content": question}])
        for question in heldout_questions(options.prompts, seed=2)
    ]
    figures: dict[str, float | bool] = {}
    everything_equal = True
    for grow in (1, options.grow):
        speeds, lossless = asyncio.run(
            compare(grow, options.threads, options.window, options.rounds, prompts)
        )
        everything_equal = everything_equal and lossless
        ratios = {
            mode: [a / b for a, b in zip(speeds[mode], speeds["cloud"], strict=True)] for mode in speeds
        }
        report.table(
            f"Target × {grow}, γ = {options.window}, one request at a time, emulated links",
            ["", "tokens/s", "× cloud-only"],
            [[mode, report.spread(speeds[mode]), report.spread(ratios[mode])] for mode in speeds],
        )
        if grow == options.grow:
            figures["fused_x"] = round(median(ratios["fused"]), 2)
            figures["distributed_10ms_x"] = round(median(ratios["distributed 10 ms"]), 2)
    speeds = asyncio.run(against_assisted(options.threads, options.window, options.rounds, prompts))
    report.table(
        "The plain pair against transformers",
        ["", "tokens/s"],
        [[name, report.spread(values)] for name, values in speeds.items()],
    )
    ours = speeds["Tandem fused"]
    theirs = max((speeds[f"transformers assisted, {name}"] for name in ASSISTED), key=median)
    figures["over_assisted_x"] = round(median(a / b for a, b in zip(ours, theirs, strict=True)), 2)
    figures["lossless"] = everything_equal
    case = options.grow, options.threads, options.window, options.rounds, prompts[:FEW]
    report.figures("speculation", figures | _against(options.base, options.pairs, case))


_SIDE = """
import asyncio, json
from statistics import median
from {module} import compare
speeds, _ = asyncio.run(compare(*{case!r}))
print(json.dumps({{mode: median(found) for mode, found in speeds.items()}}))
"""


def _against(commit: str, pairs: int, case: tuple[int, int, int, int, list[list[int]]]) -> dict[str, float]:
    """Figures of this tree over those of another commit; none where it is not at hand."""
    with baseline.worktree(commit) as tree:
        if tree is None:
            return {}
        new = baseline.Side(_SIDE.format(module="tandem.benchmarks.dsd.speculation", case=case))
        there_module = baseline.module(tree, "tandem.benchmarks.dsd.speculation", "benchmarks.speculation")
        old = baseline.Side(_SIDE.format(module=there_module, case=case), tree)
        here, there = baseline.alternate(new, old, pairs, "both trees")
    modes = {"fused": "fused", "distributed_10ms": "distributed 10 ms"}
    ratios = {
        name: baseline.ratios(here, there, lambda run, mode=mode: run.said[mode])  # type: ignore[misc]
        for name, mode in modes.items()
    }
    report.table(
        f"tokens/s against {commit}, in alternation (median [min … max])",
        ["", "here", "there", "ratio"],
        [
            [
                mode,
                *(report.spread([run.said[mode] for run in side]) for side in (here, there)),
                report.spread(ratios[name]),
            ]
            for name, mode in modes.items()
        ],
    )
    figures = {f"speculation_ratio_{name}": round(median(found), 3) for name, found in ratios.items()}
    cpu = baseline.ratios(here, there, baseline.seconds)
    print(f"CPU seconds, of all processes and modes, new over old: {report.spread(cpu)}")
    return {
        "speculation_ratio": min(figures.values()),
        **figures,
        "speculation_cpu_ratio": round(median(cpu), 3),
    }
