"""Grouping of pieces into attention calls. Their results are tested in test_model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.attention.padded import PaddedLayout, shape_class
from tests.engine.torch.attention.shapes import SHAPE

BLOCK = 4


@pytest.fixture(scope="module")
def layout() -> PaddedLayout:
    return PaddedLayout(SHAPE, torch.device("cpu"), torch.float32)


@st.composite
def pieces(draw: st.DrawFn) -> list[BatchPiece]:
    made = []
    for start, count in draw(
        st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 1, 1, 5, 20])), min_size=1, max_size=12)
    ):
        blocks = -(-(start + count) // BLOCK)
        made.append(BatchPiece([7] * count, start, list(range(5, 5 + blocks)), 1))
    return sorted(made, key=lambda p: (len(p.ids), p.start))


@given(pieces(), st.sampled_from([None, 1, 50, 200]))
def test_groups_cover_the_pieces_in_order_and_gather_no_more_than_they_may(
    layout: PaddedLayout, batch: list[BatchPiece], most: int | None
) -> None:
    groups = layout.groups(batch, BLOCK, most)
    assert sum(group.count for group in groups) == len(batch)
    rest = list(batch)
    for group in groups:
        members, rest = rest[: group.count], rest[group.count :]
        assert len({shape_class(p) for p in members}) == 1
        assert group.width == max(len(p.ids) for p in members)
        context = group.mask.shape[-1]
        assert context == -(-max(p.end for p in members) // BLOCK) * BLOCK
        assert group.count == 1 or most is None or group.count * context <= most


@given(pieces())
def test_alike_pieces_share_a_call_where_nothing_limits_it(
    layout: PaddedLayout, batch: list[BatchPiece]
) -> None:
    assert len(layout.groups(batch, BLOCK, None)) == len({shape_class(p) for p in batch})
