"""Autoscaled pools, live and scaled down: the conversation trace at the front door of up to two small replicas.

    tandem benchmark autoscaling_live [--span-s 120] [--rate 6.5]

Real models, on a single thread in each replica, so that a machine of two cores has room for two. Requests arrive as at
the peak of Azure's conversation trace, thinned to `rate` a second, with a lull: the middle third has a tenth of them.
Prompts are an eighth of the trace's, answers a third; readers take in 10 tokens/s. In turn: a fixed pool of two, Ray
Serve's policy and Tandem's, these two with the same delays. Scaled down like this it shows that pools follow their load
live, not who saves most; for that there is `autoscaling`.

failed: requests without a whole answer, over all runs.
live_cut: by which share Tandem's pool was smaller than that of Serve's policy; live_fixed_cut: than the fixed one.
live_p99_ratio, live_fixed_p99_ratio: of P99 TTFT, likewise.
"""

from __future__ import annotations

import asyncio
import csv
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.benchmarks.paths import DATA

SHRINK = {"prompt": 8, "output": 3}
LONGEST = 500  # tokens of a prompt: the model's context has to hold the answer, too
LOOK_S = 0.25
DELAYS = {"upscale_delay_s": 0.0, "downscale_delay_s": 10.0}
POOLS: dict[str, dict[str, Any]] = {
    "fixed": {"replicas": 2},
    "serve": {
        "autoscaling": {
            "max_replicas": 2,
            **DELAYS,
            "policy": {"name": "ongoing_requests", "parameters": {"target": 8, "look_back_s": 5}},
        }
    },
    "tandem": {
        "autoscaling": {
            "max_replicas": 2,
            **DELAYS,
            "policy": {"name": "work", "parameters": {"load": 0.6, "window_s": 10, "clear_s": 2}},
        }
    },
}
ENGINE = {
    "kind": "torch",
    "model": "target",
    "grow": 4,
    "max_sessions": 16,
    "scheduling": {"name": "buffer_aware"},
    "batching": {"name": "buffered"},
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: when, seconds, and how long, tokens."""

    at_s: float
    prompt: int
    output: int


@dataclass(slots=True)
class Outcome:
    """Outcome of a run.

    ttft_s: of every answer.
    failures: error messages of failed requests.
    replica_s: seconds of replicas' lives.
    """

    ttft_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    replica_s: float = 0.0


def requests(span_s: float, rate: float) -> list[Asked]:
    """Return requests of the trace, with a lull in the middle."""
    with (DATA / "azure_llm_2023" / "conv_peak20min.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if float(row["arrival_s"]) < span_s]
    every = len(rows) / span_s / rate
    asked: list[Asked] = []
    next_row = 0.0
    for number, row in enumerate(rows):
        at_s = float(row["arrival_s"])
        lull = span_s / 3 <= at_s < 2 * span_s / 3
        if number < next_row:
            continue
        next_row = number + every * (10 if lull else 1)
        prompt, output = (max(2, int(row[f"{kind}_tokens"]) // by) for kind, by in SHRINK.items())
        asked.append(Asked(at_s, min(prompt, LONGEST), output))
    return asked


async def play(address: str, asked: Sequence[Asked], span_s: float) -> Outcome:
    """Ask all of them at their times; the pool's size is looked at all the while, and to the end of the span."""
    outcome, began_s = Outcome(), time.monotonic()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as http:

        async def ask(one: Asked) -> None:
            await asyncio.sleep(one.at_s + began_s - time.monotonic())
            body = {
                "model": "tandem",
                "prompt": [20 + i % 1000 for i in range(one.prompt)],
                "max_tokens": one.output,
                "ignore_eos": True,
                "stream": True,
                "tandem": {"mode": "cloud", "reader_rate": 10.0},
            }
            try:
                outcome.ttft_s.append(await _first_s(http, body))
            except (httpx.HTTPError, ValueError) as error:
                outcome.failures.append(repr(error))

        async def watch() -> None:
            for _ in itertools.count():
                there = (await http.get("/readyz")).json().get("verifier", 0)
                outcome.replica_s += there * LOOK_S
                await asyncio.sleep(LOOK_S)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*map(ask, asked))
        await asyncio.sleep(max(0.0, began_s + span_s - time.monotonic()))
        watching.cancel()
    return outcome


async def _first_s(http: httpx.AsyncClient, body: dict[str, Any]) -> float:
    """Seconds to the first token of a whole answer. Raises ValueError for one that is not whole."""
    began_s, first_s, finish = time.perf_counter(), 0.0, None
    async with http.stream("POST", "/v1/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise ValueError(event["error"]["message"])
                first_s = first_s or time.perf_counter() - began_s
                finish = event["choices"][0]["finish_reason"] or finish
    if finish != "length":
        raise ValueError(f"the answer ended with {finish}")
    return first_s


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = report.parser("autoscaling_live", __doc__)
    parser.add_argument("--span-s", type=float, default=120.0, help="seconds of each run (%(default)g)")
    parser.add_argument("--rate", type=float, default=6.5, help="requests/s outside the lull (%(default)g)")
    options = parser.parse_args(arguments)
    asked = requests(options.span_s, options.rate)
    outcomes: dict[str, Outcome] = {}
    for kind, pool in report.progress(POOLS.items(), f"{len(asked)} requests to each pool"):
        settings = {"verifier": {**pool, "engine": ENGINE}, "drafter": {"replicas": 0}}
        with application(settings) as (host, port):
            outcomes[kind] = asyncio.run(play(f"http://{host}:{port}", asked, options.span_s))
    p99_s = {kind: float(np.percentile(outcome.ttft_s, 99)) for kind, outcome in outcomes.items()}
    rows = [
        (
            kind,
            f"{outcome.replica_s:.0f}",
            f"{np.median(outcome.ttft_s):.3f}",
            f"{p99_s[kind]:.3f}",
            str(len(outcome.failures)),
        )
        for kind, outcome in outcomes.items()
    ]
    for kind, outcome in outcomes.items():
        for failure in sorted(set(outcome.failures)):
            print(f"{kind}: {failure}", file=sys.stderr)
    report.table(f"{len(asked)} requests", ("pool", "replica-s", "P50 TTFT s", "P99 TTFT s", "failed"), rows)
    ours = outcomes["tandem"]
    report.figures(
        "autoscaling_live",
        {
            "failed": float(sum(len(outcome.failures) for outcome in outcomes.values())),
            "live_cut": 1 - ours.replica_s / outcomes["serve"].replica_s,
            "live_p99_ratio": p99_s["tandem"] / p99_s["serve"],
            "live_fixed_cut": 1 - ours.replica_s / outcomes["fixed"].replica_s,
            "live_fixed_p99_ratio": p99_s["tandem"] / p99_s["fixed"],
        },
    )


if __name__ == "__main__":
    main()
