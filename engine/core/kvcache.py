"""Paged KV cache: fixed-size blocks, a block table per sequence, whole blocks shared between equal prefixes.

Where two texts part within a block, the later one begins with a copy of the earlier one's block.

This module keeps the books; the tensors are in `engine.torch.model.KVPool`. Token positions of a sequence map to
slots: slot = table[position // block_size] · block_size + position % block_size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

# A block's content has an exact name, its parent's name and its tokens: unlike a hash, it cannot collide.
_Key = tuple[int, tuple[int, ...]]


class BlockTable:
    """The blocks of one sequence, in order.

    shared: leading blocks whose content is registered.
    tail: name of the last registered block; 0 for the empty prefix.
    """

    __slots__ = ("blocks", "shared", "tail")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.shared = 0
        self.tail = 0


class BlockPool:
    """Allocates `num_blocks` blocks of `block_size` tokens.

    A block is used (held by one or more tables), cached (held by none, but its content is registered and can be taken
    up again) or free. Where no free block is left, cached blocks are reused, least recently used first, so `available`
    counts both.

    copy_block(source, target): copies a block's tensors, for a shared block that one sequence rewrites.
    free_block: called with a block whose content is not needed any more.
    max_cached: most cached blocks; None for no such limit.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        copy_block: Callable[[int, int], None],
        free_block: Callable[[int], None],
        max_cached: int | None = None,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._copy_block, self._free_block = copy_block, free_block
        self._max_cached = num_blocks if max_cached is None else max_cached
        self._untouched = 0  # first block that was never used, nor any after it
        self._free: list[int] = []  # used and released, among those before `_untouched`
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references: dict[int, int] = {}  # holders of each used block
        self._by_key: dict[_Key, int] = {}  # registered content → block
        self._key_of: dict[int, _Key] = {}
        self._name_of: dict[int, int] = {}  # block → name that its children use as parent
        self._latest: dict[tuple[int, int], int] = {}  # parent's name and first token → block registered last
        self._last_name = 0

    @property
    def available(self) -> int:
        """Number of blocks that can be allocated."""
        return self.num_blocks - len(self._references)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def match(self, table: BlockTable, tokens: Sequence[int], limit: int) -> int:
        """Fill the empty `table` with registered blocks equal to the beginning of `tokens`, `limit` tokens at most;
        return the number of tokens that they cover."""
        size = self.block_size
        for start in range(0, limit - size + 1, size):
            block = self._by_key.get((table.tail, tuple(tokens[start : start + size])))
            if block is None:
                break
            self._hold(block)
            table.blocks.append(block)
            table.tail = self._name_of[block]
        table.shared = len(table.blocks)
        return table.shared * size

    def begin_alike(self, table: BlockTable, tokens: Sequence[int], limit: int) -> int:
        """Begin the first block behind those that `match` found as a copy of one that begins with the same tokens.

        limit: most leading tokens of `tokens` that may be taken.

        Return the number of tokens that the copy has in common with `tokens`; 0, and nothing is copied, without one.
        """
        start = table.shared * self.block_size
        if not start < limit or table.shared == len(table.blocks):
            return 0
        found = self._latest.get((table.tail, tokens[start]))
        if found is None:
            return 0
        there = self._key_of[found][1][: limit - start]
        count = next((i for i, token in enumerate(there) if token != tokens[start + i]), len(there))
        self._copy_block(found, table.blocks[table.shared])
        return count

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Give `table` the blocks for `tokens` tokens. Return False, and change nothing, if there are too few."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing > self.available:
            return False
        for _ in range(missing):
            table.blocks.append(self._take())
        return True

    def fork(self, table: BlockTable, branch: BlockTable, tokens: int) -> bool:
        """Give the empty `branch` the first `tokens` tokens of `table`: its registered blocks, and copies of the
        others. Return False, and change nothing, if there are too few blocks for the copies."""
        shared, count = min(table.shared, tokens // self.block_size), self.blocks_for(tokens)
        if count - shared > self.available:
            return False
        for block in table.blocks[:shared]:
            self._hold(block)
            branch.blocks.append(block)
        for block in table.blocks[shared:count]:
            branch.blocks.append(self._take())
            self._copy_block(block, branch.blocks[-1])
        branch.shared = shared
        branch.tail = self._name_of[branch.blocks[shared - 1]] if shared else 0
        return True

    def register(self, table: BlockTable, tokens: Sequence[int], computed: int) -> None:
        """Make the full blocks among the first `computed` tokens available to other sequences.

        Use it only for tokens that will not be rolled back (a prompt, accepted output): registering others is wasted
        work.
        """
        size = self.block_size
        while (table.shared + 1) * size <= computed:
            start = table.shared * size
            key = (table.tail, tuple(tokens[start : start + size]))
            block = table.blocks[table.shared]
            twin = self._by_key.get(key)
            if twin is None:
                self._last_name += 1
                self._by_key[key], self._key_of[block] = block, key
                self._name_of[block] = self._last_name
                self._latest[table.tail, key[1][0]] = block
            elif twin != block:  # another sequence registered the same content first: share its block
                self._hold(twin)
                self._release(block)
                table.blocks[table.shared] = block = twin
            table.tail = self._name_of[block]
            table.shared += 1

    def truncate(self, table: BlockTable, tokens: int) -> bool:
        """Roll back to the first `tokens` tokens, and give up the blocks beyond.

        If that cuts a shared block, the sequence gets its own copy. Return False, and change nothing, if there is no
        block for the copy.
        """
        keep = self.blocks_for(tokens)
        whole = tokens // self.block_size
        if keep == len(table.blocks) and whole >= table.shared:
            return True
        if whole < table.shared and keep > whole and not self._own(table, whole):
            return False
        for block in table.blocks[keep:]:
            self._release(block)
        del table.blocks[keep:]
        if whole < table.shared:
            table.shared = whole
            table.tail = self._name_of[table.blocks[whole - 1]] if whole else 0
        return True

    def release(self, table: BlockTable) -> None:
        """Give up all blocks; registered ones stay cached for later prefixes."""
        for block in reversed(table.blocks):  # children are evicted before their parents
            self._release(block)
        table.blocks.clear()
        table.shared = table.tail = 0

    def _own(self, table: BlockTable, index: int) -> bool:
        """Make block `index` of the table unregistered and unshared, so that it may be written."""
        block = table.blocks[index]
        if self._references[block] == 1:
            self._forget(block)
            return True
        if not self.available:
            return False
        copy = self._take()
        self._copy_block(block, copy)
        self._release(block)
        table.blocks[index] = copy
        return True

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        elif self._untouched < self.num_blocks:
            block = self._untouched
            self._untouched += 1
        else:
            block = self._evict()
        self._references[block] = 1
        return block

    def _hold(self, block: int) -> None:
        references = self._references.get(block, 0)
        if not references:
            del self._cached[block]
        self._references[block] = references + 1

    def _release(self, block: int) -> None:
        references = self._references[block] - 1
        if references:
            self._references[block] = references
        else:
            del self._references[block]
            if block in self._key_of:
                self._cached[block] = None
                if len(self._cached) > self._max_cached:
                    self._free.append(self._evict())
            else:
                self._free_block(block)
                self._free.append(block)

    def _evict(self) -> int:
        """Remove the content of the cached block that was used least recently, and return the block."""
        block, _ = self._cached.popitem(last=False)
        self._forget(block)
        self._free_block(block)
        return block

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._by_key[key]
            del self._name_of[block]
            if self._latest.get((key[0], key[1][0])) == block:
                del self._latest[key[0], key[1][0]]
