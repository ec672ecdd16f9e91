"""The models: their shapes, how they are saved in the Hugging Face layout, and how they are loaded."""

from __future__ import annotations

import json
import tempfile
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tandem.training.family.tokenizer import CONTEXT, VOCABULARY


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Llama model with tied embeddings."""

    layers: int
    width: int = 192
    heads: int = 6
    kv_heads: int = 3
    ffn: int = 512


SHAPES = {
    "target": Shape(layers=12),
    "tiny": Shape(layers=1),
    "small": Shape(layers=2),
    "medium": Shape(layers=4),
    "other": Shape(layers=2),
}


def new_model(shape: Shape, vocabulary: int) -> LlamaForCausalLM:
    """An untrained model; its weights follow torch's global seed."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.ffn,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def new_named_model(name: str) -> LlamaForCausalLM:
    return new_model(SHAPES[name], VOCABULARY[name])


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write bf16 weights, configuration and tokenizer; the model itself stays in float32.

    Files are renamed into place, so that another process may load the folder at any time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rounded = deepcopy(model).bfloat16()
    rounded.generation_config = GenerationConfig(
        pad_token_id=0, bos_token_id=1, eos_token_id=2, do_sample=False
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as part:
        rounded.save_pretrained(part)
        tokenizer.save_pretrained(part)
        _name_class(Path(part) / "tokenizer_config.json")
        for file in Path(part).iterdir():
            file.chmod(0o644)
            file.replace(folder / file.name)


def load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Read a model to compute in float32 with its bf16 weights, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


def _name_class(config: Path) -> None:
    """Name the tokenizer's class as every release of transformers knows it, not only the newest."""
    settings = json.loads(config.read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
