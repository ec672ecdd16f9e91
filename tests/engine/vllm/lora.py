"""A LoRA adapter of the embedded target."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tandem.engine import family

RANK, ALPHA = 4, 8


def write_adapter(folder: Path) -> Path:
    """Write an adapter that changes what the model says, and return its folder."""
    generator, tensors = torch.Generator().manual_seed(1), {}
    for name, weight in load_file(family.path("target") / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "v_proj.weight")):
            rows, columns = weight.shape
            module = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{module}.lora_A.weight"] = torch.randn(RANK, columns, generator=generator) * 0.1
            tensors[f"{module}.lora_B.weight"] = torch.randn(rows, RANK, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
