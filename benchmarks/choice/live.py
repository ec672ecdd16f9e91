"""Modes ranked live: what the router expects of every way to answer, beside what comes of it, over HTTP.

    tandem benchmark auto_live [--fleets near phones service] [--rounds 3] [--models DIR]

The deployed Serve application with the policy `auto`, on the embedded family, or with --models on a real pair of
llama.cpp (Qwen2.5-Coder 1.5B and 0.5B, SmolLM2 on the devices; `make llamacpp`). Speeds of phones, links and the
service's latency are emulated, tokens are real. Each question is asked once in every mode with every device, one after
the other, in an order that turns with each question, so that all see the machine alike. `tandem.why` tells what was
expected and what came; the target itself judges which of an answer's tokens it would have given. The first questions
teach the router and do not count.

Losses are the objective's (`balanced`), means over the questions of a kind. Two ways count as a pair where their
measured losses differ by more than a tenth.

ranked: share of the pairs that are in the order that was expected; ranked_FLEET: of one fleet. repeated: share of them
whose order in the odd questions is that of the even ones, beyond which no prediction can come; with two questions or
more. regret: loss of the ways that were expected to be the best over that of the best ones. held_ttft, held_tpot: share
of 80 % intervals that held.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import httpx

from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.policies.routing.objectives import OBJECTIVES
from tandem.training.family.encyclopedia.items import LONG_KINDS
from tandem.training.family.prompts import heldout_questions

VALUES = OBJECTIVES["balanced"]
APART = 1.1
"""Ratio of two losses from which on they make a pair."""
SEED = 31
LOSSLESS = ("cloud", "speculative")
"""Modes whose answers are the target's own."""
SERVICE = {"median_s": 0.5, "sigma": 0.3, "seed": 1}
"""Emulated latency of a service's first token."""


class Fleet(NamedTuple):
    """A fleet.

    devices: settings of its devices.
    latency: emulated one of the target; None: its own.
    """

    devices: Sequence[dict[str, Any]]
    latency: dict[str, float] | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of its devices."""
        return [each["name"] for each in self.devices]


def _device(name: str, profile: str, rtt_ms: float) -> dict[str, Any]:
    return {"name": name, "profile": profile, "link": {"rtt_ms": rtt_ms}}


FLEETS = {
    "near": Fleet([_device("laptop", "native", 5), _device("orin", "jetson-orin", 10)]),
    "phones": Fleet([_device("xiaomi", "xiaomi14-qwen05b", 20), _device("pixel", "pixel7pro-bloom560m", 80)]),
    "service": Fleet([_device("laptop", "native", 5), _device("xiaomi", "xiaomi14-qwen05b", 60)], SERVICE),
}


class Kind(NamedTuple):
    """A kind of request.

    about: kinds of questions of the embedded family.
    tokens: most of an answer.
    reader_rate: tokens/s of its reader; 0 without one.
    """

    about: Sequence[str]
    tokens: int
    reader_rate: float = 0.0


KINDS = {
    "short": Kind(("fact",), 32),
    "long": Kind(LONG_KINDS, 96),
    "read along": Kind(LONG_KINDS, 96, 8.0),
}


class Way(NamedTuple):
    """A way to answer: a mode, and the device that takes part; None without one."""

    mode: str
    device: str | None = None

    def __str__(self) -> str:
        return self.mode if self.device is None else f"{self.mode}, {self.device}"

    @property
    def wishes(self) -> dict[str, Any]:
        """Return the request options."""
        return {"mode": self.mode} | ({} if self.device is None else {"device": self.device})


def ways(fleet: Fleet) -> list[Way]:
    """Return the ways to answer with a fleet."""
    alone = [Way("cloud"), Way("speculative")]
    return alone + [Way(mode, name) for name in fleet.names for mode in ("device", "speculative", "race")]


class Seen(NamedTuple):
    """Figures of one answer, expected or measured.

    loss: dollars.
    lost: quality that it lacks.
    """

    loss: float
    ttft_s: float
    tpot_s: float
    lost: float


class Tried(NamedTuple):
    """One answer.

    kind: of KINDS.
    question: its number.
    held: whether the 80 % intervals held: of the time to first token, and per token.
    """

    fleet: str
    kind: str
    way: Way
    question: int
    expected: Seen
    came: Seen
    held: tuple[bool, bool]


def settings(fleet: Fleet, models: Path | None, threads: int) -> dict[str, Any]:
    """Return the application's settings. models: folder of real ones; None: the embedded family."""
    names = ("target", "small", "small")
    common: dict[str, Any] = {"kind": "torch", "threads": 1, "prefix_caching": False}
    if models is not None:
        files = ("qwen2.5-coder-1.5b.gguf", "qwen2.5-coder-0.5b.gguf", "smollm2-135m.gguf")
        names = tuple(str(models / file) for file in files)  # type: ignore[assignment]
        common = {
            "kind": "llamacpp",
            "threads": threads,
            "kv_blocks": 128,
            "max_sessions": 8,
            "prefix_caching": False,
        }
    target, drafter, own = ({**common, "model": name} for name in names)
    if fleet.latency is not None:
        target["latency"] = fleet.latency
    return {
        "model": "tandem",
        "verifier": {"replicas": 1, "engine": target},
        "drafter": {"replicas": 1, "engine": drafter},
        "hosts": [{"name": "edge", "engine": own, "devices": list(fleet.devices)}],
        "router": {"collaboration": {"name": "auto", "parameters": {"explore": 0.0}}},
        "accounts": {"budget": 0.5},
        "default_reader_rate": 0,
    }


async def ask(http: httpx.AsyncClient, way: Way, kind: Kind, question: str) -> dict[str, Any]:
    """Return an answer, with the tokens of prompt and answer."""
    body = {
        "model": "tandem",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": kind.tokens,
        "temperature": 0,
        "return_token_ids": True,
        "tandem": way.wishes | ({"reader_rate": kind.reader_rate} if kind.reader_rate else {}),
    }
    reply = await http.post("/v1/chat/completions", json=body)
    if reply.status_code != 200:
        raise RuntimeError(f"{way}: {reply.text}")
    answer: dict[str, Any] = reply.json()
    return answer


async def lost(http: httpx.AsyncClient, answer: Mapping[str, Any]) -> float:
    """Return the share of an answer's tokens that the target would not have given."""
    choice = answer["choices"][0]
    prompt, ids = choice.get("prompt_token_ids") or answer["prompt_token_ids"], choice["token_ids"]
    if not ids:
        return 1.0
    body = {
        "model": "tandem",
        "prompt": [*prompt, *ids],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 1,
        "tandem": {"mode": "cloud"},
    }
    reply = await http.post("/v1/completions", json=body)
    if reply.status_code != 200:
        raise RuntimeError(reply.text)
    scores = reply.json()["choices"][0]["prompt_logprobs"][-len(ids) :]
    best = [each[str(token)]["rank"] == 1 for token, each in zip(ids, scores, strict=True)]
    return 1.0 - mean(best)


def waited_usd(ttft_s: float, stall_s: float) -> float:
    """Return what a reader's waiting is worth."""
    return VALUES.second_usd * (ttft_s + stall_s)


async def tried(
    http: httpx.AsyncClient, fleet: str, name: str, way: Way, question: tuple[int, str]
) -> Tried | None:
    """Ask a question in one way; None where the answer was moved on its way."""
    kind, (number, text) = KINDS[name], question
    answer = await ask(http, way, kind, text)
    stats, why = answer["tandem"]["stats"], answer["tandem"]["why"]
    if why is None or stats["replans"]:
        return None
    chosen, came, tokens = why["chosen"], why["came"], answer["usage"]["completion_tokens"]
    ttft_s, tpot_s = (chosen[name]["value"] for name in ("ttft_s", "tpot_s"))
    expected = chosen["usd"]["value"] + waited_usd(ttft_s, chosen["stall_s"]["value"])
    stall_s = came["stall_s"] if kind.reader_rate else came["tpot_s"] * max(0, tokens - 1)
    missing = 0.0 if way.mode in LOSSLESS else await lost(http, answer)
    measured = came["usd"] + waited_usd(came["ttft_s"], stall_s)
    return Tried(
        fleet,
        name,
        way,
        number,
        _seen(expected, ttft_s, tpot_s, 1.0 - chosen["quality"]),
        _seen(measured, came["ttft_s"], came["tpot_s"], missing),
        (_within(came["ttft_s"], chosen["ttft_s"]), _within(came["tpot_s"], chosen["tpot_s"])),
    )


def _seen(usd: float, ttft_s: float, tpot_s: float, missing: float) -> Seen:
    return Seen(usd + VALUES.quality_usd * missing, ttft_s, tpot_s, missing)


def _within(value: float, bounds: Mapping[str, float]) -> bool:
    return bounds["low"] <= value <= bounds["high"]


async def measure(
    address: tuple[str, int], name: str, warm: int, rounds: int, questions: Mapping[str, Sequence[str]]
) -> list[Tried]:
    """Return the answers that count. warm: questions of each kind before them."""
    found: list[Tried] = []
    able = ways(FLEETS[name])
    turns = [(number, kind) for number in range(warm + rounds) for kind in questions]
    async with httpx.AsyncClient(base_url="http://{}:{}".format(*address), timeout=300.0) as http:
        for turn, (number, kind) in enumerate(report.progress(turns, f"questions, {name}")):
            first = turn % len(able)
            for way in able[first:] + able[:first]:
                one = await tried(http, name, kind, way, (number, questions[kind][number]))
                if one is not None and number >= warm:
                    found.append(one)
    return found


Case = tuple[str, str]
"""Fleet and kind."""
Means = dict[Way, tuple[Seen, Seen]]
"""Means by way: expected, and measured."""


def means(found: Iterable[Tried]) -> dict[Case, Means]:
    """Return the means of the figures by fleet and kind."""
    by: dict[Case, dict[Way, list[Tried]]] = {}
    for one in found:
        by.setdefault((one.fleet, one.kind), {}).setdefault(one.way, []).append(one)
    return {
        case: {
            way: (_mean([one.expected for one in ones]), _mean([one.came for one in ones]))
            for way, ones in each.items()
        }
        for case, each in by.items()
    }


def _mean(seen: Sequence[Seen]) -> Seen:
    return Seen(*map(mean, zip(*seen, strict=True)))


def _apart(a: Seen, b: Seen) -> bool:
    return max(a.loss, b.loss) > APART * min(a.loss, b.loss)


def pairs(by_way: Means) -> list[bool]:
    """Return of each pair of ways whose measured losses differ whether the expected ones are in their order."""
    return [
        (said.loss < others.loss) == (came.loss < other.loss)
        for (said, came), (others, other) in combinations(by_way.values(), 2)
        if _apart(came, other)
    ]


def repeated(found: Sequence[Tried]) -> list[bool]:
    """Return of each pair of all questions whether the odd ones have the order of the even ones."""
    whole = means(found)
    odd, even = (means(one for one in found if one.question % 2 == side) for side in (1, 0))
    said: list[bool] = []
    for case, by_way in whole.items():
        halves = [half.get(case, {}) for half in (odd, even)]
        for a, b in combinations(by_way, 2):
            if _apart(by_way[a][1], by_way[b][1]) and all(way in half for half in halves for way in (a, b)):
                first, second = (half[a][1] < half[b][1] for half in halves)
                said.append(first == second)
    return said


def regret(by_case: Mapping[Case, Means]) -> float:
    """Return by how much the losses of the ways that were expected to be the best exceed those of the best."""
    chosen = sum(min(by_way.values())[1].loss for by_way in by_case.values())
    best = sum(min(came.loss for _, came in by_way.values()) for by_way in by_case.values())
    return chosen / best - 1.0


def figures(found: Sequence[Tried]) -> dict[str, float]:
    """Return the benchmark's figures."""
    by_case, nothing = means(found), float("nan")
    right = {case: pairs(by_way) for case, by_way in by_case.items()}
    all_right = [each for said in right.values() for each in said]
    fleets = {
        name: [each for case, said in right.items() if case[0] == name for each in said]
        for name in dict.fromkeys(case[0] for case in right)
    }
    again = repeated(found)
    return {
        "ranked": round(mean(all_right), 3) if all_right else nothing,
        **{f"ranked_{name}": round(mean(said), 3) if said else nothing for name, said in fleets.items()},
        "pairs": len(all_right),
        "repeated": round(mean(again), 3) if again else nothing,
        "regret": round(regret(by_case), 3),
        "held_ttft": round(mean(one.held[0] for one in found), 3),
        "held_tpot": round(mean(one.held[1] for one in found), 3),
        "answers": len(found),
    }


def _beside(expected: Seen, came: Seen) -> list[str]:
    """Return the cells of a row."""
    factors, digits = Seen(1e3, 1.0, 1e3, 1.0), Seen(3, 3, 1, 2)
    return [
        f"{factor * a:.{places}f} / {factor * b:.{places}f}"
        for a, b, factor, places in zip(expected, came, factors, digits, strict=True)
    ]


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("auto_live", __doc__)
    parser.add_argument("--fleets", nargs="+", choices=FLEETS, default=list(FLEETS))
    parser.add_argument(
        "--rounds", type=int, default=3, help="questions of each kind that count (%(default)s)"
    )
    parser.add_argument(
        "--warm", type=int, default=1, help="questions of each kind before them (%(default)s)"
    )
    parser.add_argument("--models", type=Path, help="folder of real models, in place of the embedded family")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of a real model")
    options = parser.parse_args(arguments)
    count = options.warm + options.rounds
    questions = {name: heldout_questions(count, kind.about, SEED) for name, kind in KINDS.items()}
    found: list[Tried] = []
    for name in options.fleets:
        with application(settings(FLEETS[name], options.models, options.threads)) as address:
            found += asyncio.run(measure(address, name, options.warm, options.rounds, questions))
    report.table(
        "Expected / measured: losses in thousandths of a dollar, times, and quality that is lacking",
        ["fleet", "kind", "way", "loss", "TTFT s", "TPOT ms", "lost"],
        [
            [*case, str(way), *_beside(*seen)]
            for case, by_way in means(found).items()
            for way, seen in sorted(by_way.items(), key=lambda item: item[1])
        ],
    )
    report.figures("auto_live", figures(found))
