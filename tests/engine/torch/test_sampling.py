"""Penalties, filters and drawing, against slow references that follow the definitions closely."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.base import Sampling
from tandem.engine.torch.sampling import DRAFT_SUPPORT, adjust, distributions, draw, logprobs, sparse

VOCAB = 12
# Multiples of 1/8 from a small range: ties are common, and are exact in float32.
rows_ = st.lists(
    st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=VOCAB, max_size=VOCAB),
    min_size=1,
    max_size=5,
)
tokens_ = st.lists(st.integers(0, VOCAB - 1), max_size=8)
settings_ = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-9, 0.3, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, VOCAB, 100, 2**64]),
    top_p=st.sampled_from([1.0, 1.0, 0.01, 0.3, 0.77, 0.95]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.5, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.5, 1.1]),
    min_tokens=st.sampled_from([0, 0, 1, 4, 20]),
    min_p=st.sampled_from([0.0, 0.0, 0.03, 0.4, 1.0]),
    logit_bias=st.dictionaries(
        st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.5, 0.25, 3.0]), max_size=3
    ).map(lambda biases: tuple(biases.items())),
)
ENDS = (2, 5, 2**40)


def reference_adjusted(row: list[float], s: Sampling, prompt: list[int], output: list[int]) -> list[float]:
    result = []
    for token, logit in enumerate(row):
        logit += dict(s.logit_bias).get(token, 0.0)
        if token in ENDS and len(output) < s.min_tokens:
            logit = -math.inf
        if token in prompt or token in output:
            logit = logit / s.repetition_penalty if logit > 0 else logit * s.repetition_penalty
        logit -= s.frequency_penalty * output.count(token)
        if token in output:
            logit -= s.presence_penalty
        result.append(logit)
    return result


def reference_distribution(row: list[float], s: Sampling) -> list[float]:
    """Tokens by falling logit, the lower id first among equals: the first top_k, and of those, renormalised,
    the shortest beginning that reaches top_p. Of all only those within min_p of the likeliest count."""
    ranked = sorted(range(len(row)), key=lambda t: (-row[t], t))
    if s.temperature == 0.0:
        return [float(t == ranked[0]) for t in range(len(row))]
    weight = {t: math.exp((row[t] - max(row)) / s.temperature) for t in ranked}
    kept = [t for t in ranked if weight[t] >= s.min_p][: s.top_k or None]
    total = sum(weight[t] for t in kept)
    nucleus, mass = [], 0.0
    for t in kept:
        if nucleus and mass >= s.top_p:
            break
        nucleus.append(t)
        mass += weight[t] / total
    total = sum(weight[t] for t in nucleus)
    return [weight[t] / total if t in nucleus else 0.0 for t in range(len(row))]


def near_a_cut(row: list[float], s: Sampling) -> bool:
    """Whether rounding may decide on which side of top_p or min_p a token falls."""
    whole = reference_distribution(
        row, Sampling(temperature=s.temperature or 1.0, top_k=s.top_k, min_p=s.min_p)
    )
    mass = np.cumsum(sorted(whole, reverse=True))
    weights = np.exp((np.array(row) - max(row)) / (s.temperature or 1.0))
    return bool(
        (np.abs(mass - s.top_p) < 1e-5).any()
        or ((np.abs(weights - s.min_p) < 1e-5).any() and 0 < s.min_p < 1)
    )


@given(rows_, st.data())
def test_adjusted_logits(rows: list[list[float]], data: st.DataObject):
    settings = [data.draw(settings_) for _ in rows]
    history = [(data.draw(tokens_), data.draw(tokens_)) for _ in rows]
    logits = torch.tensor(rows)
    adjusted = adjust(logits, settings, history.__getitem__, [ENDS] * len(rows))
    assert logits.tolist() == rows, "the caller's logits were changed"
    expected = [reference_adjusted(r, s, *h) for r, s, h in zip(rows, settings, history, strict=True)]
    torch.testing.assert_close(adjusted, torch.tensor(expected), atol=1e-5, rtol=1e-5)


@given(rows_, st.data())
def test_distributions(rows: list[list[float]], data: st.DataObject):
    settings = [data.draw(settings_) for _ in rows]
    probs = distributions(torch.tensor(rows), settings)
    torch.testing.assert_close(probs.sum(dim=-1), torch.ones(len(rows)))
    for row, s, got in zip(rows, settings, probs.tolist(), strict=True):
        if (s.top_p == 1.0 and not s.min_p) or s.greedy or not near_a_cut(row, s):
            expected = reference_distribution(row, s)
            assert [p > 0 for p in got] == [p > 1e-38 for p in expected]
            assert got == pytest.approx(expected, abs=1e-5)


@given(rows_, st.data())
def test_a_row_does_not_depend_on_its_batch(rows: list[list[float]], data: st.DataObject):
    settings = [data.draw(settings_) for _ in rows]
    together = distributions(torch.tensor(rows), settings)
    alone = [distributions(torch.tensor([r]), [s])[0] for r, s in zip(rows, settings, strict=True)]
    assert together.tolist() == torch.stack(alone).tolist()


def test_cold_is_greedy_without_overflow():
    logits = torch.tensor([[-1e4, 3e4, 2e4, 0.0]])
    for temperature in (5e-324, 1e-40, 1e-9):
        assert distributions(logits, [Sampling(temperature=temperature)]).tolist() == [[0.0, 1.0, 0.0, 0.0]]


weights_ = st.lists(st.sampled_from([0.0, 0.0, 0.25, 1.0, 3.0, 1e-30]), min_size=1, max_size=9).filter(any)


@given(st.lists(weights_, min_size=1, max_size=6), st.data())
def test_draw_inverts_the_cumulative_distribution(rows: list[list[float]], data: st.DataObject):
    """The token is the first whose cumulated weight exceeds chance · total: never one of weight 0, also at
    the ends of the unit interval."""
    chances = st.one_of(
        st.sampled_from([0.0, 0.25, 0.5, 1.0 - 2**-53]), st.floats(0.0, 1.0, exclude_max=True)
    )
    chance = [data.draw(chances) for _ in rows]
    width = max(map(len, rows))
    padded = torch.tensor([r + [0.0] * (width - len(r)) for r in rows])
    drawn = draw(padded, np.array(chance)).tolist()
    for row, u, token in zip(rows, chance, drawn, strict=True):
        row = np.float32(row).astype(float).tolist()
        assert row[token] > 0.0
        below, total = math.fsum(row[:token]), math.fsum(row)
        assert below <= u * total * (1 + 1e-12)
        assert u * total * (1 - 1e-12) <= below + row[token]


def test_draw_follows_the_weights():
    """All of an even grid of chances: the shares are the weights, and weight 0 has no share."""
    weights = torch.tensor([0.0, 0.125, 0.0, 0.5, 0.375, 0.0])
    n = 8000
    drawn = draw(weights.expand(n, -1), (np.arange(n) + 0.5) / n)
    assert np.bincount(drawn.numpy(), minlength=6).tolist() == (weights * n).int().tolist()


@given(st.integers(1, 3), st.integers(1, 150), st.integers(0, 999))
def test_sparse(rows: int, vocab: int, seed: int):
    noise = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    probs = torch.softmax(3 * noise, dim=-1)
    ids, kept = sparse(probs)
    width = min(vocab, DRAFT_SUPPORT)
    assert ids.shape == kept.shape == (rows, width)
    torch.testing.assert_close(kept.sum(dim=-1), torch.ones(rows))
    for row, row_ids, row_kept in zip(probs, ids, kept, strict=True):
        assert len(set(row_ids.tolist())) == width
        assert set(row[row_ids].tolist()) == set(sorted(row.tolist(), reverse=True)[:width])
        torch.testing.assert_close(row_kept, row[row_ids] / row[row_ids].sum())


@given(rows_, st.data())
def test_logprobs(rows: list[list[float]], data: st.DataObject):
    ids = [data.draw(st.integers(0, VOCAB - 1)) for _ in rows]
    alternatives = data.draw(st.sampled_from([0, 1, 5, 20]))
    for row, token, got in zip(rows, ids, logprobs(torch.tensor(rows), ids, alternatives), strict=True):
        total = math.log(sum(math.exp(x) for x in row))
        assert got.logprob == pytest.approx(row[token] - total, abs=1e-4)
        best = sorted(row, reverse=True)[:alternatives]
        assert [p for _, p in got.top] == pytest.approx([x - total for x in best], abs=1e-4)
        assert all(row[t] - total == pytest.approx(p, abs=1e-4) for t, p in got.top)
        assert len({t for t, _ in got.top}) == min(alternatives, VOCAB)
