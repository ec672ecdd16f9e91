"""The loss of a number format is that of its numbers, there and back."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.benchmarks.hat.wire import measure
from tandem.engine.split.hidden_states import KINDS


def test_what_is_exact_keeps_everything_and_coarser_numbers_less() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).eval()
    texts = [torch.randint(64, (40,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(8)]
    found = measure(model, 1, texts)
    assert tuple(found) == KINDS
    assert (found["float32"].kept, found["float32"].bits) == (1.0, 32.0)
    assert 0.5 < found["int4"].kept < found["float16"].kept
    assert found["int4"].bits < found["int6"].bits < found["int8"].bits
