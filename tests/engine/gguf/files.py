"""Small GGUF files for tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.engine.text.test_tokenizer import DEFINITION, TEMPLATE

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
LLAMA = {
    "general.architecture": "llama",
    "general.file_type": 15,
    "llama.context_length": 512,
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
}
TENSORS = {"token_embd.weight": (64, 8), "blk.0.ffn_up.weight": (64, 2)}
"""Shapes of tensors in float32."""


def byte_level(padding: int = 0, template: str | None = TEMPLATE) -> dict[str, Any]:
    """Return metadata of a model with the tokenizer of the tokenizers' tests. padding: unused ids at the end."""
    definition = json.loads(DEFINITION)
    special = {token["content"] for token in definition["added_tokens"]}
    tokens = sorted(definition["model"]["vocab"], key=definition["model"]["vocab"].get)
    kinds = [CONTROL if token in special else NORMAL for token in tokens]
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(padding)]
    return LLAMA | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds + [UNUSED] * padding,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in definition["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": template,
    }


def write(
    file: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...]] = TENSORS,
    version: int = 3,
) -> Path:
    """Write a GGUF file whose tensors are zero; a value of None is left out."""
    said = {key: value for key, value in metadata.items() if value is not None}
    data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(said))
    for key, value in said.items():
        data += _string(key) + _value(value)
    size = 0
    for name, shape in tensors.items():
        data += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, size)
        size += 4 * shape[0] * shape[1]
    data += bytes(-len(data) % 32 + size)
    file.write_bytes(data)
    return file


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
        case [*numbers]:
            return struct.pack(f"<IIQ{len(numbers)}i", 9, 5, len(numbers), *numbers)
        case _:
            raise TypeError(type(value))
