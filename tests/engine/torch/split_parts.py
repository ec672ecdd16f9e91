"""A model whole and in two parts, as engines, and a client that drives the parts."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tandem.engine import family
from tandem.engine.base import EngineInfo, Sampling, Tensor, TokenLogprob
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine
from tandem.engine.core.split.middle import MiddleEngine
from tandem.engine.core.split.outer import CoreOuterEngine, CoreOuterSession
from tandem.engine.split.base import check_fit
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch import weights
from tandem.engine.torch.engine import Options, start
from tandem.engine.torch.model import Model
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.runner import load_middle, load_outer
from tests.engine.torch import tiny
from tests.engine.torch.engines import handled
from tests.engine.torch.place import DEVICE

RANDOM = 1.0
"""Scale of an adapter that was not trained; 0: one that does nothing."""


def model_folder(kind: str, folder: Path) -> Path:
    """A tiny model, with the family's tokenizer."""
    tiny.make(kind, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(family.path("target") / name, folder / name)
    return folder


def write_adapter(model: Path, file: Path, scale: float) -> Path:
    """An adapter of the model's shape: noise, of which `scale` is added to what passes."""
    generator = torch.Generator().manual_seed(5)
    prefix = "model.layers.0."
    made: dict[str, torch.Tensor] = {}
    for shard in model.glob("*.safetensors"):
        for name, tensor in load_file(shard).items():
            short = name.removeprefix(prefix)
            if name.startswith(prefix) and short.startswith(("self_attn.", "input_layernorm.")):
                noise = 0.3 * torch.randn(tensor.shape, generator=generator)
                made[short] = 1.0 + noise if "norm" in short else noise
    made["self_attn.o_proj.weight"] *= scale
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(made, file)
    return file


@dataclass
class Parts:
    """The engines over one model folder. adapter: see RANDOM; settings: of EngineConfig, of either part."""

    model: Path
    bundle: Path
    whole: CoreEngine
    middle: MiddleEngine
    outer: CoreOuterEngine

    @classmethod
    def make(
        cls,
        model: Path,
        first: int,
        out: Path,
        adapter: float | None = None,
        middle: dict[str, Any] | None = None,
        outer: dict[str, Any] | None = None,
        **options: Any,
    ) -> Parts:
        """options: of load_outer."""
        file = None if adapter is None else write_adapter(model, out / "adapter.safetensors", adapter)
        bundle.write(model, first, out / "bundle", file)
        place = Options(device=str(DEVICE), dtype="float32", threads=1)
        config: dict[str, Any] = {"kv_blocks": 400, "block_size": 4, "token_budget": 64}
        loaded = weights.load(model, DEVICE, torch.float32)
        text = Tokenizer.load(model)
        info = EngineInfo(
            model.name, text.vocabulary, loaded.config.vocab_size, loaded.config.context, text.eos
        )
        made = cls(
            model,
            out / "bundle",
            start(Model(loaded), info, EngineConfig(**config), text, threads=1),
            load_middle(model, first, EngineConfig(**config | (middle or {})), **place),
            load_outer(out / "bundle", EngineConfig(**config | (outer or {})), **place, **options),
        )
        check_fit(made.outer.info, made.middle.info)
        return made

    async def answer(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Answer:
        """Return the whole model's answer."""
        answer = Answer()
        s = await self.whole.open(prompt, sampling, log)
        async for tokens in s.generate():
            answer.take(tokens.ids, tokens.finish, tokens.logprobs)
        await s.cancel()
        return answer

    async def close(self) -> None:
        for engine in (self.whole, self.middle, self.outer):
            await engine.close()


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    scores: list[TokenLogprob] = field(default_factory=list)

    def take(self, ids: list[int], finish: str | None, scores: list[TokenLogprob] | None) -> None:
        assert self.finish is None
        self.ids += ids
        self.finish = finish
        self.scores += scores or []


@dataclass
class Client:
    """Drives both parts as a device would, in ways drawn by chance.

    chunk: prompt positions sent ahead at a time; 0: none are.
    longest, least: of drafts.
    branches: alternatives drafted from while the middle works.
    lost: how often the middle's session is lost, of a round.
    """

    parts: Parts
    chunk: int = 0
    longest: Callable[[], int] = lambda: 3
    least: float = 0.0
    branches: int = 0
    lost: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    drafted: int = 0
    accepted: int = 0
    adopted: int = 0
    sent: list[Tensor] = field(default_factory=list)
    proposed: list[tuple[list[int], list[float]]] = field(default_factory=list)

    async def answer(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Answer:
        answer = Answer()
        outer = await self.parts.outer.open(prompt, sampling, log)
        room = Sampling(max_tokens=len(prompt) + sampling.max_tokens)
        middle = await self.parts.middle.open([], room)
        while self.chunk and (ahead := await outer.shallow(self.chunk)).hidden.shape[0]:
            self.sent.append(ahead.hidden)
            assert (await middle.forward(ahead.position, ahead.hidden, 0)).hidden.shape[0] == 0
        ready = 0
        while answer.finish is None:
            if self.chance.random() < self.lost:
                await middle.cancel()
                middle = await self.parts.middle.open([], room)
                await outer.rewind(0)
            longest = self.longest()
            proposal = await outer.propose(longest, lambda p: p >= self.least)
            assert len(proposal.ids) == len(proposal.probabilities) <= longest
            assert len(proposal.ids) >= min(ready, longest, 1)
            assert all(p >= self.least for p in proposal.probabilities[:-1])
            self.sent.append(proposal.hidden)
            self.proposed.append((proposal.ids, [round(p, 4) for p in proposal.probabilities]))
            deep = asyncio.ensure_future(middle.forward(proposal.position, proposal.hidden, proposal.wanted))
            if self.branches:
                count = await outer.branch(self.branches, 4)
                assert count <= self.branches
                await self._drafted(outer)
            judgement = await outer.judge((await deep).hidden)
            verdict, ready = judgement.verdict, judgement.ready
            end = proposal.position + proposal.hidden.shape[0]
            if verdict.finish is None:
                assert judgement.position == end - (len(proposal.ids) - verdict.accepted)
            self.drafted += len(proposal.ids)
            self.accepted += verdict.accepted
            self.adopted += ready > 0
            answer.take(verdict.ids, verdict.finish, verdict.logprobs)
        await outer.cancel()
        await middle.cancel()
        return answer

    async def _drafted(self, outer: CoreOuterSession) -> None:
        """Mostly, all branches have drafted. What is drawn must not depend on how soon they have."""
        left = 0
        while self.chance.random() < 0.9:
            left += 1
        while left and any(b.task is not None for b in outer._sequence.branches):
            await handled(self.parts.outer)
            left -= 1
