"""Λ as a module: a decoder layer's first half, between the shallow layers and the head."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel


class Adapter(nn.Module):
    """Computes hidden + attention(norm(hidden)), of the model's own shape. It is initialised from that half of the
    first layer behind the split, which already fits its inputs."""

    def __init__(self, model: PreTrainedModel, first: int) -> None:
        """first: m, the shallow layers."""
        super().__init__()
        layer = model.model.layers[first]
        self.input_layernorm, self.self_attn = deepcopy(layer.input_layernorm), deepcopy(layer.self_attn)
        self.requires_grad_()

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """[rows, length, hidden] → the same; rotation: the model's, of positions 0 … length − 1."""
        normed = self.input_layernorm(hidden)
        return hidden + self.self_attn(normed, position_embeddings=rotation, attention_mask=None)[0]

    def save(self, file: Path, dtype: torch.dtype) -> None:
        """Save as a *.safetensors file for `engine.torch.split.bundle`, with the tensor names of a decoder layer."""
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.to(dtype) for name, tensor in self.state_dict().items()}, file)
        file.chmod(0o644)  # it was the owner's alone
