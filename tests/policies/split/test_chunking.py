from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.split import LinearDelay
from tandem.policies.split.chunking import ChunkState, FixedChunks, HatChunks, Whole, chunking

STATE = ChunkState(
    left=1000, token_bytes=8192, up_bytes_s=8.192e6, mu=10, delay_s=LinearDelay(0.02, 1e-4), pipeline=1
)
"""A token takes 1 ms up; g(μ) = 21 ms."""

SIZES = np.array([0, 8, 32, 128, 512, 2048, 20_000])


class Bent:
    """Any g that does not fall: it rises by so much from size to size."""

    def __init__(self, rises: list[float]) -> None:
        self.rises = rises
        self.seconds = list(accumulate(rises))

    def __call__(self, tokens: float) -> float:
        return float(np.interp(tokens, SIZES, self.seconds))

    def __repr__(self) -> str:
        return f"Bent({self.rises})"


states = st.builds(
    ChunkState,
    left=st.integers(1, 5000),
    token_bytes=st.floats(100, 20_000),
    up_bytes_s=st.floats(1e4, 1e9),
    mu=st.floats(0, 2000),
    delay_s=st.lists(st.floats(0, 0.5), min_size=7, max_size=7).map(Bent),
    pipeline=st.integers(1, 8),
)


def late_s(state: ChunkState, size: int) -> float:
    """Return by how much the upload takes longer than the cloud: HAT's equation (3), left side less right."""
    upload_s = size * state.token_bytes / state.up_bytes_s
    return upload_s - (state.delay_s(state.mu) + state.delay_s(state.mu + size)) / state.pipeline


@pytest.mark.parametrize(
    ("change", "size"),
    [
        ({}, 46),  # 0.042 / (0.001 − 0.0001) = 46.7
        ({"pipeline": 4}, 10),  # 0.042 / (0.004 − 0.0001) = 10.8
        ({"up_bytes_s": 4.096e6}, 22),  # 0.042 / (0.002 − 0.0001) = 22.1
        ({"mu": 210}, 91),  # 0.082 / 0.0009 = 91.1
        ({"left": 30}, 30),  # the last chunk is shorter
        ({"up_bytes_s": 1e3}, 1),  # the link is so slow that the cloud has to wait in any case
        ({"up_bytes_s": 8.192e7}, 1000),  # the cloud takes as long for a token as the link: all is hidden
    ],
)
def test_hats_equation(change: dict[str, float], size: int) -> None:
    assert HatChunks(least=1).choose(replace(STATE, **change)) == size  # type: ignore[arg-type]


@given(states)
def test_the_equation_holds_to_within_a_token(state: ChunkState) -> None:
    size = HatChunks(least=1).choose(state)
    slack = 1e-9 * size * state.token_bytes / state.up_bytes_s
    assert size == 1 or late_s(state, size) <= slack, "the cloud waits for the link"
    assert size == state.left or late_s(state, size + 1) >= -slack, "more would still be hidden"


@given(states, st.floats(1, 100))
def test_a_faster_link_never_makes_chunks_smaller(state: ChunkState, times: float) -> None:
    faster = replace(state, up_bytes_s=state.up_bytes_s * times)
    assert HatChunks(least=1).choose(faster) >= HatChunks(least=1).choose(state)


def test_where_the_cloud_saturates_later_the_smaller_solution_is_taken() -> None:
    """g is flat up to 500 tokens, and beyond so steep that uploads of thousands would be hidden again."""

    def delay_s(tokens: float) -> float:
        return 0.05 + 0.01 * max(0.0, tokens - 500)

    assert HatChunks(least=1).choose(replace(STATE, left=5000, mu=0, delay_s=delay_s)) == 100


@pytest.mark.parametrize("name", list(chunking))
@given(state=states)
def test_chunks_make_up_the_prompt(name: str, state: ChunkState) -> None:
    policy, left, chunks = chunking.create(name), state.left, 0
    while left and chunks < 100:
        size = policy.choose(replace(state, left=left))
        assert 1 <= size <= left
        left, chunks = left - size, chunks + 1
    assert left == 0 or chunks == 100


def test_the_baselines() -> None:
    assert [FixedChunks(128).choose(replace(STATE, left=left)) for left in (300, 172, 44)] == [128, 128, 44]
    assert Whole().choose(STATE) == 1000
    assert HatChunks(least=1).overlap
    assert FixedChunks().overlap
    assert not FixedChunks(overlap=False).overlap, "U-Sarathi"
    with pytest.raises(ValueError, match="at least 1 token"):
        FixedChunks(0)


def test_a_link_that_stands_still_does_not_shrink_chunks_to_nothing() -> None:
    """The equation has less than a token, which the cloud would take a step for; what is left may be less."""
    still = replace(STATE, up_bytes_s=1e4)
    assert (HatChunks(least=1).choose(still), HatChunks().choose(still)) == (1, 32)
    assert HatChunks().choose(replace(still, left=5)) == 5
    assert HatChunks().choose(replace(STATE, mu=210)) == 91
    with pytest.raises(ValueError, match="at least 1 token"):
        HatChunks(0)


def test_the_next_chunk_follows_the_state_of_the_moment() -> None:
    """Chunks are decided one by one: a cloud that has become busy gets larger chunks from then on."""
    chosen = [HatChunks(least=1).choose(replace(STATE, mu=mu)) for mu in (0, 100, 1000)]
    assert chosen == [44, 66, 266]


def test_fixed_chunks_have_128_tokens_unless_it_is_said() -> None:
    long = ChunkState(500, 1024.0, 1e6, 0.0, lambda tokens: 0.1)
    assert FixedChunks().choose(long) == 128
    assert FixedChunks().overlap
