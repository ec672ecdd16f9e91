"""Sampling: from logits to a distribution to a token, for many rows with settings of their own at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch

from tandem.engine.base import Sampling, TokenLogprob

# A draft's distribution is cut to its most probable tokens: what travels to the verifier is small, and
# exact, because the draft is sampled from just what is sent.
DRAFT_SUPPORT = 64

# Temperatures above 0 but below this act as this: logits divided by less could overflow float32.
COLDEST = 1e-6


def adjust(
    logits: torch.Tensor,
    settings: Sequence[Sampling],
    history: Callable[[int], tuple[Sequence[int], Sequence[int]]],
    ends: Sequence[Collection[int]],
) -> torch.Tensor:
    """Return the logits [R, V] that tokens are chosen by: with biases, without ends before `min_tokens`, less the
    penalties for tokens already there, in vLLM's order.

    history: of a row, as (prompt, output).
    ends: of each row, tokens that end its output.

    The repetition penalty (Keskar et al. 2019) counts prompt and output; presence and frequency penalties (OpenAI)
    count the output alone.
    """
    rows = [i for i, s in enumerate(settings) if s.changes_logits]
    if not rows:
        return logits
    logits = logits.clone()
    for i in rows:
        s, (prompt, output) = settings[i], history(i)
        row = logits[i]
        if s.logit_bias:
            ids, biases = zip(*s.logit_bias, strict=True)
            row.index_add_(0, torch.tensor(ids, device=row.device), row.new_tensor(biases))
        if len(output) < s.min_tokens:
            row[[token for token in ends[i] if token < len(row)]] = -torch.inf
        if s.penalised:
            _penalise(row, s, prompt, output)
    return logits


def _penalise(row: torch.Tensor, s: Sampling, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Penalise a row's tokens in place."""
    counts = torch.from_numpy(np.bincount(np.asarray(output, np.int64), minlength=len(row))).to(row.device)
    if s.repetition_penalty != 1.0:
        seen = counts > 0
        seen[torch.as_tensor(prompt, dtype=torch.long, device=row.device)] = True
        penalised = torch.where(row > 0, row / s.repetition_penalty, row * s.repetition_penalty)
        row.copy_(torch.where(seen, penalised, row))
    row -= s.frequency_penalty * counts + s.presence_penalty * (counts > 0)


def distributions(logits: torch.Tensor, settings: Sequence[Sampling]) -> torch.Tensor:
    """Probabilities [R, V] after temperature, min-p, top-k and top-p; a greedy row is a point mass on its best."""
    device = logits.device
    temperature = torch.tensor([max(s.temperature, COLDEST) for s in settings], device=device)[:, None]
    probs = torch.softmax(logits / temperature, dim=-1)
    filtered = [i for i, s in enumerate(settings) if not s.greedy and (s.top_k or s.top_p < 1.0 or s.min_p)]
    if filtered:
        rows = torch.tensor(filtered, device=device)
        probs[rows] = _filter(probs[rows], [settings[i] for i in filtered])
    greedy = [i for i, s in enumerate(settings) if s.greedy]
    if greedy:
        rows = torch.tensor(greedy, device=device)
        best = logits[rows].argmax(dim=-1, keepdim=True)
        probs[rows] = torch.zeros_like(probs[rows]).scatter_(1, best, 1.0)
    return probs


def _filter(probs: torch.Tensor, settings: Sequence[Sampling]) -> torch.Tensor:
    """Keep what min_p allows, then the top_k most probable tokens, then the fewest of those that reach top_p."""
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    min_p = torch.tensor([s.min_p for s in settings], device=probs.device)[:, None]
    ordered = ordered.masked_fill(ordered < min_p * ordered[:, :1], 0.0)
    rank = torch.arange(probs.shape[1], device=probs.device)
    vocab = probs.shape[1]
    top_k = torch.tensor([min(s.top_k or vocab, vocab) for s in settings], device=probs.device)[:, None]
    ordered = ordered.masked_fill(rank >= top_k, 0.0)
    ordered /= ordered.sum(dim=-1, keepdim=True)
    # 1 keeps all: rounding must not let the mass before the last tokens reach it
    top_p = torch.tensor([s.top_p if s.top_p < 1.0 else 2.0 for s in settings], device=probs.device)[:, None]
    before = ordered.cumsum(dim=-1) - ordered  # mass of the better tokens; the best is always kept
    ordered = ordered.masked_fill((before >= top_p) & (rank > 0), 0.0)
    ordered /= ordered.sum(dim=-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(1, ids, ordered)


def draw(probs: torch.Tensor, chance: np.ndarray) -> torch.Tensor:
    """One token a row by inverting the cumulative distribution at `chance`; weights need not sum to 1."""
    cumulative = probs.double().cumsum(dim=-1)
    target = torch.from_numpy(chance).to(probs.device)[:, None] * cumulative[:, -1:]
    # the first token whose cumulated weight exceeds the target; one with weight 0 never does so first
    drawn = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1)  # where rounding lets target reach the total
    return torch.minimum(drawn, last)


def sparse(probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The most probable tokens of each row and their renormalised float32 probabilities, [R, ≤ 64] each."""
    values, ids = probs.topk(min(DRAFT_SUPPORT, probs.shape[1]), dim=-1)
    return ids, values / values.sum(dim=-1, keepdim=True)


def logprobs(logits: torch.Tensor, ids: Sequence[int], alternatives: int) -> list[TokenLogprob]:
    """Return for each row the log-probability of its token and of the best `alternatives`, by the model's own
    distribution (before penalties, temperature and filters)."""
    logs = torch.log_softmax(logits, dim=-1)
    chosen = torch.tensor(ids, device=logits.device)[:, None]
    own = logs.gather(1, chosen).squeeze(1).tolist()
    values, best = logs.topk(min(alternatives, logits.shape[1]), dim=-1)
    return [
        TokenLogprob(logprob, list(zip(b, v, strict=True)))
        for logprob, b, v in zip(own, best.tolist(), values.tolist(), strict=True)
    ]
