"""Shapes of language models, as the hardware model needs them."""

from __future__ import annotations

from dataclasses import dataclass

HALF = 2  # bytes of a bf16 or fp16 number


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer with gated MLP, weights and KV cache in 16 bits."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    head_dim: int = 128

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer's matrices."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.ffn

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights; embedding and head are not tied."""
        return HALF * (self.layers * self.layer_parameters + 2 * self.vocab * self.hidden)

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache per token, all layers."""
        return HALF * 2 * self.layers * self.kv_heads * self.head_dim


MODELS = {
    shape.name: shape
    for shape in (
        ModelShape("Qwen2.5-0.5B", 24, 896, 14, 2, 4864, 151936, head_dim=64),
        ModelShape("Llama-3.2-1B", 16, 2048, 32, 8, 8192, 128256, head_dim=64),
        ModelShape("Llama-3.2-3B", 28, 3072, 24, 8, 8192, 128256),
        ModelShape("Llama-2-7B", 32, 4096, 32, 32, 11008, 32000),
        ModelShape("Llama-2-13B", 40, 5120, 40, 40, 13824, 32000),
        ModelShape("Llama-2-70B", 80, 8192, 64, 8, 28672, 32000),
        ModelShape("Llama-3-8B", 32, 4096, 32, 8, 14336, 128256),
        ModelShape("Llama-3.1-8B", 32, 4096, 32, 8, 14336, 128256),
        ModelShape("Llama-3-70B", 80, 8192, 64, 8, 28672, 128256),
        ModelShape("Llama-3.1-70B", 80, 8192, 64, 8, 28672, 128256),
        ModelShape("Qwen-7B", 32, 4096, 32, 32, 11008, 151936),
        ModelShape("Qwen-72B", 80, 8192, 64, 64, 24576, 152064),
        ModelShape("Qwen2-7B", 28, 3584, 28, 4, 18944, 152064),
        ModelShape("Qwen2.5-32B", 64, 5120, 40, 8, 27648, 152064),
        ModelShape("Qwen3-32B", 64, 5120, 64, 8, 25600, 151936),
        ModelShape("CodeLlama-34B", 48, 8192, 64, 8, 22016, 32768),
    )
}
