"""Torch engines over tiny models, and what tests do with them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tandem.engine import family
from tandem.engine.base import EngineInfo, EngineStats, Sampling, Session
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine
from tandem.engine.core.thread import ThreadDriver
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import start
from tandem.engine.torch.sampling import adjust
from tests.engine.torch import tiny_weights
from tests.engine.torch.tiny_weights import EOS, VOCAB, TinyModel

CONTEXT = 128


def tokenizer() -> Tokenizer:
    """The embedded family's; a tiny model speaks its first tokens, from id 10 one ASCII character each."""
    return Tokenizer.load(family.WEIGHTS / "target")


@dataclass
class Engines:
    """Makes engines; `close` closes them all and sees that their threads end."""

    folder: Path
    made: list[CoreEngine] = field(default_factory=list)
    models: list[TinyModel] = field(default_factory=list)

    def start(
        self, seed: int = 1, noise: float = 0.0, text: Tokenizer | None = None, **settings: Any
    ) -> CoreEngine:
        """settings: of EngineConfig."""
        tiny = tiny_weights.make(self.folder, seed, CONTEXT, noise)
        info = EngineInfo(f"tiny-{seed}", "first tokens of the family's", VOCAB, CONTEXT, EOS)
        config = EngineConfig(**({"kv_blocks": 64, "block_size": 4, "token_budget": 64} | settings))
        self.models.append(tiny)
        self.made.append(start(tiny.model, info, config, text, threads=1))
        return self.made[-1]

    def greedy(self, prompt: list[int], sampling: Sampling, model: int = 0) -> tuple[list[int], str]:
        """Return the expected output of the `model`-th model, recomputed from scratch for every token: (ids,
        finish)."""
        output: list[int] = []
        while True:
            logits = self.models[model].logits((*prompt, *output))[None]
            ends = (*sampling.stop_tokens, *([] if sampling.ignore_eos else [EOS]))
            token = int(adjust(logits, [sampling], lambda _: (prompt, output), [ends]).argmax())
            output.append(token)
            if token in sampling.stop_tokens or (token == EOS and not sampling.ignore_eos):
                return output, "stop"
            if len(output) == sampling.max_tokens:
                return output, "length"

    async def close(self) -> None:
        for engine in self.made:
            await engine.close()
            assert not thread(engine).is_alive()


def thread(engine: CoreEngine) -> threading.Thread:
    """Return the thread in which the engine's core runs."""
    driver = engine._driver
    assert isinstance(driver, ThreadDriver)
    return driver._thread


def runner(engine: Any) -> Any:
    """Return what computes for an engine, of whichever kind."""
    return engine._core.runner


async def collect(session: Session) -> tuple[list[int], str | None]:
    """Return the rest of the session's output: (ids, finish)."""
    ids: list[int] = []
    finish = None
    async for tokens in session.generate():
        assert finish is None
        ids += tokens.ids
        finish = tokens.finish
    return ids, finish


async def handled(engine: CoreEngine) -> EngineStats:
    """The counters once the engine's thread has carried out everything asked of it so far."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    engine._driver.submit(lambda: loop.call_soon_threadsafe(done.set_result, None))
    await done
    return await engine.stats()


class Gate:
    """Holds the engine before each forward pass until it is allowed to go on, or to break down."""

    def __init__(self, engine: CoreEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._permits, self._open = threading.Semaphore(0), False
        self._fault: Exception | None = None
        self.faults = 0
        model = runner(engine).model
        forward = model.forward

        def held(*args: Any) -> Any:
            if not self._open:
                self._permits.acquire(timeout=30)
            if self._fault is not None:
                self.faults += 1
                raise self._fault
            return forward(*args)

        monkeypatch.setattr(model, "forward", held)

    def steps(self, count: int) -> None:
        self._permits.release(count)

    def open(self) -> None:
        self._open = True
        self._permits.release()

    def fail(self, fault: Exception) -> None:
        self._fault = fault
        self.open()
