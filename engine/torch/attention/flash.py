"""Attention by torch's flash kernels over ragged sequences, for 16 bits on a GPU: no padding and no mask.

A layer's keys and values are gathered from their blocks into one run. The kernels read blocks in place as well, but
only of 256 tokens or multiples of it, which a prefix cache and many short sessions would pay for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from tandem.engine.models.architectures import ModelConfig
from tandem.engine.torch.attention.batch import BatchPiece

WIDEST_HEAD = 256  # elements, in multiples of 8


def fits(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernels compute attention of this shape."""
    shape = config.head_dim <= WIDEST_HEAD and config.head_dim % 8 == 0 and config.attention_cap is None
    return shape and device.type == "cuda" and dtype in (torch.float16, torch.bfloat16)


class FlashLayout:
    """Lays out ragged attention for one model."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        # It brings torch's compiler along, a thousand modules: only where these kernels run.
        from torch.nn.attention.varlen import varlen_attn

        self._config, self._device, self._kernel = config, device, varlen_attn

    def __call__(self, pieces: Sequence[BatchPiece], block_size: int) -> FlashAttention:
        counts, ends = [len(p.ids) for p in pieces], [p.end for p in pieces]
        starts = torch.tensor(
            [list(accumulate(counts, initial=0)), list(accumulate(ends, initial=0))],
            dtype=torch.int32,
            device=self._device,
        )
        blocks = [b for p in pieces for b in p.blocks[: -(-p.end // block_size)]]
        first_block = list(accumulate((-(-end // block_size) for end in ends), initial=0))[:-1]
        return FlashAttention(
            self._config,
            self._kernel,
            starts[0],
            starts[1],
            max(counts),
            max(ends),
            self._slots(blocks, first_block, ends, starts[1], block_size),
        )

    def _slots(
        self,
        blocks: Sequence[int],
        first_block: Sequence[int],
        ends: Sequence[int],
        starts: torch.Tensor,
        block_size: int,
    ) -> torch.Tensor:
        """Return the slot of each cached token, sequence after sequence: [Σ ends].

        blocks: of all sequences; first_block: where each one's begin; starts: where each one's tokens do.
        """
        total, device = sum(ends), self._device
        table = torch.tensor(blocks, device=device)
        lengths, first = torch.tensor([ends, first_block], device=device)
        sequence = torch.repeat_interleave(lengths, output_size=total)
        position = torch.arange(total, device=device) - starts.long()[sequence]
        return table[first[sequence] + position // block_size] * block_size + position % block_size


@dataclass(frozen=True)
class FlashAttention:
    """Attention of a batch, all sequences in one call.

    kernel: torch's `varlen_attn`.
    query_starts, key_starts: int32 [sequences + 1], where each one's rows begin, and the end.
    most_queries, most_keys: of one sequence. slots: [keys], where the cached tokens are.
    """

    config: ModelConfig
    kernel: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
    query_starts: torch.Tensor
    key_starts: torch.Tensor
    most_queries: int
    most_keys: int
    slots: torch.Tensor

    def __call__(self, query: torch.Tensor, kv: torch.Tensor, sliding: bool) -> torch.Tensor:
        config = self.config
        cached = kv.view(-1, 2 * config.kv_heads, config.head_dim).index_select(0, self.slots)
        key, value = cached.chunk(2, dim=1)
        # the last query sees the last key; a window counts the query's own position, the kernel's does not
        left = -1 if config.window is None or not sliding else config.window - 1
        mixed = self.kernel(
            query,
            key,
            value,
            self.query_starts,
            self.key_starts,
            self.most_queries,
            self.most_keys,
            scale=config.query_scale,
            window_size=(left, 0),
            enable_gqa=True,
        )
        assert isinstance(mixed, torch.Tensor)  # without what only training asks for
        return mixed.flatten(1)
