"""Speed of a device's engines, measured when its program starts and they are idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median

from tandem.engine.base import Engine, EngineInfo, Sampling, Tensor
from tandem.engine.split.base import OuterEngine, OuterSession
from tandem.engine.split.hidden_states import Kind, row_bytes

MEASURED_TOKENS, ANSWERED_TOKENS = 128, 16
"""Tokens of a prompt whose prefill is measured, and of the answer to it."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured speed of an engine. prefill_token_s, decode_token_s: seconds per token."""

    prefill_token_s: float
    decode_token_s: float


@dataclass(frozen=True, slots=True)
class EndsSpeed:
    """Measured speed of the two ends of a split model, seconds.

    prefill_token_s: the first layers, per prompt token.
    token_s: the first layers, and the adapter if there is one, for a single token.
    head_s: the head, for a token.
    """

    prefill_token_s: float
    token_s: float
    head_s: float


Clock = Callable[[], float]
"""A clock that goes forward, seconds; an event loop's may be too coarse."""


async def measure(engine: Engine, clock: Clock = time.perf_counter) -> Speed:
    """Measure the engine's speed with a prompt and an answer."""
    prompt, sampling = _prompt(engine.info), _sampling(engine.info)
    came_s: list[tuple[float, int]] = []
    for _ in range(2):  # the first warms up
        session = await engine.open(prompt, sampling)
        began_s = clock()
        came_s, tokens = [], 0
        try:
            async with aclosing(session.generate()) as stream:
                async for part in stream:
                    tokens += len(part.ids)
                    came_s.append((clock() - began_s, tokens))
        finally:
            await session.cancel()
        prompt = prompt[::-1]  # not in the cache
    (first_s, at_first), (last_s, at_last) = came_s[0], came_s[-1]
    decode_s = (last_s - first_s) / (at_last - at_first) if at_last > at_first else 0.0
    return Speed(max(0.0, first_s - decode_s) / len(prompt), decode_s)


async def measure_ends(engine: OuterEngine, clock: Clock = time.perf_counter) -> EndsSpeed:
    """Measure the ends' speed with a prompt, and an answer without drafts to empty hidden states."""
    prompt, sampling = _prompt(engine.info), _sampling(engine.info)
    assert engine.info.split is not None
    deep = _nothing(engine.info.split.hidden)
    found = EndsSpeed(0.0, 0.0, 0.0)
    for _ in range(2):  # the first warms up
        session = await engine.open(prompt, sampling)
        try:
            began_s = clock()
            await session.shallow(len(prompt) - 1)
            prefill_s = clock() - began_s
            rounds = [await _round_s(session, deep, clock) for _ in range(sampling.max_tokens)]
        finally:
            await session.cancel()
        tokens_s, heads_s = zip(*rounds, strict=True)
        found = EndsSpeed(prefill_s / (len(prompt) - 1), median(tokens_s), median(heads_s))
        prompt = prompt[::-1]
    return found


async def _round_s(session: OuterSession, deep: Tensor, clock: Clock) -> tuple[float, float]:
    """Seconds that the first layers and the head took."""
    began_s = clock()
    await session.propose(0)
    passed_s = clock()
    await session.judge(deep)
    return passed_s - began_s, clock() - passed_s


def _nothing(hidden: int) -> Tensor:
    kind: Kind = "float32"
    return Tensor((1, hidden), kind, memoryview(bytes(row_bytes(hidden, kind))))


def _prompt(info: EngineInfo) -> list[int]:
    return [(i % 100 + 32) % info.vocab_size for i in range(min(MEASURED_TOKENS, info.context // 2))]


def _sampling(info: EngineInfo) -> Sampling:
    return Sampling(max_tokens=min(ANSWERED_TOKENS, info.context // 4), ignore_eos=True)
