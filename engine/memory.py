"""Which sessions hold KV blocks: admission, making room for a step's grants, preemption, rollback."""

from __future__ import annotations

from engine.base import EngineStats
from engine.kvcache import BlockPool
from engine.sequence import Sequence


class Memory:
    """The sessions of one engine over its pool of blocks; those that hold none wait.

    max_sessions: sessions that hold blocks at once.
    """

    def __init__(self, pool: BlockPool, max_sessions: int, stats: EngineStats) -> None:
        self.pool, self.max_sessions, self._stats = pool, max_sessions, stats
        self.sequences: dict[int, Sequence] = {}
        self.waiting: list[Sequence] = []  # oldest first

    def add(self, s: Sequence) -> None:
        self.sequences[s.session] = s
        self.waiting.append(s)

    def remove(self, session: int) -> Sequence | None:
        """The session, its blocks freed; None if there is no such session."""
        s = self.sequences.pop(session, None)
        if s is not None:
            self._release(s)
            if not s.admitted:
                self.waiting.remove(s)
        return s

    def admit(self) -> None:
        """Let waiting sessions in, those with a task first, the oldest first, while there is a place and
        their tokens fit into the free blocks. For a task, sessions that wait for their client give way:
        they may wait for long, and for this very task."""
        while self.waiting:
            s = min(self.waiting, key=lambda w: (w.task is None, w.number))
            s.computed = self.pool.match(s.table, s.tokens, min(s.confirmed, len(s.tokens) - 1))
            # what its window needs, or else it would be let in only to give way again
            need = min(len(s.tokens) + max(1, s.window - 1), s.prompt_len + s.sampling.max_tokens)
            while self._full or not self.pool.grow(s.table, need):
                resting = [r for r in self.sequences.values() if r.admitted and r.pending == 0]
                if s.task is None or not resting:
                    self._release(s)
                    return
                self.preempt(max(resting, key=lambda r: r.number))
            self._stats.tokens_from_prefix += s.computed
            s.admitted = True
            self.waiting.remove(s)

    @property
    def _full(self) -> bool:
        return len(self.sequences) - len(self.waiting) >= self.max_sessions

    def make_room(self, granted: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Blocks for every grant, the oldest sessions first. Where the cache is full, others give way:
        first those that wait for their client, then the youngest; they are recomputed later."""
        placed: list[tuple[Sequence, int]] = []
        for s, grant in sorted(granted, key=lambda item: item[0].number):
            if not s.admitted:  # gave way to an older one
                continue
            while not self.pool.grow(s.table, s.computed + grant):
                victim = self._victim(s, placed)
                self.preempt(victim)
                if victim is s:
                    break
            else:
                placed.append((s, grant))
        return placed

    def _victim(self, needy: Sequence, placed: list[tuple[Sequence, int]]) -> Sequence:
        busy = {id(s) for s, _ in placed}
        others = [
            s
            for s in self.sequences.values()
            if s.admitted and id(s) not in busy and (s.number >= needy.number or s.pending == 0)
        ]
        return max(others, key=lambda s: (s.pending == 0, s.number))

    def preempt(self, s: Sequence) -> None:
        self._release(s)
        s.admitted = False
        self.waiting.append(s)
        self.waiting.sort(key=lambda w: w.number)
        self._stats.preempted += 1

    def _release(self, s: Sequence) -> None:
        self.pool.release(s.table)
        s.computed = 0

    def roll_back(self, s: Sequence, computed: int) -> None:
        s.computed = computed
        if s.admitted and not self.pool.truncate(s.table, computed):
            self.preempt(s)
