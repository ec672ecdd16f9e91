"""Messages of the protocol survive encoding and decoding."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tandem.engine.base import DraftProbs

shapes = st.tuples(st.integers(0, 4), st.integers(1, 70))


@given(st.data(), shapes)
def test_a_drafts_distributions_are_kept_to_the_bit(data: st.DataObject, shape: tuple[int, int]) -> None:
    """The draft was drawn from just these numbers."""
    ids = data.draw(arrays(np.int64, shape, elements=st.integers(0, 2**31 - 1)))
    probs = data.draw(arrays(np.float32, shape, elements=st.floats(0, 1, width=32)))
    packed = DraftProbs.of(ids, probs)
    assert packed.width == shape[1]
    assert (len(packed.ids), len(packed.probs)) == (ids.size * 4, ids.size * 4)
    got_ids, got_probs = packed.arrays()
    assert got_ids.tolist() == ids.tolist()
    assert got_probs.tolist() == probs.tolist()
