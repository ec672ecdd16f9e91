"""A runner without a model and without torch: what it says is a hash of what it has cached.

Its copies to and from host memory move the data as late as they may: when they are done. So a block that is used
for something else too early, or read before it has been written, changes the output for certain.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from tandem.engine.base import Sampling
from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import Copy, EmulatedBus, HostCopies
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.core.tasks import DraftTask, VerifyTask
from tests.engine.core.core_driver import EOS, VOCAB, Q

BLOCK_BYTES = 64.0
Cells = list[tuple[int, int]]
"""(token, position) of each slot."""


class PlainRunner:
    """See KnownRunner. A sampled token depends on the seed, a drafted one is sometimes another than the runner's own,
    and a stated q is met by accepting each of its drafts by a chance of its own."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._size = block_size
        self._cells: Cells = [(0, -1)] * (num_blocks * block_size)
        self._copies: PlainCopies | None = None

    # -- what it says -----------------------------------------------------------------------------------

    def verdict(
        self, prompt: list[int], output: list[int], sampling: Sampling, drafts: list[int], q: Q | None
    ) -> tuple[int, int]:
        tokens = prompt + output
        accepted = 0
        while accepted < len(drafts) and self._stands(
            tokens + drafts[:accepted], sampling, drafts, accepted, q
        ):
            accepted += 1
        return accepted, _token(tokens + drafts[:accepted], sampling, "own")

    def _stands(self, before: list[int], sampling: Sampling, drafts: list[int], at: int, q: Q | None) -> bool:
        if q is None or sampling.greedy:
            return drafts[at] == _token(before, sampling, "own")
        ids, probs = q
        stated = float(probs[at][ids[at] == drafts[at]].sum())
        return random.Random(f"{before} {sampling.seed} {stated}").random() < 0.7

    def proposal(
        self, prompt: list[int], output: list[int], sampling: Sampling
    ) -> tuple[int, tuple[list[int], list[float]] | None]:
        tokens = prompt + output
        if sampling.greedy:
            return _token(tokens, sampling, "own"), None
        drafted, other = _token(tokens, sampling, "draft"), _token(tokens, sampling, "other")
        return drafted, ([drafted, other], [0.75, 0.25])

    # -- the runner -------------------------------------------------------------------------------------

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        if self._copies is not None:
            self._copies.land()
        for s, grant in work:
            ids = s.upcoming(grant)
            assert len(ids) == grant > 0
            for position, token in enumerate(ids, s.computed):
                self._cells[self._slot(s, position)] = (token, position)
        return [self._outcome(s) for s in complete]

    def _outcome(self, s: Session) -> Outcome:
        task = s.task
        assert task is not None
        read = [self._cells[self._slot(s, position)] for position in range(s.goal)]
        assert [position for _, position in read] == list(range(s.goal)), (
            "a block holds positions of another place"
        )
        tokens = [token for token, _ in read]
        beyond = s.goal - len(task.drafts)  # drafts under verification are cached as well
        prompt, output = tokens[: s.prompt_len], tokens[s.prompt_len : beyond]
        if isinstance(task, DraftTask):
            token, q = self.proposal(prompt, output, s.sampling)
            arrays = None if q is None else (np.array(q[0], np.int32), np.array(q[1], np.float32))
            return Outcome(0, token, None, arrays)
        stated = None
        if isinstance(task, VerifyTask) and task.q_ids is not None and task.q_probs is not None:
            stated = task.q_ids, task.q_probs
        return Outcome(*self.verdict(prompt, output, s.sampling, tokens[beyond:], stated))

    def copy_block(self, source: int, target: int) -> None:
        _copy(self._cells, source, self._cells, target, self._size)

    def free_block(self, block: int) -> None:
        self._cells[block * self._size : (block + 1) * self._size] = [(0, -1)] * self._size

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        self._copies = PlainCopies(self._cells, self._size, settings, clock)
        return self._copies

    # -- what is cached ---------------------------------------------------------------------------------

    def cells(self) -> Cells:
        return self._cells if self._copies is None else self._copies.landed()[0]

    def host_cells(self) -> Cells:
        return [] if self._copies is None else self._copies.landed()[1]

    def _slot(self, s: Session, position: int) -> int:
        return s.table.blocks[position // self._size] * self._size + position % self._size


class PlainCopies:
    """Copies that move their data when they are done, not before."""

    def __init__(
        self, cells: Cells, block_size: int, settings: HostMemory, clock: Callable[[], float]
    ) -> None:
        self._device, self._size, self._clock = cells, block_size, clock
        self._host: Cells = [(0, -1)] * (settings.blocks * block_size)
        self._bus = EmulatedBus(BLOCK_BYTES, settings, clock)
        self._under_way: list[_Moving] = []

    def save(self, blocks: Sequence[int], hosts: Sequence[int]) -> Copy:
        return self._begin(self._bus.save(blocks, hosts), True, blocks, hosts)

    def load(self, hosts: Sequence[int], blocks: Sequence[int], after: Copy | None = None) -> Copy:
        return self._begin(self._bus.load(hosts, blocks, after), False, hosts, blocks)

    @property
    def queue_s(self) -> float:
        return self._bus.queue_s

    @property
    def block_s(self) -> float:
        return self._bus.block_s

    def _begin(self, timed: Copy, saves: bool, sources: Sequence[int], targets: Sequence[int]) -> Copy:
        done_at = self._clock() + timed.left_s
        copy = _Moving(self, timed, done_at, saves, list(zip(sources, targets, strict=True)))
        self._under_way.append(copy)
        self._under_way.sort(key=lambda copy: copy.done_at)
        return copy

    def land(self, now_s: float | None = None) -> None:
        """Move the data of the copies that are done by then, in the order in which they were."""
        now_s = self._clock() if now_s is None else now_s
        while self._under_way and self._under_way[0].done_at <= now_s:
            self._move(self._under_way.pop(0), self._device, self._host)

    def landed(self) -> tuple[Cells, Cells]:
        """The KV cache and host memory when all copies are done."""
        device, host = list(self._device), list(self._host)
        for copy in self._under_way:
            self._move(copy, device, host)
        return device, host

    def _move(self, copy: _Moving, device: Cells, host: Cells) -> None:
        source, target = (device, host) if copy.saves else (host, device)
        for a, b in copy.pairs:
            _copy(source, a, target, b, self._size)


class _Moving:
    """saves: from the KV cache to host memory; pairs: of source and target blocks."""

    def __init__(
        self, copies: PlainCopies, timed: Copy, done_at: float, saves: bool, pairs: list[tuple[int, int]]
    ) -> None:
        self._copies, self._timed, self.done_at = copies, timed, done_at
        self.saves, self.pairs = saves, pairs

    @property
    def left_s(self) -> float:
        return self._timed.left_s

    def wait(self) -> None:
        self._copies.land(self.done_at)


def _copy(source: Cells, a: int, target: Cells, b: int, size: int) -> None:
    target[b * size : (b + 1) * size] = source[a * size : (a + 1) * size]


def _token(before: list[int], sampling: Sampling, kind: str) -> int:
    """The end one is rare."""
    chance = random.Random(f"{before} {kind} {0 if sampling.greedy else sampling.seed + 1}")
    token = chance.randrange(VOCAB)
    return chance.randrange(VOCAB) if token == EOS else token
