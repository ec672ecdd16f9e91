"""A GGUF file as a Hugging Face folder with plain weights, for engines and tools that read no GGUF."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

from tandem.engine.gguf.folder import folder_of
from tandem.engine.models.dtype import Precision
from tandem.engine.models.model_folder import UnsupportedModel, gguf_parts


def convert(file: Path, folder: Path, precision: Precision = "bfloat16") -> None:
    """Write the model of a GGUF file into a new folder. Quantised weights become what they stand for.

    Takes the memory of the whole model in float32. Raise FileNotFoundError, FileExistsError, and UnsupportedModel if
    the file is of no use, or transformers does not know the architecture.
    """
    described = folder_of(file)
    if folder.exists():
        raise FileExistsError(f"{folder} is there already")
    if len(gguf_parts(file.name)) > 1:
        raise UnsupportedModel(
            f"{file} is the first of several parts: join them with llama.cpp's llama-gguf-split"
        )
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    try:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=getattr(torch, precision),
            quantization_config=GgufConfig(dequantize=True),
        )
    except (ValueError, NotImplementedError, KeyError) as error:
        raise UnsupportedModel(f"transformers cannot convert {file}: {error}") from None
    made = folder.with_name(f"{folder.name}.{uuid4().hex}")
    try:
        model.save_pretrained(made)
        for text in described.iterdir():
            if text.name != "config.json":
                shutil.copy(text, made)
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
