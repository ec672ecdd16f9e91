"""A bottleneck as wide as the states changes nothing; a narrow one is trained to change little."""

from __future__ import annotations

import pytest
import torch

from tandem.benchmarks.hat.bottleneck import TOKENS, Narrowed, train
from tandem.benchmarks.hat.leakage import Victim
from tests.benchmarks.hat.test_leakage import DEPTH, IDS, victim

__all__ = ["victim"]
WIDTH = 32
TEXTS = [[(7 * text + token * (text + 1)) % 64 for token in range(TOKENS)] for text in range(8)]


def states(victim: Victim) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([victim.states(ids, 0.0, torch.Generator()) for ids in TEXTS])


def kept(victim: Victim) -> float:
    """Return the share of next tokens that are what they were."""
    with torch.no_grad():
        said = [victim.next_tokens(ids, 0.0, torch.Generator()) for ids in TEXTS]
        wanted = [victim.whole(torch.tensor([ids])).logits[0].argmax(-1) for ids in TEXTS]
    return float((torch.cat(said) == torch.cat(wanted)).float().mean())


def test_as_many_numbers_as_a_state_has_are_that_state(victim: Victim) -> None:
    wide = Narrowed(victim.whole, DEPTH, WIDTH, states(victim))
    hidden = states(victim)[:10]
    torch.testing.assert_close(wide.received(wide.sent(hidden)), hidden, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        every = torch.arange(64).expand(len(IDS), 64)
        assert wide.invert(wide.states(IDS, 0.0, torch.Generator()), every) == IDS


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_training_leaves_more_of_what_the_model_says(victim: Victim, weight: float) -> None:
    victim.whole.requires_grad_(False)
    narrow = Narrowed(victim.whole, DEPTH, 4, states(victim))
    before, down = kept(narrow), narrow.down.detach().clone()
    train(narrow, TEXTS, weight, 40)
    assert not torch.equal(narrow.down, down)
    assert kept(narrow) > before
