"""Real models in every mode: code, mathematics and chats, beside the cloud alone.

    tandem benchmark real [--models DIR] [--prompts 8] [--modes cloud fused] [--results FILE]

Prompts of HumanEval, GSM8K, SpecBench and Vicuna; greedy answers. A target and a drafter of one vocabulary, and a small
model of another one on a device; all of them on this machine, whose cores they share, so drafts that cost time can
hardly pay. Links are emulated. Modes take turns, so that all see the machine alike; no prompt is taken from a cache.
Every answer is kept in a file at once, and a second run with the same settings goes on from there. Code that the models
write is run in a sandbox (`benchmarks.real.sandbox`).

same_tokens: share of the tokens of answers by speculation that are the cloud's, in their places; answers that part at
one token count as different from there on.
same_tokens_again: the same of the cloud's own answers when it is asked a second time (mode `cloud, again`).
scores_changed: share of the answers by speculation whose score is not that of the cloud's.
worst_x: speed over the cloud's, to as many tokens, median of the prompts; of the worst mode but `device`, on the worst
set.
code_x: the same on HumanEval, by the best way of speculation.
race_p99_cut: P99 of TTFT of races at a budget of a half, cut from the cloud's. race_cost_x: their cost over it.
With --split BUNDLE WHOLE mode split is measured after the others, at a device's own API (`benchmarks.real.split`): the
bundle's two ends there, the middle of the whole model (a Hugging Face folder) in the cloud; beside that model in mode
cloud on the same engine, torch, since the target's GGUF file cannot be split. Only that mode reports bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec

from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.benchmarks.chats import Server, chat
from tandem.benchmarks.paths import DATA, MODELS, NO_DATA
from tandem.benchmarks.real import split
from tandem.benchmarks.real.figures import AGAIN, CLOUD, COLUMNS, DEVICE, HALF, Compared
from tandem.benchmarks.real.results import Answer, Results
from tandem.benchmarks.real.tasks import Task, tasks
from tandem.deployments.pools.engines import model_folder
from tandem.engine.text.tokenizer import Tokenizer

RTTS_MS = (5, 20, 60)
BUDGETS = (0.25, 0.5, 0.75)
CONTEXT = 2048  # tokens of a KV cache
WINDOW = 6
"""Most drafts of a step: see `LlamacppConfig.reproducible`."""
MODES: dict[str, dict[str, Any]] = {
    CLOUD: {"mode": "cloud"},
    AGAIN: {"mode": "cloud"},
    DEVICE: {"mode": "device", "device": "phone"},
    **{f"speculative, {rtt} ms": {"mode": "speculative", "device": f"laptop-{rtt}"} for rtt in RTTS_MS},
    "fused": {"mode": "speculative"},
    "between vocabularies": {"mode": "speculative", "device": "phone"},
    **{f"race, {budget}": {"mode": "race", "device": "phone", "budget": budget} for budget in BUDGETS},
    "sketch": {"mode": "sketch", "device": [f"laptop-{rtt}" for rtt in RTTS_MS]},
}
"""Request options by the name that the table has."""
assert HALF in MODES
LOSSLESS = tuple(name for name, options in MODES.items() if options["mode"] == "speculative")


def settings(kind: str, threads: int, target: Path, drafter: Path, device: Path) -> dict[str, Any]:
    """Return the application's settings. kind: of the engine of models in folders; llama.cpp runs GGUF files."""
    phone = {"name": "phone", "link": {"rtt_ms": 20}}
    laptops = [{"name": f"laptop-{rtt}", "link": {"rtt_ms": rtt}} for rtt in RTTS_MS]
    small = _engine(drafter, kind, threads)
    return {
        "model": "model",
        "verifier": {"engine": _engine(target, kind, threads)},
        "drafter": {"replicas": 1, "engine": small},
        "hosts": [
            {"name": "laptops", "engine": small, "devices": laptops},
            {"name": "phones", "engine": _engine(device, kind, threads), "devices": [phone]},
        ],
        "window": {"name": "gain", "parameters": {"most": WINDOW}},
        "sketch": {"models": {drafter.stem: {"capability": 0.8}}},
    }


def _engine(model: Path, kind: str, threads: int) -> dict[str, Any]:
    common = {"model": str(model), "threads": threads, "kv_blocks": CONTEXT // 16, "max_sessions": 8}
    if model.suffix != ".gguf" and kind == "vllm":
        return common | {"kind": kind}
    common |= {"lookup": WINDOW, "prefix_caching": False}
    return common | (
        {"kind": kind} if model.suffix != ".gguf" else {"kind": "llamacpp", "reproducible": True}
    )


async def answers(
    servers: Mapping[str, Server], asked: Sequence[Task], tokenizer: Tokenizer, results: Results, key: str
) -> dict[str, str]:
    """Have the tasks answered that have no answer yet; the modes that a server refuses, and its words. servers: by
    mode."""
    refused: dict[str, str] = {}
    async with httpx.AsyncClient(timeout=600) as client:
        for mode, server in servers.items():  # warms up
            try:
                await chat(client, server, "Say hello.", 8)
            except RuntimeError as error:
                refused[mode] = str(error)
        able = [mode for mode in servers if mode not in refused]
        left = [
            (task, mode)
            for task in asked
            for mode in able
            if (mode, task.set, task.name) not in results.answers
        ]
        for task, mode in report.progress(left, "answers"):
            one = await chat(client, servers[mode], task.question, task.tokens)
            score = await asyncio.to_thread(task.score, one.text)
            ids, stats = list(tokenizer.encode(one.text)), msgspec.Raw(msgspec.json.encode(one.stats))
            results.add(
                Answer(
                    key,
                    task.set,
                    task.name,
                    mode,
                    one.text,
                    ids,
                    one.tokens,
                    one.first_s,
                    one.last_s,
                    score,
                    stats,
                )
            )
    return refused


def show(found: Mapping[Any, Answer], splitting: Sequence[Answer], refused: Mapping[str, str]) -> None:
    """Print the tables and the figures. splitting: answers of mode split, and those beside them."""
    compared = Compared(sorted(found.values(), key=lambda a: (a.set, list(MODES).index(a.mode))))
    report.table("Real models, beside the cloud alone (links emulated)", COLUMNS, compared.rows())
    if splitting:
        report.table(
            "Mode split, beside the whole model on the same engine (loopback)",
            COLUMNS,
            split.compared(splitting).rows(),
        )
        report.table("Traffic of mode split, of an answer", split.COLUMNS, split.rows(splitting))
    for mode, reason in refused.items():
        print(f"left out: {mode}: {reason}")
    report.figures("real", compared.figures(LOSSLESS) | split.figures(splitting))


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("real", __doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the models")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b.gguf", help="a GGUF file or a folder")
    parser.add_argument("--drafter", default="qwen2.5-coder-0.5b.gguf", help="with the target's vocabulary")
    parser.add_argument("--device", default="smollm2-135m.gguf", help="model of a device")
    parser.add_argument("--engine", choices=["torch", "vllm"], default="torch", help="of models in folders")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument(
        "--split", nargs=2, type=Path, metavar=("BUNDLE", "WHOLE"), help="folders for mode split"
    )
    parser.add_argument("--prompts", type=int, default=8, help="of each set (default 8)")
    parser.add_argument("--results", type=Path, default=Path("real.jsonl"), help="file of the answers")
    options = parser.parse_args(arguments)
    models = [options.models / name for name in (options.target, options.drafter, options.device)]
    for model in models:
        if not model.exists():
            raise SystemExit(f"there is no {model}; name the models' folder with --models")
    if not (DATA / "prompts").is_dir():
        raise SystemExit(NO_DATA)
    parts = None
    if options.split is not None:
        bundle, whole = options.split
        try:
            parts = split.settings(bundle, whole, options.threads)
        except (ValueError, OSError) as error:
            raise SystemExit(f"--split: {error}") from None
    wanted = settings(options.engine, options.threads, *models)
    key = json.dumps(wanted, sort_keys=True)
    results = Results(options.results, key)
    asked = tasks(options.prompts, DATA / "prompts")
    tokenizer = Tokenizer.load(model_folder(str(models[0])))
    refused: dict[str, str] = {}
    if options.modes:
        with application(wanted) as (host, port):
            url = f"http://{host}:{port}"
            servers = {mode: Server(url, {"tandem": MODES[mode]}) for mode in options.modes}
            refused = asyncio.run(answers(servers, asked, tokenizer, results, key))
    splitting: list[Answer] = []
    if parts is None:
        refused[split.SPLIT] = "needs --split BUNDLE WHOLE"
    else:
        key = json.dumps(parts, sort_keys=True)
        own_results = Results(options.results, key)
        with TemporaryDirectory() as folder, split.serving(*parts, Path(folder)) as servers:
            refused |= asyncio.run(answers(servers, asked, tokenizer, own_results, key))
        splitting = list(own_results.answers.values())
    show(results.answers, splitting, refused)
