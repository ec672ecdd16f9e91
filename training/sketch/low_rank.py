"""LoRA: every matrix W of a model's blocks becomes W + B·A, of which only the thin A and B are learnt and saved.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM


class LowRank(nn.Module):
    """A matrix with its change. B begins as zero, so that the model begins as it was."""

    def __init__(self, matrix: nn.Linear, rank: int) -> None:
        super().__init__()
        self.matrix = matrix
        self.a = nn.Parameter(torch.randn(rank, matrix.in_features) / matrix.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(matrix.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.matrix(x) + x @ self.a.T @ self.b.T
        return changed


def attach(model: LlamaForCausalLM, rank: int) -> list[nn.Parameter]:
    """Freeze the model and give its blocks' matrices low-rank changes; return the trainable parameters."""
    model.requires_grad_(False)
    for name, matrix in _matrices(model).items():
        model.model.layers.set_submodule(name, LowRank(matrix, rank))
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@torch.no_grad()
def merged(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """A frozen copy with the changes in its matrices."""
    copy = deepcopy(model).requires_grad_(False)
    for name, changed in _changes(copy).items():
        changed.matrix.weight += changed.b @ changed.a
        copy.model.layers.set_submodule(name, changed.matrix)
    return copy


def save(model: LlamaForCausalLM, file: Path) -> None:
    """The changes alone, in bf16."""
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, changed in _changes(model).items():
        tensors |= {f"{name}.a": changed.a.detach().bfloat16(), f"{name}.b": changed.b.detach().bfloat16()}
    save_file(tensors, file)
    file.chmod(0o644)  # it was the owner's alone


@torch.no_grad()
def apply(model: LlamaForCausalLM, file: Path) -> None:
    """Add saved changes to the matrices. Raises ValueError where they belong to a model of another shape."""
    tensors = load_file(file)
    matrices = _matrices(model)
    if tensors.keys() != {f"{name}.{part}" for name in matrices for part in "ab"}:
        raise ValueError(f"{file} is the change of a model with other matrices")
    for name, matrix in matrices.items():
        a, b = (tensors[f"{name}.{part}"].to(matrix.weight.dtype) for part in "ab")
        if (b.shape[0], a.shape[1]) != matrix.weight.shape:
            raise ValueError(f"{file} is the change of a model with another {name}")
        matrix.weight += b @ a


def _matrices(model: LlamaForCausalLM) -> dict[str, nn.Linear]:
    modules = model.model.layers.named_modules()
    return {name: module for name, module in modules if isinstance(module, nn.Linear)}


def _changes(model: LlamaForCausalLM) -> dict[str, LowRank]:
    modules = model.model.layers.named_modules()
    return {name: module for name, module in modules if isinstance(module, LowRank)}
