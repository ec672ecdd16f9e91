"""Two faults of vLLM 0.32's CPU build, mended where they would spoil samples or end the engine."""

from __future__ import annotations

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops import topk_topp_sampler


def mend() -> None:
    """Does nothing where there is a GPU."""
    if not current_platform.is_cpu():
        return
    rejection_sampler.expand_batch_to_tokens = _expand
    plain = topk_topp_sampler.apply_top_k_only
    # A step without a single draft has no rows, of which there is no maximum.
    topk_topp_sampler.apply_top_k_only = lambda logits, k: logits if not len(logits) else plain(logits, k)


def _expand(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """[batch] → [num_tokens], each value as often as its request has tokens. vLLM's own kernel writes into a copy of
    what is no int64, and leaves temperatures as uninitialised memory."""
    x = torch.where(x == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), x)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.repeat_interleave(x, counts.to(torch.long), output_size=num_tokens)
