"""Speculative decoding against cloud-only decoding, one request at a time, on the embedded pair.

    python -m benchmarks.speculation [--prompts 4] [--rounds 3] [--window 6]

Verifier and drafter run in processes of their own and are driven by the executor over the wire, as under
Serve. Fused: the drafter is next to the verifier. Distributed: the same small model behind an emulated link
with the given round-trip time. The grown target costs so many times more and says the same.
Assisted generation is transformers' own speculative decoding, `generate(assistant_model=…)`, in this
process, with as many threads as our two processes have together.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import torch

from benchmarks import report
from benchmarks.processes import engine_process
from cluster.link import Link, LinkProfile
from cluster.remote import Connection, connect
from deployments.assignment import Assignment, EndpointInfo, Wishes
from deployments.engines import TorchSettings
from deployments.executor import Executor
from deployments.job import Job
from engine import family
from engine.base import Engine, Sampling
from engine.family.prompts import heldout_questions
from engine.text import Tokenizer
from policies.window import StaticWindow

RTTS_S = (0.0, 0.010, 0.030)
MAX_TOKENS = 160
Answer = tuple[int, ...]


class Bench:
    """The three modes over two endpoints. Each run answers all prompts, one after the other."""

    def __init__(
        self, target: Connection, drafter: Connection, window: int, prompts: list[list[int]]
    ) -> None:
        self.prompts = prompts
        self._connections = {"target": target, "drafter": drafter}
        self._links = {f"device {rtt_s}": Link(LinkProfile(rtt_s=rtt_s)) for rtt_s in RTTS_S}
        self._assignment: Assignment
        self._executor = Executor(self._assign, self._dial, lambda: StaticWindow(window))
        self._session = 0

    async def run(self, mode: str, rtt_s: float | None = None) -> tuple[list[float], list[Answer]]:
        """(tokens/s of each prompt, the answers). rtt_s None: fused."""
        target = EndpointInfo("target", "", "target")
        name = "drafter" if rtt_s is None else f"device {rtt_s}"
        drafter = EndpointInfo(name, "", "drafter", rtt_s=rtt_s or 0.0) if mode == "speculative" else None
        self._assignment = Assignment(mode, target, drafter)
        speeds, answers = [], []
        for prompt in self.prompts:
            self._session += 1
            job = Job(self._session, tuple(prompt), Sampling(max_tokens=MAX_TOKENS))
            ids: list[int] = []
            began = time.perf_counter()
            async for delta in self._executor.run(job):
                ids += delta.ids
            speeds.append(len(ids) / (time.perf_counter() - began))
            answers.append(tuple(ids))
            await self._executor.settled()
        return speeds, answers

    async def _assign(self, wishes: Wishes) -> Assignment:
        return self._assignment

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        return self._connections[endpoint.engine].engine("engine", self._links.get(endpoint.name))


async def compare(
    grow: int, threads: int, window: int, rounds: int, prompts: list[list[int]]
) -> tuple[dict[str, list[float]], bool]:
    """Tokens/s by mode (the median prompt of each round), and whether all answers were equal."""
    target = TorchSettings(model="target", grow=grow, threads=threads, max_waiting=8)
    drafter = TorchSettings(model="small", threads=threads, max_waiting=8)
    with engine_process(target) as target_address, engine_process(drafter) as drafter_address:
        connections = [await connect(target_address), await connect(drafter_address)]
        bench = Bench(*connections, window, prompts)
        modes: dict[str, Callable[[], Awaitable[tuple[list[float], list[Answer]]]]] = {
            "cloud": lambda: bench.run("cloud"),
            "fused": lambda: bench.run("speculative"),
        } | {
            f"distributed {rtt_s * 1e3:.0f} ms": lambda rtt_s=rtt_s: bench.run("speculative", rtt_s)
            for rtt_s in RTTS_S
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

    def generate(drafted: int | None) -> float:
        speeds = []
        if drafted is not None:
            small.generation_config.num_assistant_tokens = drafted
            small.generation_config.num_assistant_tokens_schedule = "constant"
            small.generation_config.assistant_confidence_threshold = 0.0
        for prompt in prompts:
            ids = torch.tensor([prompt])
            began = time.perf_counter()
            output = target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
                assistant_model=None if drafted is None else small,
            )
            speeds.append((output.shape[1] - len(prompt)) / (time.perf_counter() - began))
        return median(speeds)

    settings = TorchSettings(model="target", threads=threads, max_waiting=8)
    drafting = TorchSettings(model="small", threads=threads, max_waiting=8)
    with engine_process(settings) as target_address, engine_process(drafting) as drafter_address:
        connections = [await connect(target_address), await connect(drafter_address)]
        bench = Bench(*connections, window, prompts)
        speeds: dict[str, list[float]] = {}
        for turn in report.progress(range(rounds + 1), "assisted generation"):
            measured = {"Tandem cloud-only": median((await bench.run("cloud"))[0])}
            measured |= {"Tandem fused": median((await bench.run("speculative"))[0])}
            measured |= {"transformers plain": generate(None)}
            measured |= {f"transformers assisted, {n} drafts": generate(n) for n in (4, 20)}
            if turn > 0:  # the first warms up
                for name, speed in measured.items():
                    speeds.setdefault(name, []).append(speed)
        for connection in connections:
            await connection.close()
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=4, help="held-out questions with long answers")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of all modes")
    parser.add_argument("--window", type=int, default=6, help="γ, tokens drafted a round")
    parser.add_argument("--grow", type=int, default=8, help="how many times dearer the grown target is")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each of our processes")
    options = parser.parse_args()
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
    best = max(("4", "20"), key=lambda n: median(speeds[f"transformers assisted, {n} drafts"]))
    theirs = speeds[f"transformers assisted, {best} drafts"]
    figures["over_assisted_x"] = round(median(a / b for a, b in zip(ours, theirs, strict=True)), 2)
    figures["lossless"] = everything_equal
    report.figures("speculation", figures)


if __name__ == "__main__":
    main()
