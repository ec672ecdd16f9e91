"""The target with its own tokens at a larger model's pace, on hardware that is not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from tandem.engine import family
from tandem.engine.base import EngineInfo
from tandem.engine.config import EngineConfig, HostMemory
from tandem.engine.core.engine import CoreEngine
from tandem.engine.core.host_memory import HostCopies
from tandem.engine.core.runner import Outcome, Runner, Work
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.core.step import Core
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch import weights
from tandem.engine.torch.engine import apart, drive, place_of
from tandem.engine.torch.model import Model
from tandem.engine.torch.runner import TorchRunner


class Paced:
    """A runner whose steps take longer.

    step_s: that each of them takes at least, seconds.
    steps, late: how many there were, and how many of them this machine needed longer for than that.
    """

    def __init__(self, runner: Runner, step_s: float) -> None:
        self.steps = self.late = 0
        self._runner, self._step_s = runner, step_s

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        end_s = time.monotonic() + self._step_s
        outcomes = self._runner.run(work, complete)
        left_s = end_s - time.monotonic()
        self.steps, self.late = self.steps + 1, self.late + (left_s < 0)
        time.sleep(max(0.0, left_s))
        return outcomes

    def copy_block(self, source: int, target: int) -> None:
        self._runner.copy_block(source, target)

    def free_block(self, block: int) -> None:
        self._runner.free_block(block)

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        return self._runner.host_copies(settings, clock)


def paced(name: str, config: EngineConfig, step_s: float, threads: int = 1) -> tuple[CoreEngine, Paced]:
    """A model of the family on the CPU, and what paces it."""
    folder = family.path(name)
    place, dtype = place_of(folder, {"device": "cpu"})
    model = Model(apart(lambda: weights.load(folder, place, dtype), threads))
    tokenizer = Tokenizer.load(folder)
    info = EngineInfo(
        model=name,
        vocabulary=tokenizer.vocabulary,
        vocab_size=model.config.vocab_size,
        context=model.config.context,
        eos=tokenizer.eos,
    )
    runner = Paced(TorchRunner(model, config.kv_blocks, config.block_size), step_s)
    return drive(Core(runner, config), info, threads, partial(CoreEngine, tokenizer=tokenizer)), runner
