"""Workloads on which the choice of modes is judged, and the fleets that serve them; speeds are of public profiles."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tandem.benchmarks.paths import DATA
from tandem.simulator.config.config import Config, parse
from tandem.simulator.workload import Request, build
from tandem.simulator.world.world import World

READERS = [[0.25, 3.0], [0.25, 5.0], [0.25, 8.0], [0.25, 15.0]]
PROFILES = ("jetson-orin-qwen15b", "xiaomi14-qwen05b", "jetson-orin", "pixel7pro-bloom560m")
"""Profiles of devices, as many of each."""
MODES = ("cloud", "device", "speculative", "race")
"""Modes that are compared; each with the device of the request's own client."""
RANDOM = "random"
"""Choice of one of the modes by chance, for every request."""
BY_LENGTH = "by length"
"""Choice of the device for prompts that are no longer than the workload's mean, of the cloud for others."""
TARGET = {"base_s": 0.03, "token_s": 0.0004, "context_s": 2e-7}
"""Step times of the target: about 30 tokens/s alone."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload.

    rate_per_s: of requests.
    prompt, output: mean lengths, tokens.
    reads: whether readers of 3 to 15 tokens/s read along.
    alpha: acceptance of drafted tokens; 0: as recorded of a real pair.
    alpha_after: the same from the middle on, as the devices' model is exchanged; 0: as before.
    leaving: share of the devices that leave in the middle of the time, without a word.
    rtt_ms: of the devices' links; `worse_ms`: from the middle of the time on.
    devices: number of them.
    jump: factor of the rate from the middle on.
    trace: file of an Azure trace, in place of the lengths.
    max_tokens: limit that clients send.
    """

    name: str
    rate_per_s: float = 2.0
    prompt: int = 150
    output: int = 120
    reads: bool = False
    alpha: float = 0.0
    alpha_after: float = 0.0
    leaving: float = 0.0
    rtt_ms: float = 20.0
    worse_ms: float = 0.0
    devices: int = 20
    jump: float = 1.0
    trace: str = ""
    max_tokens: int = 512

    @property
    def drifts(self) -> bool:
        """Whether something changes in the middle."""
        return self.jump != 1.0 or self.worse_ms > 0.0 or self.alpha_after > 0.0 or self.leaving > 0.0

    def requests(self, seed: int, count: int, mode: str | None = None) -> list[Request]:
        """Return the requests, with their own modes where `mode` is BY_LENGTH."""
        built = build(self.config(seed, count, "explicit").workload)
        if self.trace:
            lengths = map(_lengths, self._rows(seed, count))
            built = [
                replace(one, prompt_tokens=prompt, output_tokens=output)
                for one, (prompt, output) in zip(built, lengths, strict=True)
            ]
        if self.jump != 1.0:
            half_s = built[count // 2].arrival_s
            built = [
                replace(one, arrival_s=half_s + (one.arrival_s - half_s) / self.jump)
                if one.arrival_s > half_s
                else one
                for one in built
            ]
        if self.alpha_after:
            later = replace(self, alpha=self.alpha_after, alpha_after=0.0).requests(seed, count)
            built[count // 2 :] = later[count // 2 :]
        if mode == BY_LENGTH:
            mean = sum(one.prompt_tokens for one in built) / len(built)
            built = [replace(one, mode="device" if one.prompt_tokens <= mean else "cloud") for one in built]
        return built

    async def drift(self, world: World, count: int) -> None:
        """Let the devices leave that do."""
        if self.leaving:
            await asyncio.sleep(count / 2 / self.rate_per_s)
            for index in range(0, len(world.devices), round(1.0 / self.leaving)):
                await world.devices.leave(index)

    def _rows(self, seed: int, count: int) -> Sequence[dict[str, str]]:
        with (DATA / "azure_llm_2023" / self.trace).open() as file:
            rows = list(csv.DictReader(file))
        first = Random(seed).randrange(len(rows) - count)
        return rows[first : first + count]

    def config(self, seed: int, count: int, policy: str, mode: str | None = None) -> Config:
        """Return the simulation of a policy, or of a mode; of several where that is RANDOM or BY_LENGTH."""
        link: dict[str, Any] = {"rtt_ms": self.rtt_ms}
        if self.worse_ms:
            half_s = count / 2 / self.rate_per_s
            link = {"rtt_trace": [[0, self.rtt_ms], [half_s, self.rtt_ms], [half_s + 1, self.worse_ms]]}
        each = max(1, self.devices // len(PROFILES))
        acceptance = {"kind": "alpha", "alpha": self.alpha} if self.alpha else {"kind": "recorded"}
        return parse(
            {
                "name": self.name,
                "seed": seed,
                "reader": "cloud",
                "mode": None if mode in (RANDOM, BY_LENGTH) else mode,
                "workload": {
                    "count": count,
                    "seed": seed,
                    "prompt": {"mean": self.prompt, "cv": 0.8},
                    "output": {"mean": self.output, "cv": 0.7},
                    "max_tokens": self.max_tokens,
                    "arrival": {"kind": "poisson", "rate_per_s": self.rate_per_s},
                    "acceptance": acceptance,
                    "readers": READERS if self.reads else [],
                    "modes": [[1 / len(MODES), one] for one in MODES] if mode == RANDOM else [],
                },
                "router": {"collaboration": {"name": policy}},
                "targets": [{"model": "target", "measured": TARGET, "engine": {"max_sessions": 32}}],
                "devices": [{"profile": name, "count": each, "link": link} for name in PROFILES],
            }
        )


def _lengths(row: dict[str, str]) -> tuple[int, int]:
    """Return the lengths of prompt and answer in a line of an Azure trace, cut to what a device's context takes."""
    prompt, output = int(row["prompt_tokens"]), int(row["output_tokens"])
    return min(2000, max(1, prompt)), min(1000, max(1, output))


WORKLOADS = (
    Workload("chat", reads=True),
    Workload("chat, busy", rate_per_s=5.0, reads=True),
    Workload("code", prompt=300, output=80, alpha=0.9),
    Workload("long documents", rate_per_s=0.5, prompt=2000, output=200),
    Workload("overload", rate_per_s=8.0),
    Workload("night", rate_per_s=0.1),
    Workload("poor drafts", alpha=0.4),
    Workload("1 ms", rtt_ms=1.0),
    Workload("150 ms", rtt_ms=150.0),
    Workload("4 devices", devices=4),
    Workload("1,000 devices", devices=1000),
    Workload("Azure conversation", trace="conv_peak20min.csv", rate_per_s=1.0, max_tokens=1000),
    Workload("Azure code", trace="code_peak20min.csv", rate_per_s=1.0, max_tokens=1000),
    Workload("links worsen", worse_ms=400.0, alpha=0.9),
    Workload("target fills", jump=5.0),
    Workload("model exchanged", alpha=0.9, alpha_after=0.4),
    Workload("devices leave", leaving=0.5),
)
