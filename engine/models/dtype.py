"""Choice of the precision of a model's weights and KV cache in the torch engine. Nothing here needs torch."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Literal

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Precision = Literal["float32", "bfloat16", "float16"]

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""
CACHED_BYTES = 100_000_000
"""Size of weights up to which memory does not bound a step on a CPU: float32 costs nothing there."""


def choose(dtype: Dtype, folder: Path, gpu: bool) -> Precision:
    """Return the precision in which the model of a folder is loaded.

    auto: on a GPU the one of its files, bfloat16 in place of float32. On a CPU bfloat16 for a large model whose files
    are in it, if the CPU multiplies such numbers; float32 for all others.
    """
    if dtype != "auto":
        return dtype
    stored = stored_in(folder)
    if gpu:
        return "float16" if stored == "float16" else "bfloat16"
    large = sum(file.stat().st_size for file in folder.glob("*.safetensors")) > CACHED_BYTES
    return "bfloat16" if stored == "bfloat16" and large and cpu_has_bfloat16() else "float32"


def stored_in(folder: Path) -> str:
    """Return the precision of a folder's files, as its config.json says; float32 if it does not."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


@lru_cache(1)
def cpu_has_bfloat16() -> bool:
    """Return whether this CPU has instructions for products of bfloat16 numbers (AVX-512 BF16, AMX, Arm's BF16)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(text.split())
