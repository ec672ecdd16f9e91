"""The vLLM engine against plain AsyncLLM, and what verification costs it.

    tandem benchmark engine --engine vllm [--rounds 5] [--steps 48] [--grow 1]

ms per step: the engine (its scheduler, sessions, delivery to asyncio) and AsyncLLM with vLLM's own scheduler, either in
a process of its own on the same model, decoding B requests, in alternation. A verification: 32 sessions with four right
drafts each, from the call to the last verdict, in alternation with the steps of an AsyncLLM that verifies four drafts
of its own n-gram proposer for each of 32 requests. Both continue the same texts, at whose ends the model often repeats
itself; `ngram_tokens` is how many tokens a step of it gives, five if all drafts are right. Where the proposer finds
nothing, its step verifies fewer positions than ours.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tandem.benchmarks import report
from tandem.engine import family
from tandem.engine.base import Sampling
from tandem.engine.vllm.config import VllmConfig, arguments
from tandem.engine.vllm.core import shut_down
from tandem.engine.vllm.engine import VllmEngine, load

BATCHES = (1, 8, 32)
PROMPT = 128  # tokens
LOOPS = 200  # tokens after which the model repeats itself
DRAFTS = 4
NGRAM = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
OURS = ("scheduler_cls", "worker_extension_cls", "speculative_config", "additional_config")


def run(rounds: int, steps: int, grow: int) -> None:
    """grow: the embedded target with so many times its layers."""
    with tempfile.TemporaryDirectory() as made:
        folder = family.path("target")
        if grow > 1:
            from tandem.engine.family.grow import grow as write_grown

            write_grown(folder, grow, Path(made))
            folder = Path(made)
        asyncio.run(_run(folder, rounds, steps))


async def _run(folder: Path, rounds: int, steps: int) -> None:
    config = VllmConfig(kv_blocks=1024, max_sessions=32, token_budget=4096, window=DRAFTS)
    engine = load(folder, config, threads=1)
    plain = _plain(folder, config)
    figures: dict[str, float] = {}
    rows: list[list[str]] = []
    try:
        for batch in BATCHES:
            await _streamed(batch, 8, lambda i, n: _ours(engine, i, n))
            await _streamed(batch, 8, lambda i, n: _theirs(plain, i, n))
            ours, theirs = list[float](), list[float]()
            for _ in report.progress(range(rounds), f"batch {batch}"):
                ours.append(await _streamed(batch, steps, lambda i, n: _ours(engine, i, n)))
                theirs.append(await _streamed(batch, steps, lambda i, n: _theirs(plain, i, n)))
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            figures[f"plain_ratio_b{batch}"] = round(median(ratios), 3)
            times = [report.milliseconds(ours), report.milliseconds(theirs), report.spread(ratios)]
            rows.append([f"step, batch {batch}", *times])
    finally:
        await _end(plain)
    ngram = _plain(folder, config, {"method": "ngram", **NGRAM, "num_speculative_tokens": DRAFTS})
    try:
        texts = await asyncio.gather(*(_continued(engine, _prompt(i), LOOPS) for i in range(BATCHES[-1])))
        verified, theirs, tokens = list[float](), list[float](), list[float]()
        for _ in report.progress(range(rounds), "verification"):
            verified.append(await _verified(engine, texts))
            seconds, each = await _proposed(ngram, texts, steps)
            theirs.append(seconds)
            tokens.append(each)
        ratios = [a / b for a, b in zip(verified, theirs, strict=True)]
        figures |= {"verify_ratio": round(median(ratios), 3), "ngram_tokens": round(median(tokens), 2)}
        times = [report.milliseconds(verified), report.milliseconds(theirs), report.spread(ratios)]
        rows.append([f"verification of {DRAFTS} drafts, batch {BATCHES[-1]}", *times])
    finally:
        await engine.close()
        await _end(ngram)
    report.table(
        f"vLLM engine, 1 thread (median [min … max] of {rounds} rounds)",
        ["", "engine", "AsyncLLM", "ratio"],
        rows,
    )
    report.figures("engine", figures)


def _plain(folder: Path, config: VllmConfig, speculation: dict[str, Any] | None = None) -> Any:
    """Return an AsyncLLM with its own scheduler, and everything else alike. speculation: its own, if any."""
    from vllm.v1.engine.async_llm import AsyncLLM

    given = arguments(folder, config)
    for name in OURS:
        setattr(given, name, type(given).__dataclass_fields__[name].default)
    given.additional_config = {}
    given.speculative_config = speculation
    return AsyncLLM.from_engine_args(given)


async def _end(plain: Any) -> None:
    """Shut an AsyncLLM down, so that nothing is left for when it is collected."""
    plain.output_handler.cancel()  # it would complain that vLLM is gone
    await shut_down(plain.engine_core)
    plain.shutdown()
    plain.shutdown = lambda *_, **__: None


async def _streamed(batch: int, steps: int, stream: Callable[[int, int], Awaitable[list[float]]]) -> float:
    """Median seconds between the tokens of `batch` streams at once."""
    streams = await asyncio.gather(*(stream(i, steps) for i in range(batch)))
    return median(b - a for times in streams for a, b in pairwise(times))


async def _ours(engine: VllmEngine, number: int, steps: int) -> list[float]:
    session = await engine.open(_prompt(number), Sampling(max_tokens=steps, ignore_eos=True))
    times = [time.perf_counter() async for _ in session.generate()]
    await session.cancel()
    return times


async def _theirs(plain: Any, number: int, steps: int) -> list[float]:
    return [time.perf_counter() async for _ in _outputs(plain, number, _prompt(number), steps)]


def _outputs(plain: Any, number: int, prompt: list[int], steps: int) -> AsyncIterator[Any]:
    """Return an AsyncLLM's outputs of a request, one a step."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=steps,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    asked = {"type": "token", "prompt_token_ids": prompt}
    outputs: AsyncIterator[Any] = plain.generate(asked, sampling, f"{number}-{time.perf_counter_ns()}")
    return outputs


async def _proposed(ngram: Any, texts: Sequence[list[int]], steps: int) -> tuple[float, float]:
    """Return the median seconds between steps that verify an AsyncLLM's own drafts, and their mean tokens."""

    async def stream(number: int, text: list[int]) -> tuple[list[float], int]:
        times, tokens = list[float](), 0
        async for output in _outputs(ngram, number, text, steps * (DRAFTS + 1)):
            times.append(time.perf_counter())
            tokens += len(output.outputs[0].token_ids)
        return times, tokens

    streams = await asyncio.gather(*(stream(i, text) for i, text in enumerate(texts)))
    seconds = median(b - a for times, _ in streams for a, b in pairwise(times))
    return seconds, sum(tokens for _, tokens in streams) / sum(len(times) for times, _ in streams)


async def _continued(engine: VllmEngine, text: list[int], count: int) -> list[int]:
    """Return a text with its next `count` tokens."""
    session = await engine.open(text, Sampling(max_tokens=count, ignore_eos=True))
    more = [token async for tokens in session.generate() for token in tokens.ids]
    await session.cancel()
    return text + more


async def _verified(engine: VllmEngine, texts: Sequence[list[int]], verifications: int = 8) -> float:
    """Return the median seconds that a session a text waits for the verdicts of right drafts."""
    count = 2 + verifications * (DRAFTS + 1)
    whole = await asyncio.gather(*(_continued(engine, text, count) for text in texts))
    right = [more[len(text) :] for text, more in zip(texts, whole, strict=True)]
    sampling = Sampling(max_tokens=count, ignore_eos=True)
    sessions = [await engine.open(text, sampling) for text in texts]
    await asyncio.gather(*(session.verify([]) for session in sessions))  # prefilled
    times = []
    for i in range(verifications):
        at = 1 + i * (DRAFTS + 1)
        drafts = [tokens[at : at + DRAFTS] for tokens in right]
        began_s = time.perf_counter()
        verdicts = await asyncio.gather(*(s.verify(d) for s, d in zip(sessions, drafts, strict=True)))
        times.append(time.perf_counter() - began_s)
        assert all(verdict.accepted == DRAFTS for verdict in verdicts)
    for session in sessions:
        await session.cancel()
    return median(times)


def _prompt(number: int) -> list[int]:
    return [3 + (7 * number + 3 * i) % 2000 for i in range(PROMPT)]
