"""The whole application on llama.cpp against llama.cpp's own server: streams at once, and speculation by kind of text.

    tandem benchmark llamacpp --models DIR [--rounds 3] [--prompts 6] [--tokens 96]

Both serve the same GGUF file with as many threads; they take turns. llama.cpp's server is the one of the package
xllamacpp, which has to be installed for it, with each of its own kinds of speculation: none, a draft model, lookup.
Settings of the last two are swept first, on HumanEval's first tasks, and the fastest of each kind competes.
Streams: tokens/s of 1, 4 and 8 chats at once. Time to first token of an idle server: chats in pairs, one after another.
Speculation (`mode: speculative` with the smaller model as the cloud's drafter, windows by expected gain, prompt
lookup): tokens/s of one chat on HumanEval beside the best of the three servers, on edits of HumanEval's solutions and
on SpecBench beside the plain one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tandem.app.cli.server.local_ray import free_port
from tandem.benchmarks import report
from tandem.benchmarks.application import application, healthy
from tandem.benchmarks.chats import Server, ask
from tandem.benchmarks.paths import DATA, MODELS

STREAMS = (1, 4, 8)
CONTEXT = 8192  # tokens of all chats together
READY_WITHIN_S = 120.0
CHOSEN_BY = 20
"""HumanEval's first tasks, by which defaults were chosen: others judge."""
SERVER = """
import json, sys, time, xllamacpp as x
model, drafter, settings, port, threads, places, context = sys.argv[1:]
p = x.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx = model, int(port), int(places), int(context)
p.kv_unified = True
for cpu in (p.cpuparams, p.cpuparams_batch, p.speculative.draft.cpuparams, p.speculative.draft.cpuparams_batch):
    cpu.n_threads = int(threads)
for kind, values in json.loads(settings).items():
    type_ = kind + "_simple" if kind == "draft" else kind
    p.speculative.types = [getattr(x.common_speculative_type, "COMMON_SPECULATIVE_TYPE_" + type_.upper())]
    for name, value in values.items():
        setattr(getattr(p.speculative, kind), name, value)
    if kind == "draft":
        p.speculative.draft.mparams.path = drafter
server = x.Server(p)
while True:
    time.sleep(3600)
"""
Speculation = dict[str, Mapping[str, float]]
"""Kind of speculation of llama.cpp's server, as xllamacpp names it, and settings that differ from llama.cpp's own."""
RIVALS: dict[str, list[Speculation]] = {
    "plain": [{}],
    "draft": [
        {"draft": values}
        for values in (
            {"n_max": 2},
            {},
            {"n_max": 6},
            {"n_max": 8, "p_min": 0.8},
            {"n_max": 16, "p_min": 0.9},
        )
    ],
    "lookup": [
        {"ngram_simple": {}},
        {"ngram_simple": {"size_n": 4, "size_m": 16}},
        {"ngram_simple": {"size_n": 3, "size_m": 8}},
        {"ngram_simple": {"size_n": 6, "size_m": 32}},
        {"ngram_map_k": {"size_n": 4, "size_m": 16}},
        {"ngram_map_k4v": {"size_n": 4, "size_m": 16}},
        {"ngram_mod": {}},
        {"ngram_mod": {"n_match": 8, "n_min": 4, "n_max": 32}},
        {"ngram_cache": {}},
    ],
}
"""Settings of llama.cpp's server that are tried, by kind."""
TTFT_PAIRS = 24


@contextmanager
def llama_server(model: Path, drafter: Path, speculation: Speculation, threads: int) -> Iterator[Server]:
    """llama.cpp's server until the context is left. Raises RuntimeError if it does not come up."""
    port = free_port()
    wanted = json.dumps(speculation)
    words = [str(model), str(drafter), wanted, str(port), str(threads), str(max(STREAMS)), str(CONTEXT)]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + READY_WITHIN_S
        while not healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("llama.cpp's server did not come up: pip install xllamacpp")
            time.sleep(0.5)
        yield Server(url)
    finally:
        process.kill()
        process.wait(60)


def settings(model: Path, drafter: Path, threads: int) -> dict[str, Any]:
    """The application's."""
    engine = {"kind": "llamacpp", "threads": threads, "max_sessions": max(STREAMS)}
    kv = {"kv_blocks": CONTEXT // 16}
    return {
        "model": "model",
        "verifier": {"engine": engine | kv | {"model": str(model)}},
        "drafter": {"replicas": 1, "engine": engine | kv | {"model": str(drafter), "lookup": 0}},
        "window": {"name": "gain"},
    }


def fastest(
    model: Path, drafter: Path, threads: int, asked: Sequence[str], tokens: int
) -> dict[str, Speculation]:
    """Return the settings of each kind with which llama.cpp's server answers these questions fastest."""
    rates: dict[tuple[str, int], float] = {}
    cases = [(kind, i) for kind, several in RIVALS.items() if len(several) > 1 for i in range(len(several))]
    for kind, i in report.progress(cases, "llama.cpp's settings"):
        with llama_server(model, drafter, RIVALS[kind][i], threads) as server:
            ask(server, asked[:1], 16)
            rates[kind, i], _ = ask(server, asked, tokens)
    rows = [[kind, json.dumps(RIVALS[kind][i]), f"{rates[kind, i]:.1f}"] for kind, i in cases]
    report.table("Settings of llama.cpp's server", ["kind", "settings", "tokens/s"], rows)
    best = {
        kind: max(range(len(several)), key=lambda i: rates.get((kind, i), 0.0))
        for kind, several in RIVALS.items()
    }
    return {kind: RIVALS[kind][i] for kind, i in best.items()}


def questions(count: int) -> dict[str, list[str]]:
    """Return `count` questions of each kind of text, and of code that settings are chosen by."""
    with (DATA / "prompts" / "HumanEval.jsonl").open() as file:
        every = [json.loads(line) for line in file]
    first, tasks = every[:CHOSEN_BY], every[CHOSEN_BY:][:count]
    with (DATA / "prompts" / "spec_bench.jsonl").open() as file:
        bench = [json.loads(line)["turns"][0] for line in file]
    code = "Complete this function. Reply with the code only.\n\n"
    return {
        "tuning": [f"{code}{task['prompt']}" for task in first[-count:]],
        "code": [f"{code}{task['prompt']}" for task in tasks],
        "edit": [
            f"Rename the function {task['entry_point']} to solve, and change nothing else. Reply with all of the "
            f"code.\n\n```python\n{task['prompt']}{task['canonical_solution']}```"
            for task in tasks
        ],
        "chat": bench[:: len(bench) // count][:count],
    }


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("llamacpp", __doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the models")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b.gguf")
    parser.add_argument("--drafter", default="qwen2.5-coder-0.5b.gguf")
    parser.add_argument("--rounds", type=int, default=3, help="alternations (default 3)")
    parser.add_argument("--prompts", type=int, default=6, help="of each kind of text (default 6)")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer, at most (default 96)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    model, drafter = options.models / options.target, options.models / options.drafter
    asked = questions(options.prompts)
    chosen = fastest(model, drafter, options.threads, asked.pop("tuning"), options.tokens)
    with ExitStack() as stack:
        host, port = stack.enter_context(application(settings(model, drafter, options.threads)))
        ours = Server(f"http://{host}:{port}")
        theirs = {
            kind: stack.enter_context(llama_server(model, drafter, speculation, options.threads))
            for kind, speculation in chosen.items()
        }
        for server in (ours, *theirs.values()):
            ask(server, asked["chat"][:2], 16)
        figures = _streams(ours, theirs["plain"], asked["chat"], options.rounds, options.tokens)
        figures |= _first_token(ours, theirs["plain"], asked["code"])
        figures |= _speculation(ours, theirs, asked, options.rounds, options.tokens)
    report.figures("llamacpp", figures)


def _streams(
    ours: Server, theirs: Server, asked: Sequence[str], rounds: int, tokens: int
) -> dict[str, float]:
    cloud = ours._replace(extra={"tandem": {"mode": "cloud"}})
    figures: dict[str, float] = {}
    rows = []
    for streams in STREAMS:
        ratios = list[float]()
        for number in report.progress(range(rounds), f"{streams} streams"):
            several = [asked[i % len(asked)] for i in range(2 * max(2, streams))]
            wanted = [f"{question} ({number}.{i})" for i, question in enumerate(several)]
            (own, _), (other, _) = (ask(server, wanted, tokens, streams) for server in (cloud, theirs))
            ratios.append(own / other)
        figures[f"plain_ratio_{streams}"] = round(median(ratios), 3)
        rows.append([str(streams), report.spread(ratios)])
    report.table("The application over llama.cpp's server", ["streams", "tokens/s, ratio"], rows)
    return figures


def _first_token(ours: Server, theirs: Server, asked: Sequence[str]) -> dict[str, float]:
    cloud = ours._replace(extra={"tandem": {"mode": "cloud"}})
    added_s = list[float]()
    for number in report.progress(range(TTFT_PAIRS), "time to first token"):
        question = [f"({number}) {asked[number % len(asked)]}"]
        first_s = {}
        for server in (cloud, theirs) if number % 2 else (theirs, cloud):
            _, [one] = ask(server, question, 2)
            first_s[server.url] = one.first_s
        added_s.append(first_s[cloud.url] - first_s[theirs.url])
    report.table("Time to first token", ["added, in pairs"], [[report.milliseconds(added_s)]])
    return {"ttft_added_ms": round(median(added_s) * 1e3, 2)}


def _speculation(
    ours: Server, theirs: Mapping[str, Server], asked: Mapping[str, list[str]], rounds: int, tokens: int
) -> dict[str, float]:
    speculative = ours._replace(extra={"tandem": {"mode": "speculative"}})
    servers = {"ours": speculative, **theirs}
    rates: dict[tuple[str, str], list[float]] = {}
    for text, wanted in asked.items():
        for number in report.progress(range(rounds), f"speculation on {text}"):
            for name, server in servers.items():
                rate, _ = ask(server, [f"{question}\n({number})" for question in wanted], tokens)
                rates.setdefault((text, name), []).append(rate)
    rows = [
        [text, name, report.spread(found), f"{median(found) / median(rates[text, 'plain']):.2f}"]
        for (text, name), found in rates.items()
    ]
    report.table("One chat", ["text", "server", "tokens/s", "over plain"], rows)

    def over(text: str, names: Sequence[str]) -> float:
        """Return the ratio over the best of these servers, each by its median."""
        return round(median(rates[text, "ours"]) / max(median(rates[text, name]) for name in names), 3)

    return {
        "speculative_ratio_code": over("code", list(theirs)),
        "speculative_ratio_edit": over("edit", ["plain"]),
        "speculative_ratio_chat": over("chat", ["plain"]),
    }
