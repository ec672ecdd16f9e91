"""Mode sketch beside mode cloud on the shipped configuration: how late the slowest answers are.

    tandem benchmark pice_bound [--rounds 4]

The application of app/configs/local.yaml, with its four unlike devices (emulated), is asked long questions that were
not trained on, 1, 2, 4, 8 and 16 at once, in both modes in alternation. All of it shares this machine's cores.

p99_over_cloud: mode sketch's 99th percentile of the time to a whole answer over mode cloud's, the worst of these loads;
    _at_N: of N at once. median_over_cloud_at_N: of the medians.
sketched: share of the answers in mode sketch that small models wrote.
failed: requests without a whole answer.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import numpy as np
import yaml

from tandem.app.cli.server.up import CONFIG
from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.training.family.prompts import heldout

AT_ONCE = (1, 2, 4, 8, 16)
LEAST = 32  # answers of a load in each mode and round, or there is no percentile to speak of
MODES = ("cloud", "sketch")
MAX_TOKENS = 320
SHORTEST = 100  # tokens of the answer of a long question, about five characters each
TIMEOUT_S = 120.0


class Told(NamedTuple):
    """An answer. seconds: until it was whole; sketched: whether small models wrote it."""

    seconds: float
    sketched: bool


def questions(count: int, seed: int = 5) -> list[str]:
    """Return questions that have long answers."""
    found = (item.question for item in heldout(20 * count, seed=seed) if len(item.answer) > 5 * SHORTEST)
    return list(islice(found, count))


async def ask(http: httpx.AsyncClient, question: str, mode: str) -> Told:
    """Return what became of a question. Raises httpx.HTTPError if there was no whole answer."""
    body = {
        "model": "tandem",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "tandem": {"mode": mode},
    }
    began_s = time.perf_counter()
    reply = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
    stats = reply["tandem"]["stats"]["modes"].get("sketch", {})
    seconds = time.perf_counter() - began_s
    return Told(seconds, stats.get("sketches", 0) > stats.get("finished", 0))


async def measure(address: tuple[str, int], rounds: int) -> dict[str, Any]:
    """Ask at every load, in both modes in turn."""
    told: dict[tuple[int, str], list[Told]] = defaultdict(list)
    failures: list[str] = []
    asked = questions(LEAST)
    url = "http://{}:{}".format(*address)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as http:
        for mode in MODES:  # speeds are learnt
            await asyncio.gather(*(ask(http, question, mode) for question in asked[:4]))
        steps = [(n, mode) for _ in range(rounds) for n in AT_ONCE for mode in MODES]
        for at_once, mode in report.progress(steps, "loads"):
            left = iter(asked)

            async def some(left: Any = left, mode: str = mode, at_once: int = at_once) -> None:
                for question in left:
                    try:
                        told[at_once, mode].append(await ask(http, question, mode))
                    except httpx.HTTPError as error:
                        failures.append(repr(error))

            await asyncio.gather(*(some() for _ in range(at_once)))
    figures: dict[str, Any] = {}
    rows = []
    for at_once in AT_ONCE:
        times_s = {mode: [one.seconds for one in told[at_once, mode]] for mode in MODES}
        slowest_s = {mode: float(np.quantile(times_s[mode], 0.99)) for mode in MODES}
        sketched = [one.sketched for one in told[at_once, "sketch"]]
        figures[f"p99_over_cloud_at_{at_once}"] = slowest_s["sketch"] / slowest_s["cloud"]
        figures[f"median_over_cloud_at_{at_once}"] = median(times_s["sketch"]) / median(times_s["cloud"])
        cells = [f"{median(times_s[mode]):.2f}, {slowest_s[mode]:.2f}" for mode in MODES]
        rows.append((str(at_once), *cells, f"{np.mean(sketched):.0%}"))
    report.table(
        f"Seconds to a whole answer: median, P99 of {rounds * LEAST} (live, emulated devices)",
        ("at once", *MODES, "sketched"),
        rows,
    )
    everything = [one.sketched for n in AT_ONCE for one in told[n, "sketch"]]
    return {
        "p99_over_cloud": max(figures[f"p99_over_cloud_at_{n}"] for n in AT_ONCE),
        **figures,
        "sketched": float(np.mean(everything)),
        "failed": len(failures),
    }


def main(arguments: Sequence[str] = ()) -> None:
    """The command."""
    parser = report.parser("pice_bound", __doc__)
    parser.add_argument("--rounds", type=int, default=4, help="times that all is asked (%(default)s)")
    options = parser.parse_args(arguments)
    settings = yaml.safe_load(CONFIG.read_text())["applications"][0]["args"]
    with tempfile.TemporaryDirectory() as folder, application(settings, Path(folder)) as address:
        report.figures("pice_bound", asyncio.run(measure(address, options.rounds)))


if __name__ == "__main__":
    main()
