"""Stateless randomness: uniform, independent, and for ever the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.torch.rng import Purpose, uniforms

N = 20_000
SEEDS = [*range(4), 2**31, 2**62 + 12345]


def streams() -> dict[str, np.ndarray]:
    """Ways in which a request's numbers follow each other: along positions, and along seeds."""
    made = {}
    for purpose in Purpose:
        for seed in SEEDS:
            made[f"seed {seed} {purpose.name}"] = uniforms([seed] * N, range(N), purpose)
        for position in (0, 1, 7, 1000):
            made[f"position {position} {purpose.name}"] = uniforms(range(N), [position] * N, purpose)
    return made


STREAMS = streams()


@pytest.mark.parametrize("name", STREAMS)
def test_uniform(name: str):
    """Kolmogorov's distance stays below its 0.1 % critical value, Bonferroni-corrected for the streams."""
    u = np.sort(STREAMS[name])
    assert u[0] >= 0.0
    assert u[-1] < 1.0
    steps = np.arange(N + 1) / N
    distance = max((steps[1:] - u).max(), (u - steps[:-1]).max())
    assert distance < np.sqrt(np.log(2 * len(STREAMS) / 0.001) / (2 * N))


@pytest.mark.parametrize("lag", [1, 2, 3, 16])
def test_neighbours_are_uncorrelated(lag: int):
    for u in STREAMS.values():
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 5 / np.sqrt(N)


def test_streams_are_uncorrelated():
    """Compare streams of one seed (purposes at equal and neighbouring positions), and of neighbouring seeds."""
    correlation = np.corrcoef(np.stack(list(STREAMS.values())))
    off_diagonal = correlation[~np.eye(len(STREAMS), dtype=bool)]
    assert np.abs(off_diagonal).max() < 5 / np.sqrt(N)
    shifted = np.stack([s[:-1] for s in STREAMS.values()] + [s[1:] for s in STREAMS.values()])
    correlation = np.corrcoef(shifted)
    assert np.abs(correlation[~np.eye(len(shifted), dtype=bool)]).max() < 5 / np.sqrt(N)


def test_pairs_fill_the_square():
    """Chi-square over 16 × 16 cells of (ACCEPT, SAMPLE) and (DRAFT, ACCEPT) of one seed and position."""
    for one, other in ((Purpose.ACCEPT, Purpose.SAMPLE), (Purpose.DRAFT, Purpose.ACCEPT)):
        a, b = (uniforms(range(N), [3] * N, p) for p in (one, other))
        counts = np.bincount((a * 16).astype(int) * 16 + (b * 16).astype(int), minlength=256)
        assert ((counts - N / 256) ** 2 / (N / 256)).sum() < 330.5  # 0.001 with 255 degrees of freedom


@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31)), min_size=1, max_size=20),
    st.sampled_from(Purpose),
)
def test_independent_of_the_batch(pairs: list[tuple[int, int]], purpose: Purpose):
    seeds, positions = zip(*pairs, strict=True)
    together = uniforms(seeds, positions, purpose)
    alone = [uniforms([s], [p], purpose)[0] for s, p in pairs]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    ("purpose", "pinned"),
    [
        (Purpose.SAMPLE, [0.01403302919427496, 0.10913886432944175, 0.6336859233312638]),
        (Purpose.ACCEPT, [0.13163406728068772, 0.4780690636520094, 0.33122077854574294]),
        (Purpose.DRAFT, [0.6738770024071943, 0.47389445436924205, 0.29126621489405724]),
    ],
)
def test_stable(purpose: Purpose, pinned: list[float]):
    """A log may be continued by another machine or a later version."""
    assert uniforms([0, 1, 2**63 - 1], [0, 5, 2**20], purpose).tolist() == pinned
