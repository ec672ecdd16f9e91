"""Patches of the processes that run vLLM's model: each of its workers imports this.

Two faults of 0.32's CPU build, mended where they would spoil samples or end the engine; and outputs that a session was
opened with, which penalties have to count.
"""

from __future__ import annotations

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from tandem.engine.vllm.views import REPLAYED


class Extension:
    """Empty; vLLM needs a class to import this module."""


def _expand(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Repeat [batch] values to [num_tokens], by each request's number of tokens. vLLM's own kernel writes into a copy
    unless the type is int64, and leaves temperatures as uninitialised memory."""
    x = torch.where(x == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), x)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.repeat_interleave(x, counts.to(torch.long), output_size=num_tokens)


def _mend_cpu() -> None:
    rejection_sampler.expand_batch_to_tokens = _expand
    plain = topk_topp_sampler.apply_top_k_only
    # A step without a single draft has no rows, of which there is no maximum.
    topk_topp_sampler.apply_top_k_only = lambda logits, k: logits if not len(logits) else plain(logits, k)


def _replay_outputs() -> None:
    """A request may begin with output, as the scheduler has it; vLLM's workers know of none that they have not made."""
    plain = CachedRequestState.__post_init__

    def begin(state: CachedRequestState) -> None:
        plain(state)
        extra = (state.sampling_params and state.sampling_params.extra_args) or {}
        state.output_token_ids.extend(extra.get(REPLAYED, ()))

    CachedRequestState.__post_init__ = begin


if current_platform.is_cpu():
    _mend_cpu()
_replay_outputs()
