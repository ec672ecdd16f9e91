"""Chunking: how many prompt tokens the device of a split model sends up next.

HAT (Xie et al. 2025), section 3.3. A chunk's hidden states travel while the cloud computes those of the chunk before.
HAT decides the size anew before each chunk, as μ, g and the bandwidth change. With P + 2 chunks under way, fixed ones
have their first token as soon (`benchmarks hat_chunks`), and are the default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tandem.policies.base import Registry


@dataclass(frozen=True, slots=True)
class ChunkState:
    """State before a chunk.

    left: prompt tokens not yet sent, at least 1.
    token_bytes: A, size of a token's hidden state.
    up_bytes_s: β_up, the device's uplink, bytes/s.
    mu: μ, tokens in a batch of the cloud.
    delay_s: g, seconds of a batch in the cloud by its tokens; non-decreasing.
    pipeline: P, stages of the cloud's pipeline.
    """

    left: int
    token_bytes: float
    up_bytes_s: float
    mu: float
    delay_s: Callable[[float], float]
    pipeline: int = 1


class ChunkingPolicy(Protocol):
    """Called before each chunk.

    overlap: whether a chunk is sent before the previous one is answered.
    """

    overlap: bool

    def choose(self, state: ChunkState) -> int:
        """Return the tokens of the next chunk, from 1 to `left`."""
        ...


chunking: Registry[ChunkingPolicy] = Registry("chunking")


@chunking.register("hat")
class HatChunks:
    """HAT's equation (3): X·A/β_up = (g(μ) + g(μ + X)) / P. A chunk's upload takes as long as the previous chunk waits
    for the cloud's current batch, g(μ), and is computed, g(μ + X).

    X is the largest number of tokens whose upload is still hidden. If the cloud is so slow that all are, chunks bring
    nothing, and the rest is sent at once. For g = base + token·size without clamping, X = ⌊2·g(μ) / (P·A/β_up −
    token)⌋.

    least: tokens, which the cloud computes about as fast as one. On a nearly dead link, the equation gives chunks of a
        token or two; each takes the cloud a step, and the link's recovery is not noticed. Near the cloud's limit
        larger ones may pay: earlier first tokens for later next ones (`benchmarks hat`, CNN/DM).
    """

    overlap = True

    def __init__(self, least: int = 32) -> None:
        if least < 1:
            raise ValueError(f"a chunk must have at least 1 token, not {least}")
        self._least = least

    def choose(self, state: ChunkState) -> int:
        now_s = state.delay_s(state.mu)

        def hidden(size: int) -> bool:
            upload = size * state.token_bytes * state.pipeline
            return upload <= (now_s + state.delay_s(state.mu + size)) * state.up_bytes_s

        # By doubling first: where a g that bends upwards solves the equation twice, the smaller chunk is wanted.
        size, beyond = 1, 2
        while beyond <= state.left and hidden(beyond):
            size, beyond = beyond, 2 * beyond
        beyond = min(beyond, state.left + 1)
        while beyond - size > 1:
            middle = (size + beyond) // 2
            size, beyond = (middle, beyond) if hidden(middle) else (size, middle)
        return max(size, min(self._least, state.left))


@chunking.register("fixed")
class FixedChunks:
    """Fixed chunks. Without overlap they are those of U-Sarathi, the baseline of HAT's section 4.1.

    size: tokens per chunk.
    overlap: whether to send while the cloud computes, which U-Sarathi does not.
    """

    def __init__(self, size: int = 128, overlap: bool = True) -> None:
        if size < 1:
            raise ValueError(f"a chunk must have at least 1 token, not {size}")
        self._size, self.overlap = size, overlap

    def choose(self, state: ChunkState) -> int:
        return min(self._size, state.left)


@chunking.register("whole")
class Whole:
    """The prompt in one piece: plain U-shaped inference."""

    overlap = False

    def choose(self, state: ChunkState) -> int:
        return state.left
