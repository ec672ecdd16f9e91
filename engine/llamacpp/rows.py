"""Books of a KV cache that is addressed by sequence and position, for a core that addresses it by blocks.

llama.cpp keeps a position's keys and values in a cell, together with the sequences that see it. A sequence of
llama.cpp is a row here: a session's tokens in their order, or, after the session, blocks that are kept for later ones.
A block may be in several rows; each sees the same cells. Nothing is ever copied but what rows see.
"""

from __future__ import annotations

from typing import Protocol

from tandem.engine.core.sequence import Sequence


class Cells(Protocol):
    """The cells of a KV cache. A range of positions ends before `end`."""

    def remove(self, row: int, first: int, end: int) -> None:
        """Have the row see no cell of these positions; cells that no row sees are free. end: -1 for all that follow."""
        ...

    def copy(self, source: int, target: int, first: int, end: int) -> None:
        """Have the row `target` see the cells that `source` sees at these positions."""
        ...


class Rows:
    """Rows, and the blocks that each of them sees.

    There is always a row for a session, and a place for a block that must be kept, if there are as many rows as twice
    the sessions that hold blocks at once, and one for each block that is kept without a session.
    """

    def __init__(self, cells: Cells, count: int, block_size: int) -> None:
        self._cells, self._size = cells, block_size
        self._blocks: list[dict[int, int]] = [{} for _ in range(count)]  # by row: index in the row → block
        self._owners: list[Sequence | None] = [None] * count
        self._lengths = [0] * count  # positions that a row may see
        self._row_of: dict[int, int] = {}  # by the number of a session
        self._holders: dict[int, set[int]] = {}  # block → rows that see it
        self._index: dict[int, int] = {}  # block → its index in every row that sees it

    def place(self, s: Sequence, count: int) -> int:
        """Return a row that sees the first `s.computed` tokens of the session and nothing else; `count` more will be
        computed in it."""
        row, size, blocks = self._row(s), self._size, s.table.blocks
        held, there = self._blocks[row], -(-s.computed // size)
        wrong = [index for index in range(there) if held.get(index) != blocks[index]]
        for index in [index for index in held if index >= there or index in wrong]:
            self._vacate(row, index)
        if wrong:  # the last one may reach beyond what is computed
            self._lengths[row] = max(self._lengths[row], (wrong[-1] + 1) * size)
        self._show(row, [(index, blocks[index]) for index in wrong])
        if self._lengths[row] > s.computed:
            self._cells.remove(row, s.computed, -1)
        end = s.computed + count
        for index in range(s.computed // size, -(-end // size)):
            block = blocks[index]
            for other in self._holders.get(block, set()) - {row}:  # they saw what it was
                self._drop(other, index)
            self._hold(row, index, block)
        self._lengths[row] = end
        return row

    def copy_block(self, source: int, target: int) -> None:
        """Keep the present content of a block as another one's, too."""
        if (rows := self._holders.get(source)) is None:
            return  # nothing was computed in it
        self._keep(next(iter(rows)), self._index[source], target)

    def free_block(self, block: int) -> None:
        """Free the cells of a block."""
        for row in tuple(self._holders.get(block, ())):
            self._drop(row, self._index[block])

    def row_of(self, block: int) -> int | None:
        """Return a row that sees the block; None if none does."""
        return next(iter(self._holders.get(block, ())), None)

    # -- rows -------------------------------------------------------------------------------------------

    def _row(self, s: Sequence) -> int:
        """Return the session's row, which may be a new one."""
        if (row := self._row_of.get(s.number)) is not None:
            return row
        kept = self._kept()
        row = next((row for row in kept if not self._blocks[row]), None) or min(kept, key=self._alone)
        if (before := self._owners[row]) is not None:
            del self._row_of[before.number]
        self._owners[row], self._row_of[s.number] = s, row
        for index in tuple(self._blocks[row]):
            self._vacate(row, index)
        return row

    def _kept(self) -> list[int]:
        """Rows without a session that holds blocks."""
        return [row for row, owner in enumerate(self._owners) if owner is None or not owner.table.blocks]

    def _alone(self, row: int) -> int:
        """Number of blocks that only this row sees."""
        return sum(len(self._holders[block]) == 1 for block in self._blocks[row].values())

    # -- blocks in rows ---------------------------------------------------------------------------------

    def _show(self, row: int, wanted: list[tuple[int, int]]) -> None:
        """Have the row see these (index, block), runs of one source together."""
        while wanted:
            source = next(iter(self._holders[wanted[0][1]]))
            first = count = wanted[0][0]
            for index, block in wanted:
                if index != count or source not in self._holders[block]:
                    break
                count += 1
            self._cells.copy(source, row, first * self._size, count * self._size)
            for index, block in wanted[: count - first]:
                self._hold(row, index, block)
            del wanted[: count - first]

    def _vacate(self, row: int, index: int) -> None:
        """Remove a block from the row; if no other row sees it, keep it in another one."""
        block = self._blocks[row][index]
        if len(self._holders[block]) == 1:
            self._keep(row, index, block)
        self._drop(row, index)

    def _keep(self, source: int, index: int, block: int) -> None:
        """Keep what the row `source` sees at `index` as `block` in a row without a session."""
        for row in self._kept():
            if row == source:
                continue
            there = self._blocks[row].get(index)
            if there is not None:
                if len(self._holders[there]) == 1:
                    continue
                self._drop(row, index)
            self._cells.copy(source, row, index * self._size, (index + 1) * self._size)
            self._lengths[row] = max(self._lengths[row], (index + 1) * self._size)
            self._hold(row, index, block)
            return
        raise AssertionError("more blocks are kept than there are rows for")

    def _hold(self, row: int, index: int, block: int) -> None:
        self._blocks[row][index] = block
        self._holders.setdefault(block, set()).add(row)
        self._index[block] = index

    def _drop(self, row: int, index: int) -> None:
        self._cells.remove(row, index * self._size, (index + 1) * self._size)
        block = self._blocks[row].pop(index)
        holders = self._holders[block]
        holders.remove(row)
        if not holders:
            del self._holders[block], self._index[block]
