"""The books of the KV cache, against a simulation of what each block holds."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem.engine.core.kvcache import BlockPool, BlockTable

SIZE, BLOCKS = 3, 9
tokens_ = st.lists(st.integers(0, 1), min_size=1, max_size=11)  # a tiny alphabet: prefixes collide


class Held:
    """A sequence: what it should read at each position, and how far it is computed."""

    def __init__(self) -> None:
        self.table, self.tokens = BlockTable(), []


class BlockPoolMachine(RuleBasedStateMachine):
    """Sequences come, grow, register, roll back and go; every one must always read its own tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: list[list[int | None]] = [[None] * SIZE for _ in range(BLOCKS)]
        self.copies = 0
        self.pool = BlockPool(BLOCKS, SIZE, self.copy, self.free)
        self.held: list[Held] = []

    def copy(self, source: int, target: int) -> None:
        self.contents[target] = list(self.contents[source])
        self.copies += 1

    def free(self, block: int) -> None:
        self.contents[block] = [None] * SIZE

    def write(self, s: Held, tokens: list[int]) -> None:
        for token in tokens:
            position = len(s.tokens)
            block = s.table.blocks[position // SIZE]
            holders = sum(block in other.table.blocks for other in self.held)
            assert holders == 1, "a sequence writes into a block that another holds"
            assert block not in self.pool._key_of, "a sequence writes into a registered block"
            self.contents[block][position % SIZE] = token
            s.tokens.append(token)

    def state(self) -> tuple:
        pool = self.pool
        return (
            list(pool._free),
            list(pool._cached),
            dict(pool._references),
            pool._untouched,
            dict(pool._by_key),
            [(list(s.table.blocks), s.table.shared, s.table.tail) for s in self.held],
        )

    @precondition(lambda self: len(self.held) < 5)
    @rule(tokens=tokens_, spare=st.integers(0, 2))
    def open(self, tokens: list[int], spare: int) -> None:
        s = Held()
        matched = self.pool.match(s.table, tokens, len(tokens) - spare)
        assert matched <= max(0, len(tokens) - spare)
        assert matched == s.table.shared * SIZE == len(s.table.blocks) * SIZE
        s.tokens = tokens[:matched]
        self.held.append(s)
        if self.pool.grow(s.table, len(tokens)):
            self.write(s, tokens[matched:])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=tokens_)
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        s = data.draw(st.sampled_from(self.held))
        before, available = self.state(), self.pool.available
        missing = -(-(len(s.tokens) + len(more)) // SIZE) - len(s.table.blocks)
        if self.pool.grow(s.table, len(s.tokens) + len(more)):
            assert self.pool.available == available - max(0, missing)
            self.write(s, more)
        else:
            assert missing > available
            assert self.state() == before

    @precondition(lambda self: 0 < len(self.held) < 5)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        s, branch = data.draw(st.sampled_from(self.held)), Held()
        keep = data.draw(st.integers(0, len(s.tokens)))
        before, available = self.state(), self.pool.available
        copies = -(-keep // SIZE) - min(s.table.shared, keep // SIZE)
        if self.pool.fork(s.table, branch.table, keep):
            assert self.pool.available == available - copies
            branch.tokens = s.tokens[:keep]
            self.held.append(branch)
        else:
            assert copies > available
            assert self.state() == before

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        s = data.draw(st.sampled_from(self.held))
        computed = data.draw(st.integers(0, len(s.tokens)))
        shared = s.table.shared
        self.pool.register(s.table, s.tokens, computed)
        assert s.table.shared == max(shared, computed // SIZE)
        again = BlockTable()  # what is registered is found
        assert self.pool.match(again, s.tokens, computed) >= computed // SIZE * SIZE
        self.pool.release(again)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        s = data.draw(st.sampled_from(self.held))
        keep = data.draw(st.integers(0, len(s.tokens)))
        before, copies = self.state(), self.copies
        cuts = s.table.shared * SIZE > keep and keep % SIZE > 0
        cut_block = s.table.blocks[keep // SIZE] if cuts else None
        alone = cut_block is None or sum(cut_block in other.table.blocks for other in self.held) == 1
        if self.pool.truncate(s.table, keep):
            del s.tokens[keep:]
            assert len(s.table.blocks) <= -(-keep // SIZE)
            assert self.copies == copies + (not alone)
        else:
            assert not alone
            assert self.pool.available == 0
            assert self.state() == before

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        s = data.draw(st.sampled_from(self.held))
        self.held.remove(s)
        self.pool.release(s.table)
        assert s.table.blocks == []
        assert (s.table.shared, s.table.tail) == (0, 0)

    @invariant()
    def every_block_is_counted_once(self) -> None:
        pool = self.pool
        references = Counter(block for s in self.held for block in s.table.blocks)
        assert references == pool._references
        free = {*pool._free, *range(pool._untouched, BLOCKS)}
        cached, used = set(pool._cached), set(references)
        assert len(pool._free) == len(set(pool._free))
        assert sorted([*free, *cached, *used]) == list(range(BLOCKS))
        assert pool.available == len(free) + len(cached)
        assert cached <= set(pool._key_of), "only what can be found again is cached"
        assert not free & set(pool._key_of), "a free block can still be found"

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for block in self.pool._free:
            self.contents[block] = [None] * SIZE
        for s in self.held:
            read = [self.contents[s.table.blocks[i // SIZE]][i % SIZE] for i in range(len(s.tokens))]
            assert read == s.tokens
            assert s.table.shared * SIZE <= len(s.tokens)

    @invariant()
    def a_registered_block_holds_what_it_is_registered_for(self) -> None:
        assert {b: k for k, b in self.pool._by_key.items()} == self.pool._key_of
        assert set(self.pool._name_of) == set(self.pool._key_of)
        for block, (_, tokens) in self.pool._key_of.items():
            assert tuple(self.contents[block]) == tokens

    @invariant()
    def only_equal_prefixes_share_a_block(self) -> None:
        for a, b in combinations(self.held, 2):
            for block in set(a.table.blocks) & set(b.table.blocks):
                at = a.table.blocks.index(block)
                assert at == b.table.blocks.index(block)
                assert at < min(a.table.shared, b.table.shared)
                assert a.tokens[: (at + 1) * SIZE] == b.tokens[: (at + 1) * SIZE]

    def teardown(self) -> None:
        for s in self.held:
            self.pool.release(s.table)
        assert self.pool.available == BLOCKS


BlockPoolMachine.TestCase.settings = settings(stateful_step_count=40)
TestBlockPool = BlockPoolMachine.TestCase


def make(blocks: int, copied: list[tuple[int, int]] | None = None) -> BlockPool:
    record = [] if copied is None else copied
    return BlockPool(blocks, 2, lambda source, target: record.append((source, target)), lambda block: None)


def computed(pool: BlockPool, tokens: list[int]) -> BlockTable:
    """A sequence with all its tokens computed and registered."""
    table = BlockTable()
    pool.match(table, tokens, len(tokens))
    assert pool.grow(table, len(tokens))
    pool.register(table, tokens, len(tokens))
    return table


def test_a_prefix_is_shared_while_held_and_after():
    pool = make(8)
    first = computed(pool, [1, 2, 3, 4, 5])
    second = BlockTable()
    assert pool.match(second, [1, 2, 3, 4, 6, 7], 6) == 4
    assert second.blocks == first.blocks[:2]
    assert pool.available == 8 - 3
    pool.release(first)
    pool.release(second)
    assert pool.available == 8
    third = BlockTable()
    assert pool.match(third, [1, 2, 9], 3) == 2


@pytest.mark.parametrize(
    ("text", "limit", "common"),
    [
        ([1, 1, 2, 2, 5, 6], 6, 2),  # as far as the latest sibling with that first token goes
        ([1, 1, 2, 2, 5, 6], 5, 1),
        ([1, 1, 2, 2, 5, 6], 4, 0),
        ([1, 1, 2, 2, 9, 6], 6, 0),
        ([2, 2, 2, 2, 5, 6], 6, 0),  # another parent
    ],
)
def test_a_block_begins_as_its_nearest_sibling_does(text: list[int], limit: int, common: int):
    copies: list[tuple[int, int]] = []
    pool = BlockPool(9, 4, lambda source, target: copies.append((source, target)), lambda block: None)
    for ending in ([5, 6, 7, 8], [5, 6, 6, 6], [4, 4, 4, 4]):
        pool.release(computed(pool, [1, 1, 2, 2, *ending]))
    table = BlockTable()
    assert pool.match(table, text, limit) == (4 if text[0] == 1 and limit >= 4 else 0)
    assert pool.grow(table, len(text))
    assert pool.begin_alike(table, text, limit) == common
    assert [target for _, target in copies] == ([table.blocks[1]] if common else [])


def test_what_was_evicted_begins_no_block():
    pool = make(3)
    for ending in ([5, 6], [5, 7]):
        pool.release(computed(pool, [1, 1, *ending]))
    full = computed(pool, [3, 3, 4, 4, 5, 5])
    pool.release(full)
    table = BlockTable()
    assert pool.grow(table, 2)
    assert pool.begin_alike(table, [1, 2], 2) == 0


def test_match_leaves_what_the_limit_excludes():
    pool = make(8)
    computed(pool, [1, 2, 3, 4])
    table = BlockTable()
    assert pool.match(table, [1, 2, 3, 4], 3) == 2  # the last token is needed for its logits


def test_cached_blocks_are_evicted_least_recently_used_first_and_leaves_first():
    pool = make(4)
    old, new = computed(pool, [1, 1, 2, 2]), computed(pool, [3, 3, 4, 4])
    pool.release(old)
    pool.release(new)
    taken = BlockTable()
    assert pool.grow(taken, 6)  # three of the four cached blocks
    table = BlockTable()
    assert pool.match(table, [1, 1, 2, 2], 4) == 0
    assert pool.match(table, [3, 3, 4, 4], 4) == 2  # its leaf was evicted, its root not


def test_no_block_is_evicted_while_it_is_held():
    pool = make(3)
    held = computed(pool, [1, 1, 2, 2])
    other = BlockTable()
    assert not pool.grow(other, 4)
    assert other.blocks == []
    assert pool.grow(other, 2)
    assert not set(other.blocks) & set(held.blocks)


def test_twins_computed_side_by_side_become_one():
    pool = make(4)
    a, b = BlockTable(), BlockTable()
    for table in (a, b):
        assert pool.grow(table, 4)
    for table in (a, b):
        pool.register(table, [5, 6, 7, 8], 4)
    assert a.blocks == b.blocks
    assert pool.available == 2


def test_rolling_back_into_a_shared_block_copies_it():
    copied: list[tuple[int, int]] = []
    pool = make(4, copied)
    a = computed(pool, [1, 2, 3, 4])
    b = computed(pool, [1, 2, 3, 4])
    assert pool.truncate(b, 3)
    assert copied == [(a.blocks[1], b.blocks[1])]
    assert a.blocks[0] == b.blocks[0]
    assert (a.shared, b.shared) == (2, 1)


@pytest.mark.parametrize("keep", [0, 2])
def test_rolling_back_to_a_block_boundary_copies_nothing(keep: int):
    copied: list[tuple[int, int]] = []
    pool = make(2, copied)
    computed(pool, [1, 2, 3, 4])
    b = computed(pool, [1, 2, 3, 4])
    assert pool.truncate(b, keep)
    assert copied == []


def test_rolling_back_without_room_for_the_copy_changes_nothing():
    pool = make(2)
    computed(pool, [1, 2, 3, 4])
    b = computed(pool, [1, 2, 3, 4])
    before = list(b.blocks)
    assert not pool.truncate(b, 3)
    assert b.blocks == before
    assert b.shared == 2


def test_a_rewritten_block_is_found_under_its_old_content_no_more():
    pool = make(4)
    table = computed(pool, [1, 2, 3, 4])
    assert pool.truncate(table, 3)
    again = BlockTable()
    assert pool.match(again, [1, 2, 3, 4], 4) == 2
