"""Acceptance of an adapter's drafts, with the parts that serve: rounds of a real outer part and a real middle.

Acceptance: of the tokens of the model's own greedy answers, the share that the adapter would have drafted, given all
before them. Accepted: drafted tokens that stand, per round, as HAT's paper counts; a round yields one token more, the
model's own. A draft ends with the first token whose probability is below η, and has at most MAX_WINDOW tokens.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from tandem.engine.base import Sampling, Tensor
from tandem.engine.config import EngineConfig
from tandem.engine.core.split.middle import MiddleEngine
from tandem.engine.core.split.outer import CoreOuterEngine
from tandem.engine.torch import weights
from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.model import KVPool
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.runner import Outer, load_middle, load_outer
from tandem.engine.torch.weights import Part
from tandem.policies.speculation.arithmetic import MAX_WINDOW

ETAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
BLOCK = 16
AT_ONCE = 8
"""Questions answered together."""
Questions = Mapping[str, Sequence[list[int]]]
"""Prompts by group."""


@dataclass
class Rounds:
    """Sums over rounds. tokens: output tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0

    def add(self, other: Rounds) -> None:
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.tokens += other.tokens


@dataclass
class Figures:
    """Figures of a group of questions.

    agreed: by token of the greedy answers, whether the adapter drafts it.
    rounds: by η.
    """

    questions: int
    agreed: list[bool] = field(default_factory=list)
    rounds: dict[float, Rounds] = field(default_factory=dict)

    @property
    def acceptance(self) -> float:
        return sum(self.agreed) / len(self.agreed)

    def report(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        by_eta = {
            f"{eta:g}": asdict(sums)
            | {
                "accepted_a_round": round(sums.accepted / sums.rounds, 3),
                "tokens_a_round": round(sums.tokens / sums.rounds, 3),
            }
            for eta, sums in self.rounds.items()
        }
        return {
            "questions": self.questions,
            "tokens": len(self.agreed),
            "acceptance": round(self.acceptance, 4),
            "eta": by_eta,
        }


@dataclass(frozen=True)
class Parts:
    """The two parts of a split model as they serve.

    longest: tokens of question and answer.
    sent: what becomes of hidden states on their way to the middle.
    """

    outer: CoreOuterEngine
    middle: MiddleEngine
    longest: int
    sent: Callable[[Tensor], Tensor] = lambda hidden: hidden

    async def answer(self, prompt: list[int], eta: float) -> tuple[list[int], Rounds]:
        """The greedy answer, its end token included, and the rounds that it took."""
        ends = await self.outer.open(prompt, Sampling(max_tokens=self.longest - len(prompt)))
        cloud = await self.middle.open([], Sampling(max_tokens=self.longest))
        output: list[int] = []
        sums, finish = Rounds(), None
        while finish is None:
            proposal = await ends.propose(MAX_WINDOW, lambda probability: probability >= eta)
            deep = await cloud.forward(proposal.position, self.sent(proposal.hidden), proposal.wanted)
            verdict = (await ends.judge(deep.hidden)).verdict
            output += verdict.ids
            finish = verdict.finish
            sums.add(Rounds(1, len(proposal.ids), verdict.accepted, len(verdict.ids)))
        await ends.cancel()
        await cloud.cancel()
        return output, sums


@asynccontextmanager
async def opened(model: Path, first: int, adapter: Path, longest: int) -> AsyncIterator[Parts]:
    """The model, split behind its first layers."""
    room = AT_ONCE * -(-(longest + MAX_WINDOW) // BLOCK)
    config = EngineConfig(kv_blocks=room, block_size=BLOCK, max_sessions=AT_ONCE)
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        bundle.write(model, first, Path(folder), adapter)
        outer = load_outer(folder, config, device="cpu", threads=threads)
    middle = load_middle(model, first, config, device="cpu", threads=threads)
    try:
        yield Parts(outer, middle, longest)
    finally:
        await outer.close()
        await middle.close()


class Drafter:
    """The outer part alone, over whole answers at once."""

    def __init__(self, model: Path, first: int, adapter: Path) -> None:
        shallow = weights.load(model, torch.device("cpu"), torch.float32, Part(0, first))
        self._outer = Outer(weights.with_adapter(shallow, adapter))

    @torch.inference_mode()
    def said(self, prompt: Sequence[int], output: Sequence[int]) -> tuple[list[int], list[float]]:
        """Return, for each token of the answer, what the adapter drafts after all before it, and how probable that is
        to it."""
        outer, ids = self._outer, [*prompt, *output[:-1]]
        blocks = range(-(-len(ids) // BLOCK))
        pool = KVPool(outer.config, len(blocks), BLOCK, outer.device, outer.dtype)
        piece = BatchPiece(ids, 0, blocks, len(output))
        logits, _ = outer.shallow(outer.batch([piece], pool), pool)
        best = logits.softmax(-1).max(-1)
        return best.indices.tolist(), best.values.tolist()

    def agreed(self, prompt: Sequence[int], output: Sequence[int]) -> list[bool]:
        """Return for each token of the answer whether the adapter drafts it."""
        return [a == b for a, b in zip(self.said(prompt, output)[0], output, strict=True)]


async def measure(
    model: Path,
    first: int,
    adapter: Path,
    questions: Questions,
    longest: int,
    etas: Sequence[float] = ETAS,
    progress: Callable[[], object] = lambda: None,
) -> dict[str, Figures]:
    """Figures by group of questions. longest: tokens of question and answer; progress: hears of each answer."""
    figures = {group: Figures(len(prompts)) for group, prompts in questions.items()}
    drafter, free = Drafter(model, first, adapter), asyncio.Semaphore(AT_ONCE)

    async def one(found: Figures, prompt: list[int], eta: float) -> None:
        async with free:
            output, sums = await parts.answer(prompt, eta)
        found.rounds.setdefault(eta, Rounds()).add(sums)
        if eta == etas[0]:  # whatever η is, the answer is the model's own
            found.agreed += drafter.agreed(prompt, output)
        progress()

    async with opened(model, first, adapter, longest) as parts:
        for eta in etas:
            await asyncio.gather(
                *(one(figures[group], p, eta) for group in questions for p in questions[group])
            )
    return figures


def table(figures: Mapping[str, Figures]) -> Table:
    """Return a table of the figures."""
    shown = Table("η", *(f"{group}: {what}" for group in figures for what in ("accepted", "tokens")))
    shown.title = "a round; acceptance per token: " + ", ".join(
        f"{group} {found.acceptance:.3f}" for group, found in figures.items()
    )
    for eta in next(iter(figures.values())).rounds:
        sums = [found.rounds[eta] for found in figures.values()]
        cells = [f"{n / s.rounds:.2f}" for s in sums for n in (s.accepted, s.tokens)]
        shown.add_row(f"{eta:g}", *cells)
    return shown
