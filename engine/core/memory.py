"""Memory of sessions: admission, room for a step's grants, preemption and return, rollback.

With a second tier, the KV cache of preempted sessions goes to host memory, and is loaded from there where that is
faster than computing it again. Blocks are written through as they fill.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.engine.base import EngineStats
from tandem.engine.core.host_memory import Copy, HostTier
from tandem.engine.core.kvcache import BlockPool, BlockTable
from tandem.engine.core.sequence import Sequence
from tandem.policies.estimators.step_time import StepTimeModel


class Memory:
    """The sessions of one engine over its pool of blocks. Sessions that hold no blocks wait.

    max_sessions: sessions that hold blocks at once.
    step_time: model of the engine's step times, which gives the cost of recomputing.
    tier: host memory; None if there is none.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_sessions: int,
        stats: EngineStats,
        step_time: StepTimeModel,
        tier: HostTier | None = None,
    ) -> None:
        self.pool, self.max_sessions, self.tier = pool, max_sessions, tier
        self._stats, self._step_time = stats, step_time
        self.sequences: dict[int, Sequence] = {}
        self.waiting: list[Sequence] = []  # oldest first
        # Sessions with something to compute or to load, and a few that have none left.
        self._active: dict[int, Sequence] = {}
        self._leaving: list[tuple[Copy, BlockTable]] = []  # blocks that are freed when they are copied
        self._short = False  # a running session waits for `_leaving`
        self._credit = 0.0  # blocks that may be written through

    def add(self, s: Sequence) -> None:
        """Add a new session, which waits."""
        self.sequences[s.number] = self._active[s.number] = s
        self.waiting.append(s)

    def fork(self, s: Sequence, branch: Sequence) -> bool:
        """Add a session whose first `branch.computed` tokens are computed as those of `s` are. Return False, and change
        nothing, if there is no room for it."""
        there = s.admitted and s.loading is None and not self._full
        if not there or not self.pool.fork(s.table, branch.table, branch.computed):
            return False
        self.sequences[branch.number] = self._active[branch.number] = branch
        branch.admitted = True
        return True

    def adopt(self, s: Sequence, branch: Sequence) -> bool:
        """Swap the blocks of `s` for those of a branch whose tokens begin with its own. Return False, and change
        nothing, if the branch's are gone."""
        if not (s.admitted and branch.admitted) or branch.computed < s.computed:
            return False
        self._finish_copies(s)
        self._finish_copies(branch)
        s.table, branch.table = branch.table, s.table
        s.computed, branch.computed = branch.computed, s.computed
        return True

    def remove(self, s: Sequence) -> None:
        """Remove a session, and free what it holds."""
        del self.sequences[s.number]
        self._active.pop(s.number, None)
        self._finish_copies(s)
        self._release(s)
        self._forget(s, 0)
        if not s.admitted:
            self.waiting.remove(s)

    def wake(self, s: Sequence) -> None:
        """Mark a session that may have something to compute or to load."""
        self._active[s.number] = s

    @property
    def busy(self) -> bool:
        """Whether blocks are being copied out, which `admit` waits for."""
        return bool(self._leaving) or self._short

    @property
    def ready(self) -> list[Sequence]:
        """Sessions that can take part in the next step."""
        ready, rested = [], []
        for s in self._active.values():
            if s.loading is not None and self._loads(s):
                continue
            if s.goal <= s.computed:
                rested.append(s)
            elif s.admitted and not s.paused:
                ready.append(s)
        for s in rested:
            del self._active[s.number]
        return ready

    @property
    def copying_s(self) -> float | None:
        """Seconds until the next copy that a session waits for is done; None if no session waits for one."""
        loading = [s.loading.left_s for s in self.sequences.values() if s.loading is not None]
        return min([*loading, *(copy.left_s for copy, _ in self._leaving)], default=None)

    # -- policies.scheduling.control.MemoryView ----------------------------------------------------------

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.pool.block_size

    @property
    def capacity(self) -> int:
        """Tokens that the KV cache holds."""
        return self.pool.num_blocks * self.pool.block_size

    @property
    def places(self) -> int:
        """Sessions that may hold blocks at once."""
        return self.max_sessions

    @property
    def copy_s(self) -> float:
        """Seconds to load a token from host memory; infinite without host memory."""
        return float("inf") if self.tier is None else self.tier.block_s / self.pool.block_size

    @property
    def copy_queue_s(self) -> float:
        """Seconds until all submitted copies are done."""
        return 0.0 if self.tier is None else self.tier.queue_s

    # -- admission --------------------------------------------------------------------------------------

    def admit(self, now_s: float) -> None:
        """Let waiting sessions in, those with a task first, then by rank, while there is a place and their tokens fit
        into the free blocks.

        For a session with a task, admitted sessions at rest are preempted: they may wait for long, and for this very
        task. Those of which another task is expected soon give way to older ones alone.
        """
        if self._leaving:
            self._collect()
        short, self._short = self._short, False
        if short:  # the freed blocks are for sessions that already run
            return
        while candidates := [w for w in self.waiting if not w.paused]:
            s = min(candidates, key=lambda w: (w.task is None, w.rank))
            s.computed = self.pool.match(s.table, s.tokens, s.reusable)
            # the whole window's blocks, or it would be let in only to be preempted again
            need = min(len(s.tokens) + max(1, s.window - 1), s.prompt_len + s.sampling.max_tokens)
            while self._full or not self.pool.grow(s.table, need):
                idle = [
                    r
                    for r in self.sequences.values()
                    if r.admitted and (r.at_rest(now_s) or (r.pending == 0 and r.rank > s.rank))
                ]
                enough = self.pool.blocks_for(need) - len(s.table.blocks) <= self._coming
                if s.task is None or not idle or (enough and not self._full):
                    self._release(s)
                    return
                self.preempt(max(idle, key=_first_to_go(now_s)))
            s.admitted = s.fresh = True
            self.waiting.remove(s)
            found = s.computed
            self._bring_back(s)
            if s.loading is None and s.computed == s.table.shared * self.pool.block_size:
                alike = self.pool.begin_alike(s.table, s.tokens, s.reusable)
                found += alike
                s.computed += alike
            self._stats.tokens_queried += len(s.tokens)
            self._stats.tokens_from_prefix += found
            if not s.stay.begun:
                s.stay.found = found

    @property
    def _full(self) -> bool:
        return len(self.sequences) - len(self.waiting) >= self.max_sessions

    @property
    def _coming(self) -> int:
        """Blocks that are free, or will be when the copies under way are done."""
        return self.pool.available + sum(len(table.blocks) for _, table in self._leaving)

    def make_room(self, granted: list[tuple[Sequence, int]], now_s: float) -> list[tuple[Sequence, int]]:
        """Allocate blocks for every grant, by rank; return the grants that have them.

        Where the cache is full, sessions are preempted: first those at rest, then the last by rank. They return later.
        """
        placed: list[tuple[Sequence, int]] = []
        size = self.pool.block_size
        for s, grant in sorted(granted, key=_by_rank):
            if not s.admitted:  # preempted for one before it
                continue
            if s.computed + grant <= len(s.table.blocks) * size:
                placed.append((s, grant))
                continue
            while not self.pool.grow(s.table, s.computed + grant):
                if self.pool.blocks_for(s.computed + grant) - len(s.table.blocks) <= self._coming:
                    self._short = True  # it takes part when the blocks are copied
                    break
                victim = self._victim(s, placed, now_s)
                self.preempt(victim)
                if victim is s:
                    break
            else:
                placed.append((s, grant))
        return placed

    def _victim(self, needy: Sequence, placed: list[tuple[Sequence, int]], now_s: float) -> Sequence:
        busy = {id(s) for s, _ in placed}
        others = [
            s
            for s in self.sequences.values()
            if s.admitted and id(s) not in busy and (s.rank >= needy.rank or s.at_rest(now_s))
        ]
        return max(others, key=_first_to_go(now_s))

    def expected_s(self, now_s: float) -> float | None:
        """Return the seconds until a session whose client does not come back gives way to one that waits; None if none
        may have to."""
        if not any(s.task is not None for s in self.waiting):
            return None
        left_s = (s.absence.left_s(now_s) for s in self.sequences.values() if s.admitted and s.pending == 0)
        return min((each_s for each_s in left_s if each_s), default=None)

    # -- giving way and coming back ---------------------------------------------------------------------

    def preempt(self, s: Sequence) -> None:
        """Take the session's blocks; its computed tokens go to host memory as far as there is room."""
        self._finish_copies(s)
        if self.tier is not None and s.finish is None and s.computed > 0:
            self._save(s, self.tier)
        self._release(s)
        s.admitted = False
        self.wake(s)
        self.waiting.append(s)
        self.waiting.sort(key=lambda w: w.number)
        self._stats.preempted += 1
        s.stay.preempted += 1

    def _save(self, s: Sequence, tier: HostTier) -> None:
        there, blocks = len(s.hosts), self.pool.blocks_for(s.computed)
        hosts = tier.take(blocks - there)
        s.hosts += hosts
        s.stored = min(s.computed, len(s.hosts) * self.pool.block_size)
        if hosts:
            self._stats.blocks_written += len(hosts)
            copy = s.saving = tier.save(s.table.blocks[there : there + len(hosts)], hosts)
            leaving = BlockTable()  # blocks that are in host memory already are freed at once
            first = there if tier.settings.overlap else 0
            leaving.blocks = s.table.blocks[first:]
            del s.table.blocks[first:]
            self._leaving.append((copy, leaving))
            self._collect()

    def _bring_back(self, s: Sequence) -> None:
        """Load from host memory what the KV cache's prefixes do not have, if that is faster than recomputing it."""
        if self.tier is None:
            return
        size = self.pool.block_size
        first, last = s.computed // size, self.pool.blocks_for(s.stored)
        missing = max(0, s.stored - s.computed)
        queue_s = max(self.tier.queue_s, 0.0 if s.saving is None else s.saving.left_s)
        if queue_s + (last - first) * self.tier.block_s < missing * self._step_time.token_s:
            s.loading = self.tier.load(s.hosts[first:last], s.table.blocks[first:last], s.saving)
            self.wake(s)
            self._stats.tokens_loaded += missing
            s.computed = s.stored
        else:
            self._stats.tokens_recomputed += missing
            self._forget(s, s.stored // size)  # a block that is not full will change

    def _loads(self, s: Sequence) -> bool:
        """Return whether the session still waits for its blocks."""
        if s.loading is None:
            return False
        if s.loading.left_s > 0:
            return True
        self._finish_copies(s)
        return False

    def _finish_copies(self, s: Sequence) -> None:
        """Finish the copies that read or write the session's blocks. Blocks that it gave up are kept in `_leaving`
        until they are copied."""
        if not s.admitted:
            return
        for copy in (s.loading, s.saving):
            if copy is not None:
                copy.wait()
        s.loading = s.saving = None
        self._forget(s, s.computed // self.pool.block_size)  # a block that is not full will change

    def write_through(self, seconds: float, now_s: float) -> None:
        """Copy filled blocks to host memory, as many as the link carries in `seconds`, the duration of the next step.

        Blocks of sessions with the most unread tokens come first: those are preempted first (TokenFlow, section 5.2).
        """
        tier = self.tier
        if tier is None or not tier.settings.write_through:
            return
        self._credit = min(self._credit + seconds / tier.block_s if tier.block_s else 1e9, 1e9)
        if self._credit < 1:
            return
        full = [
            s
            for s in self.sequences.values()
            if s.admitted and s.loading is None and s.full_blocks(self.pool.block_size) > len(s.hosts)
        ]
        blocks: list[int] = []
        hosts: list[int] = []
        saved: list[Sequence] = []
        for s in sorted(full, key=_first_to_go(now_s), reverse=True):
            there = len(s.hosts)
            most = min(s.full_blocks(self.pool.block_size) - there, int(self._credit) - len(blocks))
            taken = tier.take(most)
            if not taken:
                break
            blocks += s.table.blocks[there : there + len(taken)]
            hosts += taken
            s.hosts += taken
            s.stored = len(s.hosts) * self.pool.block_size
            saved.append(s)
        self._credit = min(self._credit - len(blocks), 1.0)  # idle time of the link is not made up for
        if blocks:
            self._stats.blocks_written += len(blocks)
            copy = tier.save(blocks, hosts)
            for s in saved:
                s.saving = copy

    def _collect(self) -> None:
        """Free the blocks whose copies are done."""
        left = []
        for copy, table in self._leaving:
            if copy.left_s > 0:
                left.append((copy, table))
            else:
                copy.wait()
                self.pool.release(table)
        self._leaving = left

    def _forget(self, s: Sequence, blocks: int) -> None:
        """Keep only the first `blocks` host blocks of the session."""
        if self.tier is not None and len(s.hosts) > blocks:
            self.tier.give(s.hosts[blocks:])
            del s.hosts[blocks:]
        s.stored = min(s.stored, blocks * self.pool.block_size)

    def _release(self, s: Sequence) -> None:
        self.pool.release(s.table)
        s.computed = 0

    def roll_back(self, s: Sequence, tokens: int) -> None:
        """Roll back: at most the first `tokens` computed tokens stay valid."""
        self.wake(s)
        if tokens < max(s.computed, s.stored):
            self._finish_copies(s)
        s.recede(tokens)
        if tokens < s.stored:
            self._forget(s, tokens // self.pool.block_size)
        if s.admitted and not self.pool.truncate(s.table, s.computed):
            self.preempt(s)


def _by_rank(granted: tuple[Sequence, int]) -> int:
    return granted[0].rank


def _first_to_go(now_s: float) -> Callable[[Sequence], tuple[bool, int]]:
    """Return the key whose maximum is preempted first: sessions at rest, then the last by rank."""
    return lambda s: (s.at_rest(now_s), s.rank)
