"""DiSCo live, over HTTP: server only, device only, chance, and the race without and with migration.

    tandem benchmark race_live [--devices 12] [--requests 2] [--rounds 2] [--service gpt-4o-mini | --engine FILE]

The deployed Serve application with the embedded family. Devices are slowed to the paper's three profiles, and the
server's first token waits for a log-normal's draw in place of a service's network and queue (mean and σ as
`benchmarks disco` has them): both times are emulated, tokens and everything between are real. Every device asks one
question after the other, all devices at once; prompts are questions of the family joined to lengths drawn from a
log-normal like that of Alpaca's.
With --engine the server is a real service, with its own latency and prices, such as
    {kind: openai, base_url: http://127.0.0.1:8080/v1, model: NAME, tokenizer: target, price_in: 0.15, price_out: 0.6}
in which `tokenizer: target` gives its text the vocabulary of the devices, whose models are of the embedded family.
Server-constrained: at the price of electricity the device is the cheaper one; device-constrained: at a rate at
which a joule is worth more than the server asks for a token. Both at several budgets. A policy is a setting of the
application, which is started anew for each; rounds go through them in alternation, with prompts of their own. What
each account's first answers teach is learnt before anything is counted.

p99_ttft_cut, mean_ttft_cut: the race with migration against chance at the same budget, the mean of both constraints and
all budgets; p99_ttft_cut_at_*: of one budget.
cost_cut: the race with migration against the race without, likewise.
answers: of each row; a P99 rests on the slowest hundredth of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import httpx
import numpy as np
import yaml
from pydantic import TypeAdapter

from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.benchmarks.disco import data as disco
from tandem.deployments.pools.engines import EngineSettings
from tandem.engine import family
from tandem.engine.text.tokenizer import Tokenizer
from tandem.training.family.prompts import heldout_questions

PROFILES = ("pixel7pro-bloom1b1", "pixel7pro-bloom560m", "xiaomi14-qwen05b")
SERVICES = {  # what the settings call them, and what the paper does
    "gpt-4o-mini": disco.SERVICES["GPT"],
    "deepseek-v2.5": disco.SERVICES["DeepSeek"],
    "command": disco.SERVICES["Command"],
}
BUDGETS = (0.25, 0.5)
MAX_TOKENS = 64
READER_RATE = 5.0
DEAR_JOULE = 1e-4
"""Dollars: a token of a device is then dearer than any of the services'."""
POLICIES = {
    "chance": ("stochastic", "never"),
    "race": ("disco", "never"),
    "race, migrating": ("disco", "prepared"),
}


Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as its client saw it.

    ttft_s: time to first token.
    gaps_s: between its tokens.
    usd: cost at both endpoints.
    migrations: from one endpoint to the other.
    delayed: tokens that came after the buffer of a reader at READER_RATE had run dry.
    """

    ttft_s: float
    gaps_s: list[float]
    usd: float
    migrations: int
    delayed: float


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table.

    policy: of POLICIES, or an endpoint alone.
    constrained: "server", "device", or "" where there is no choice.
    budget: share of the prompts' tokens for the constrained one; 0 where there is no choice.
    """

    policy: str
    constrained: str = ""
    budget: float = 0.0

    @property
    def wishes(self) -> dict[str, object]:
        """Return the request options."""
        if not self.constrained:
            return {"mode": "cloud" if self.policy == "server only" else "device"}
        rate = {"server": None, "device": DEAR_JOULE}[self.constrained]
        return {"mode": "race", "budget": self.budget, "exchange_rate": rate}

    @property
    def key(self) -> dict[str, object]:
        """Return the form of its API key: keys do not learn from each other's answers."""
        form: dict[str, object] = {"name": f"{self.policy}-{self.constrained}-{self.budget:g}", "budget": 1.0}
        return form | ({"exchange_rate": DEAR_JOULE} if self.constrained == "device" else {})


ENDPOINTS = (Case("server only"), Case("device only"))


def cases(policy: str) -> list[Case]:
    """Return the cases of an application with this policy."""
    races = [Case(policy, side, budget) for side in ("server", "device") for budget in BUDGETS]
    return [*races, *(ENDPOINTS if policy == "chance" else ())]


def emulated_server(service: str) -> dict[str, Any]:
    """Return the settings of an engine with a service's latency."""
    emulated = SERVICES[service]
    return {
        "kind": "torch",
        "model": "target",
        "threads": 1,
        "latency": {"median_s": emulated.median_s, "sigma": emulated.sigma, "seed": 1},
    }


def settings(
    policy: str, devices: int, service: str, engine: dict[str, Any] | None = None
) -> dict[str, object]:
    """Return the application's settings. devices: number per profile; engine: the server's, in place of an emulated
    service's."""
    emulated = SERVICES[service]
    dispatch, migration = POLICIES[policy]
    return {
        "verifier": {"replicas": 1, "engine": engine or emulated_server(service)},
        "drafter": {"replicas": 0},
        "expander": {"replicas": 0},
        "racing": {"dispatch": {"name": dispatch}, "migration": {"name": migration}},
        "accounts": {
            "price_in": 1e6 * emulated.price.prefill,
            "price_out": 1e6 * emulated.price.decode,
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


def read(file: Path) -> dict[str, Any]:
    """Return the settings of an engine. Raises ValueError for what is none."""
    said: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    TypeAdapter(EngineSettings).validate_python(said)
    return said


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
        "tandem": {**case.wishes, "reader_rate": READER_RATE}
        | ({} if case.policy == "server only" else {"device": device}),
    }
    began, times_s, stats = time.perf_counter(), list[float](), dict[str, Any]()
    async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
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
        usd=stats["cost"]["usd"],
        migrations=stats["modes"].get("race", {}).get("migrations", 0),
        delayed=stats["reader"]["stall_s"] * READER_RATE,
    )


async def run(
    address: tuple[str, int], case: Case, headers: Headers, devices: int, requests: int, seed: int
) -> list[Answer]:
    """Every device's questions, one after the other, all devices at once. headers: with the case's key."""
    names = [f"{profile}-{i}" for profile in PROFILES for i in range(devices)]
    texts = prompts(len(names) * requests, seed)
    limits = httpx.Limits(max_connections=len(names))
    async with httpx.AsyncClient(
        base_url="http://{}:{}".format(*address), timeout=120.0, limits=limits, headers=headers
    ) as http:

        async def one(number: int) -> list[Answer]:
            mine = texts[number * requests : (number + 1) * requests]
            return [await ask(http, case, names[number], text) for text in mine]

        return [a for found in await asyncio.gather(*map(one, range(len(names)))) for a in found]


def keys(address: tuple[str, int], asking: Sequence[Case]) -> dict[Case, Headers]:
    """One for each case, as requests show it."""
    with httpx.Client(base_url="http://{}:{}".format(*address), timeout=30.0) as http:

        def made(form: dict[str, object]) -> Headers:
            key = http.post("/v1/keys", json=form).raise_for_status().json()
            return {"Authorization": f"Bearer {key['secret']}"}

        http.headers.update(made({"name": "operator", "role": "operator"}))
        return {case: made(case.key) for case in asking}


def spent(address: tuple[str, int], case: Case, headers: Headers) -> float:
    """The share of the prompts' tokens that the constrained endpoint took in, over the budget; unplanned ones count."""
    reply = httpx.get("http://{}:{}/v1/account".format(*address), headers=headers)
    share: float = reply.raise_for_status().json()["budget_used"][case.constrained]
    return share / case.budget


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("race_live", __doc__)
    parser.add_argument("--devices", type=int, default=12, help="of each of the three profiles (default 12)")
    parser.add_argument("--requests", type=int, default=2, help="of each device a round (default 2)")
    parser.add_argument("--rounds", type=int, default=2, help="alternations of the policies (default 2)")
    parser.add_argument("--service", choices=SERVICES, default="gpt-4o-mini")
    parser.add_argument(
        "--engine",
        type=Path,
        help="YAML file of the server's engine, a real service, with `tokenizer: target`",
    )
    parser.add_argument("--seed", type=int, default=21, help="of the prompts")
    options = parser.parse_args(arguments)
    engine = None if options.engine is None else read(options.engine)
    server = options.service if engine is None else engine["model"]
    found: dict[Case, list[Answer]] = {}
    of_budget: dict[Case, list[float]] = {}
    turns = [
        (turn, policy)
        for turn in range(options.rounds)
        for policy in (reversed(POLICIES) if turn % 2 else POLICIES)
    ]
    for turn, policy in report.progress(turns, "policies"):
        seed = options.seed + 2 * turn
        with application(settings(policy, options.devices, options.service, engine)) as address:
            for case, key in keys(address, cases(policy)).items():
                if case.constrained:
                    asyncio.run(run(address, case, key, options.devices, 1, seed + 1))
                answers = asyncio.run(run(address, case, key, options.devices, options.requests, seed))
                found.setdefault(case, []).extend(answers)
                if case.constrained:
                    of_budget.setdefault(case, []).append(spent(address, case, key))
    count = 3 * options.devices * options.requests * options.rounds
    report.table(
        f"{server}'s {'own latency' if engine else f'latency (σ = {SERVICES[server].sigma:.3f}), emulated,'} and three "
        "emulated phones; "
        f"{count} answers each, a P99 rests on the {count // 100 + 1} slowest",
        [
            "",
            "constrained",
            "budget",
            "TTFT mean s",
            "P99",
            "TBT P99 s",
            "migrated",
            "delayed tokens",
            "µ$ an answer",
            "spent of budget",
        ],
        [
            [
                case.policy,
                case.constrained,
                f"{case.budget:g}" if case.budget else "",
                *_row(found[case]),
                f"{mean(of_budget[case]):.0%}" if case.budget else "",
            ]
            for case in sorted(found, key=lambda case: (case.constrained, case.budget))
        ],
    )

    def cut(figure: str, ours: str, theirs: str, budgets: Sequence[float] = BUDGETS) -> float:
        return round(
            mean(
                1
                - _figures(found[Case(ours, side, budget)])[figure]
                / _figures(found[Case(theirs, side, budget)])[figure]
                for side in ("server", "device")
                for budget in budgets
            ),
            3,
        )

    report.figures(
        "race_live",
        {
            "p99_ttft_cut": cut("p99_s", "race, migrating", "chance"),
            "mean_ttft_cut": cut("mean_s", "race, migrating", "chance"),
            "cost_cut": cut("usd", "race, migrating", "race"),
            **{f"p99_ttft_cut_at_{b:g}": cut("p99_s", "race, migrating", "chance", [b]) for b in BUDGETS},
            "answers": count,
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
