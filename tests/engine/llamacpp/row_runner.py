"""The plain runner over cells that are addressed as llama.cpp addresses them, by row and position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import HostCopies
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.llamacpp.rows import Rows
from tests.engine.core.plain_runner import PlainRunner


class FakeCells:
    """Cells of (token, position), each seen by some rows; as strict as llama.cpp is."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cells: list[tuple[int, int, set[int]]] = []

    def remove(self, row: int, first: int, end: int) -> None:
        for _, position, rows in self.cells:
            if first <= position and (end < 0 or position < end):
                rows.discard(row)
        self.cells = [cell for cell in self.cells if cell[2]]

    def copy(self, source: int, target: int, first: int, end: int) -> None:
        for _, position, rows in self.cells:
            if first <= position < end and source in rows:
                rows.add(target)

    def read(self, row: int) -> list[int]:
        """Return the tokens that the row sees. Positions must be complete and unique."""
        seen = sorted((position, token) for token, position, rows in self.cells if row in rows)
        assert [position for position, _ in seen] == list(range(len(seen))), "a row has gaps or doubles"
        return [token for _, token in seen]

    def add(self, row: int, tokens: Sequence[int]) -> None:
        """Compute tokens behind what the row sees."""
        length = len(self.read(row))
        self.cells += [(token, position, {row}) for position, token in enumerate(tokens, length)]
        assert len(self.cells) <= self.capacity, "the KV cache is over-full"


class RowRunner(PlainRunner):
    """See PlainRunner. sessions: that hold blocks at once; of the core's default, few are in use."""

    def __init__(self, num_blocks: int, block_size: int, sessions: int = 16) -> None:
        super().__init__(num_blocks, block_size)
        self.fake = FakeCells(num_blocks * block_size)
        self.rows = Rows(self.fake, 2 * sessions + num_blocks, block_size)
        self._blocks = num_blocks

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        for s, grant in work:
            row = self.rows.place(s, grant)
            assert len(self.fake.read(row)) == s.computed
            self.fake.add(row, list(s.upcoming(grant)))
        self._cells = self.cells()
        return [self._outcome(s) for s in complete]

    def copy_block(self, source: int, target: int) -> None:
        self.rows.copy_block(source, target)

    def free_block(self, block: int) -> None:
        self.rows.free_block(block)

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        raise NotImplementedError

    def cells(self) -> list[tuple[int, int]]:
        found = [(0, -1)] * (self._blocks * self._size)
        for block in range(self._blocks):
            for token, position, rows in self.fake.cells:
                holders = self.rows._holders.get(block, set())
                if rows & holders and position // self._size == self.rows._index[block]:
                    at = block * self._size + position % self._size
                    if self.rows.row_of(block) in rows:
                        found[at] = (token, position)
        return found
