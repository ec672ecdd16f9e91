"""DiSCo live, over HTTP: server only, device only, chance, and the race without and with migration.

    python -m benchmarks.race_live [--devices 12] [--requests 3] [--service gpt-4o-mini]

The deployed Serve application with the embedded family. Devices are slowed to the paper's three profiles, and the
server's first token waits for a log-normal's draw in place of a service's network and queue: both times are
emulated, tokens and everything between are real. Every device asks one question after the other, all devices at
once; prompts are questions of the family joined to lengths drawn from a log-normal like that of Alpaca's.
Server-constrained: at the price of electricity the device is the cheaper one; device-constrained: at a rate at
which a joule is worth more than the server asks for a token. The first round only teaches; it is not counted.

p99_ttft_cut, mean_ttft_cut: the race against chance at the same budget, the mean of both constraints.
cost_cut: the race with migration against the race without, likewise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean

import httpx
import numpy as np

from benchmarks import report
from benchmarks.application import application
from engine import family
from engine.family.prompts import heldout_questions
from engine.text import Tokenizer

PROFILES = ("pixel7pro-bloom1b1", "pixel7pro-bloom560m", "xiaomi14-qwen05b")
SERVICES = {  # median_s, sigma; prices per million tokens in, out (the paper's table 8)
    "gpt-4o-mini": (0.35, 0.55, 0.15, 0.60),
    "deepseek-v2.5": (1.2, 0.45, 0.14, 0.28),
    "command": (0.2, 0.5, 1.25, 2.00),
}
BUDGET = 0.5
MAX_TOKENS = 64
READER_RATE = 5.0
DEAR_JOULE = 1e-4
"""Dollars: a token of a device is then dearer than any of the services'."""
POLICIES = {
    "chance": ("stochastic", "never"),
    "race": ("disco", "never"),
    "race, migrating": ("disco", "buffered"),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """ttft_s, gaps_s: as the client saw them; usd: both endpoints'; delayed: tokens that the reader, at READER_RATE,
    could have read while it had nothing to read."""

    ttft_s: float
    gaps_s: list[float]
    usd: float
    migrations: int
    delayed: float


@dataclass(frozen=True, slots=True)
class Case:
    """One column of the table. constrained: "server", "device", or "" where there is no choice."""

    policy: str
    constrained: str
    tandem: dict[str, object]


def cases(policy: str) -> list[Case]:
    """What is asked of an application that runs this policy."""
    rates = {"server": None, "device": DEAR_JOULE}
    found = [
        Case(policy, side, {"mode": "race", "budget": BUDGET, "exchange_rate": rate})
        for side, rate in rates.items()
    ]
    if policy == "chance":
        found += [Case("server only", "", {"mode": "cloud"}), Case("device only", "", {"mode": "device"})]
    return found


def settings(policy: str, devices: int, service: str) -> dict[str, object]:
    """Of the application. devices: of each profile."""
    median_s, sigma, price_in, price_out = SERVICES[service]
    dispatch, migration = POLICIES[policy]
    engine = {
        "kind": "torch",
        "model": "target",
        "threads": 1,
        "latency": {"median_s": median_s, "sigma": sigma, "seed": 1},
    }
    return {
        "verifier": {"replicas": 1, "engine": engine},
        "drafter": {"replicas": 0},
        "expander": {"replicas": 0},
        "racing": {
            "dispatch": {"name": dispatch},
            "migration": {"name": migration},
            "price_in": price_in,
            "price_out": price_out,
        },
        "hosts": [
            {
                "devices": [
                    {"name": f"{profile}-{i}", "profile": profile, "link": {"rtt_ms": 20, "jitter_ms": 2}}
                    for profile in PROFILES
                    for i in range(devices)
                ]
            }
        ],
    }


def prompts(count: int, seed: int) -> list[str]:
    """Questions joined until they have as many tokens as drawn: median 30, up to 200."""
    tokenizer, random = Tokenizer.load(family.path("target")), Random(seed)
    questions = heldout_questions(200, seed=seed)
    made = []
    for _ in range(count):
        wanted = min(200.0, random.lognormvariate(np.log(30), 0.7))
        text = random.choice(questions)
        while len(tokenizer.encode(text)) < wanted:
            text += " " + random.choice(questions)
        made.append(text)
    return made


async def ask(http: httpx.AsyncClient, case: Case, device: str, prompt: str) -> Answer:
    """One streamed chat."""
    body = {
        "model": "tandem",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tandem": {**case.tandem, "device": device, "reader_rate": READER_RATE},
    }
    if case.tandem["mode"] == "cloud":
        del body["tandem"]["device"]  # type: ignore[attr-defined]
    began, times_s, stats = time.perf_counter(), list[float](), {}
    headers = {"Authorization": f"Bearer {case.policy}-{case.constrained}"}
    async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("error"):
                raise RuntimeError(event["error"]["message"])
            if any(choice["delta"].get("content") for choice in event["choices"]):
                times_s.append(time.perf_counter() - began)
            stats = (event.get("tandem") or {}).get("stats") or stats
    return Answer(
        ttft_s=times_s[0],
        gaps_s=np.diff(times_s).tolist(),
        usd=stats["usd"],
        migrations=stats["migrations"],
        delayed=stats["stall_s"] * READER_RATE,
    )


async def run(address: tuple[str, int], case: Case, devices: int, requests: int, seed: int) -> list[Answer]:
    """Every device's questions, one after the other, all devices at once."""
    names = [f"{profile}-{i}" for profile in PROFILES for i in range(devices)]
    texts = prompts(len(names) * requests, seed)
    limits = httpx.Limits(max_connections=len(names))
    async with httpx.AsyncClient(
        base_url="http://{}:{}".format(*address), timeout=120.0, limits=limits
    ) as http:

        async def one(number: int) -> list[Answer]:
            mine = texts[number * requests : (number + 1) * requests]
            return [await ask(http, case, names[number], text) for text in mine]

        return [a for found in await asyncio.gather(*map(one, range(len(names)))) for a in found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=12, help="of each of the three profiles (default 12)")
    parser.add_argument("--requests", type=int, default=3, help="of each device (default 3)")
    parser.add_argument("--service", choices=SERVICES, default="gpt-4o-mini")
    parser.add_argument("--seed", type=int, default=21, help="of the prompts")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[Answer]] = {}
    for policy in report.progress(list(POLICIES), "policies"):
        with application(settings(policy, options.devices, options.service)) as address:
            for case in cases(policy):
                if case.constrained:
                    asyncio.run(run(address, case, options.devices, 1, options.seed + 1))
                key = (case.policy, case.constrained)
                found[key] = asyncio.run(run(address, case, options.devices, options.requests, options.seed))
    report.table(
        f"{options.service}'s latency and three phones, emulated; budget {BUDGET:g}; "
        f"{3 * options.devices * options.requests} answers each",
        ["", "constrained", "TTFT mean s", "P99", "TBT P99 s", "migrated", "delayed tokens", "µ$ an answer"],
        [
            [name, side, *_row(answers)]
            for (name, side), answers in sorted(found.items(), key=lambda x: x[0][1])
        ],
    )

    def cut(figure: str, ours: str, theirs: str) -> float:
        return mean(
            1 - _figures(found[ours, side])[figure] / _figures(found[theirs, side])[figure]
            for side in ("server", "device")
        )

    report.figures(
        "race_live",
        {
            "p99_ttft_cut": round(cut("p99_s", "race, migrating", "chance"), 3),
            "mean_ttft_cut": round(cut("mean_s", "race, migrating", "chance"), 3),
            "cost_cut": round(cut("usd", "race, migrating", "race"), 3),
        },
    )


def _figures(answers: Sequence[Answer]) -> dict[str, float]:
    ttft_s = [a.ttft_s for a in answers]
    return {
        "mean_s": mean(ttft_s),
        "p99_s": float(np.percentile(ttft_s, 99)),
        "usd": mean(a.usd for a in answers),
    }


def _row(answers: Sequence[Answer]) -> list[str]:
    figures = _figures(answers)
    migrated = [a for a in answers if a.migrations]
    return [
        f"{figures['mean_s']:.3f}",
        f"{figures['p99_s']:.3f}",
        f"{np.percentile([gap for a in answers for gap in a.gaps_s], 99):.3f}",
        f"{len(migrated) / len(answers):.0%}",
        f"{mean(a.delayed for a in migrated):.2f}" if migrated else "–",
        f"{1e6 * figures['usd']:.1f}",
    ]


if __name__ == "__main__":
    main()
