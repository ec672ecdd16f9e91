"""Settings of engines over llama.cpp."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tandem.engine.config import EngineConfig

MAX_ROWS = 256
"""Most sequences of a context of llama.cpp: its LLAMA_MAX_SEQ."""


class LlamacppConfig(EngineConfig):
    """Memory, limits and policies of an engine over llama.cpp.

    gpu_layers: number of layers on a GPU, where llama.cpp was built for one; the others run on the CPU.
    reproducible: whether steps of fewer than 8 positions on a CPU round as steps of one do, on any number of threads.
        With windows and `lookup` of 6 at most, greedy speculation on an idle engine then says the target's text token
        for token. Costs about a fifth of the speed of single steps, and up to twice the time of long prompts.
    """

    kv_blocks: int = Field(512, ge=8)
    block_size: int = Field(16, ge=1)
    max_sessions: int = Field(16, ge=1, le=100)
    lookup: int = Field(32, ge=0, le=64)
    gpu_layers: int = Field(0, ge=0)
    reproducible: bool = False

    @model_validator(mode="after")
    def _one_tier(self) -> Self:
        if self.host_memory is not None:
            raise ValueError(
                "host_memory: llama.cpp copies no blocks of its KV cache to host memory; leave host_memory out"
            )
        return self

    @property
    def max_cached(self) -> int:
        """Blocks that are kept without a session. Each may need a sequence of llama.cpp of its own, see `Rows`."""
        return MAX_ROWS - 2 * self.max_sessions if self.prefix_caching else 0
