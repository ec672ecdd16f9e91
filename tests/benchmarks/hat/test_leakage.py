"""The attacks find what is there to be found, and noise is what stops them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.benchmarks.hat.leakage import CANDIDATES, Victim

DEPTH = 2


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def victim() -> Victim:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=CANDIDATES,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    return Victim(LlamaForCausalLM(config).eval(), DEPTH)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


IDS = [5, 9, 9, 41, 3, 60, 17, 2, 33, 8]
ALL = torch.arange(CANDIDATES).expand(len(IDS), CANDIDATES)


def test_states_are_those_after_so_many_layers(victim: Victim, generator: torch.Generator) -> None:
    whole = victim.whole(torch.tensor([IDS]), output_hidden_states=True).hidden_states[DEPTH][0]
    torch.testing.assert_close(victim.states(IDS, 0.0, generator), whole, rtol=1e-3, atol=1e-3)


def test_without_noise_every_token_is_recovered(victim: Victim, generator: torch.Generator) -> None:
    assert victim.invert(victim.states(IDS, 0.0, generator), ALL) == IDS


def test_in_noise_they_are_not(victim: Victim, generator: torch.Generator) -> None:
    assert victim.invert(victim.states(IDS, 20.0, generator), ALL) != IDS


def test_noise_changes_what_the_model_says_and_is_gone_afterwards(
    victim: Victim, generator: torch.Generator
) -> None:
    clean = victim.whole(torch.tensor([IDS])).logits[0].argmax(-1)
    assert victim.next_tokens(IDS, 0.0, generator).equal(clean)
    assert not victim.next_tokens(IDS, 20.0, generator).equal(clean)
    assert victim.next_tokens(IDS, 0.0, generator).equal(clean)
