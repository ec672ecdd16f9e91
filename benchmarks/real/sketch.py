"""Sketches of real models: what share of answers is sketched, and what the others wait for.

    tandem benchmark real_sketch [--models DIR] [--prompts 6] [--tokens 200] [--answers FILE]

Prompts of Vicuna and SpecBench, one at a time, each in mode cloud and in mode sketch at once after it. A target of 1.5B
parameters; a device with 0.5B of its vocabulary, one with 135M of another. All of them on this machine, whose cores
they share, so it is no place to see a speed-up.

sketched: share of the answers. sketched_of_suitable: of those whose questions suit.
ttft_extra_ms, ttft_extra_worst_ms: time to first token beyond the cloud's of answers in full, median and most.
ttft_sketched_x, speed_sketched_x: of sketched answers, time to first token over the cloud's, and tokens a second over
the cloud's, medians. target_share: tokens of the sketches over those of their answers.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx

from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.benchmarks.chats import Chat, Server, chat
from tandem.benchmarks.paths import DATA, MODELS, NO_DATA

DEVICES = ("laptop", "phone")


class Pair(NamedTuple):
    """A question's answers."""

    question: str
    cloud: Chat
    sketch: Chat

    @property
    def figures(self) -> dict[str, Any]:
        """Return what mode sketch tells of its answer."""
        found: dict[str, Any] = self.sketch.stats["modes"]["sketch"]
        return found

    @property
    def reason(self) -> str:
        """Return why the answer is in full; "" if it was sketched."""
        return next(iter(self.figures["in_full"]), "")


def settings(target: Path, small: Path, other: Path, threads: int) -> dict[str, Any]:
    """Return the application's settings."""

    def engine(model: Path) -> dict[str, Any]:
        common = {"kind": "llamacpp", "model": str(model), "threads": threads}
        return common | {"kv_blocks": 256, "max_sessions": 8, "lookup": 0}

    hosts = [
        {"name": f"{name}s", "engine": engine(model), "devices": [{"name": name, "link": {"rtt_ms": 20}}]}
        for name, model in zip(DEVICES, (small, other), strict=True)
    ]
    return {
        "model": "model",
        "verifier": {"engine": engine(target) | {"prefix_caching": False}},  # both modes read each prompt
        "drafter": {"replicas": 0},
        "hosts": hosts,
        "sketch": {"models": {small.stem: {"capability": 0.9}, other.stem: {"capability": 0.6}}},
    }


def questions(most: int) -> list[str]:
    """Return the first turns of as many questions of either set, evenly spread over it."""
    found = []
    for file in ("vicuna_bench.jsonl", "spec_bench.jsonl"):
        turns = [json.loads(line)["turns"][0] for line in (DATA / "prompts" / file).read_text().splitlines()]
        found += [turns[i * len(turns) // most] for i in range(most)]
    return found


async def ask(url: str, asked: Sequence[str], tokens: int) -> list[Pair]:
    """Have all questions answered in both modes."""
    servers = [Server(url, {"tandem": {"mode": mode}}) for mode in ("cloud", "sketch")]
    async with httpx.AsyncClient(timeout=600) as client:
        for server in servers:  # warms up
            await chat(client, server, "Say hello.", 8)
        return [
            Pair(question, *[await chat(client, server, question, tokens) for server in servers])
            for question in report.progress(asked, "questions")
        ]


def figures(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the figures."""
    sketched = [pair for pair in pairs if not pair.reason]
    suitable = [pair for pair in pairs if pair.reason != "unsuitable"]
    extra_ms = [1000 * (pair.sketch.first_s - pair.cloud.first_s) for pair in pairs if pair.reason]
    values = {
        "sketched": len(sketched) / len(pairs),
        "sketched_of_suitable": len(sketched) / max(1, len(suitable)),
        "ttft_extra_ms": median(extra_ms) if extra_ms else 0.0,
        "ttft_extra_worst_ms": max(extra_ms, default=0.0),
    }
    if sketched:
        values |= {
            "ttft_sketched_x": median(pair.sketch.first_s / pair.cloud.first_s for pair in sketched),
            "speed_sketched_x": median(
                pair.sketch.tokens / pair.sketch.last_s * pair.cloud.last_s / pair.cloud.tokens
                for pair in sketched
            ),
            "target_share": sum(pair.figures["tokens"] for pair in sketched)
            / sum(pair.sketch.tokens for pair in sketched),
        }
    return {name: round(value, 3) for name, value in values.items()}


def row(pair: Pair) -> list[str]:
    """Return the table's row of one question."""
    told = pair.figures
    return [
        pair.question[:40],
        pair.reason or "sketched",
        *(f"{one.first_s:.2f}, {one.last_s:.1f} s, {one.tokens}" for one in (pair.cloud, pair.sketch)),
        *(str(told[name]) if not pair.reason else "" for name in ("tokens", "notes", "rewritten")),
    ]


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("real_sketch", __doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the models")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b.gguf", help="a GGUF file")
    parser.add_argument("--small", default="qwen2.5-coder-0.5b.gguf", help="of a device, with its vocabulary")
    parser.add_argument("--other", default="smollm2-135m.gguf", help="of another device")
    parser.add_argument("--prompts", type=int, default=6, help="of each set (%(default)s)")
    parser.add_argument("--tokens", type=int, default=200, help="most of an answer (%(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--answers", type=Path, help="file for the answers' texts (JSONL)")
    options = parser.parse_args(arguments)
    models = [options.models / name for name in (options.target, options.small, options.other)]
    for model in models:
        if not model.exists():
            raise SystemExit(f"there is no {model}; name the models' folder with --models")
    if not (DATA / "prompts").is_dir():
        raise SystemExit(NO_DATA)
    with application(settings(models[0], models[1], models[2], options.threads)) as (host, port):
        pairs = asyncio.run(ask(f"http://{host}:{port}", questions(options.prompts), options.tokens))
    if options.answers is not None:
        rows = ({"question": q, "cloud": a.text, "sketch": b.text, "stats": b.stats} for q, a, b in pairs)
        options.answers.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    report.table(
        "Real models: answers in mode cloud and in mode sketch (first token, whole, tokens)",
        ["question", "sketch?", "cloud", "sketch", "its tokens", "notes", "rewritten"],
        map(row, pairs),
    )
    report.figures("real_sketch", figures(pairs))


if __name__ == "__main__":
    main()
