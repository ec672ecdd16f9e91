"""A Hugging Face folder without weights, made from a GGUF file's metadata: tokenizer, chat template, configuration."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from tandem.engine import cache
from tandem.engine.gguf.header import Header, read_header
from tandem.engine.models.hub import FURTHER_TEMPLATES
from tandem.engine.models.model_folder import GGUF_FILE, UnsupportedModel, gguf_parts
from tandem.engine.text.chat_template import DEFAULT
from tandem.engine.text.tokenizer import PADDING, Tokenizer

VERSION = 3
"""Version of the conversion: folders that another version made are made again."""
NORMAL, CONTROL, UNUSED = 1, 3, 5
"""Types of token, of llama.cpp's `llama_token_type`."""
SHAPE = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
}
"""Names in config.json by the metadata's, which begin with the architecture."""

# The rest of this table is transformers' GGUF_PRE_TOKENIZER_SPLITS; all of it is `llm_tokenizer_bpe` and
# `llama_vocab::impl::load` of llama.cpp's src/llama-vocab.cpp.
DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Pre-tokenizers that cut a number into its digits before GPT-2's."""
GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "gigachat", "granite-docling")
"""Pre-tokenizers that are GPT-2's."""
LIKE = {"glm4": "llama-bpe", "chatglm-bpe": "llama-bpe", "stablelm2": "qwen2", "hunyuan": "qwen2"}
"""Pre-tokenizers that are another one's."""
LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
"""Pre-tokenizers whose models begin every text with bos unless the file says otherwise."""
WHOLE = (*LLAMA3, "tekken")
"""Pre-tokenizers whose words are tokens wherever the vocabulary has them, whatever the merges are."""


def folder_of(file: Path) -> Path:
    """Return a folder with the tokenizer and configuration of a GGUF file.

    It is made once, which takes seconds, and cached until the file changes. Raise FileNotFoundError, and
    UnsupportedModel if the file is cut off, or no language model.
    """
    parts = [file, *filter(Path.exists, map(file.with_name, gguf_parts(file.name)[1:]))]
    states = [(part.stat().st_size, part.stat().st_mtime_ns) for part in parts]
    digest = hashlib.sha256(f"{VERSION} {file.resolve()} {states}".encode()).hexdigest()
    folder = cache.folder() / "gguf" / f"{file.stem}-{digest[:12]}"
    if folder.is_dir():
        return folder
    files = _files(file.absolute(), _read_whole(file))
    made = folder.with_name(f"{folder.name}.{uuid4().hex}")
    try:
        made.mkdir(parents=True)
        for name, text in files.items():
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(text, encoding="utf-8")
        with suppress(OSError):  # another process was faster
            made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _read_whole(file: Path) -> Header:
    """Read the file's header, and check all parts of the model that it begins."""
    header = read_header(file)
    if (count := header.metadata.get("split.count", 1)) > 1:
        parts = gguf_parts(file.name)
        if len(parts) != count:
            raise UnsupportedModel(
                f"{file} is one of {count} parts of a model: name the first, …-00001-of-{count:05}.gguf"
            )
        for part in map(file.with_name, parts[1:]):
            if not part.exists():
                raise UnsupportedModel(f"{file} is a part of a model, and {part.name} is not beside it")
            read_header(part)
    return header


def _files(file: Path, header: Header) -> dict[str, str]:
    """Return the folder's texts by name."""
    metadata = header.metadata
    if (kind := metadata.get("general.type", "model")) != "model":
        raise UnsupportedModel(f"{file} is no model but a {kind}")
    definition, config = _tokenizer(file, metadata)
    templates = _templates(metadata)
    try:
        tokenizer = Tokenizer(definition, config, templates)
    except ValueError as error:
        raise UnsupportedModel(f"{file}: {error}") from None
    ends = [tokenizer.eos]
    if (turn := tokenizer.turn_end()) is not None and turn != tokenizer.eos:
        ends.insert(0, turn)
        config["eos_token"] = tokenizer.special_name(turn)
    told = {name: metadata.get(f"{header.architecture}.{key}") for key, name in SHAPE.items()}
    shape: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    shape |= {"model_type": header.architecture, "vocab_size": len(metadata["tokenizer.ggml.tokens"])}
    shape |= {GGUF_FILE: str(file), "quantization": header.quantization, "vocabulary": tokenizer.vocabulary}
    files = {
        "config.json": json.dumps(shape, indent=1),
        "generation_config.json": json.dumps({"eos_token_id": ends}),
        "tokenizer.json": definition,
        "tokenizer_config.json": json.dumps(config, indent=1),
    }
    folder = Path(FURTHER_TEMPLATES).parent
    named = {
        "chat_template.jinja" if name == DEFAULT else f"{folder}/{name}.jinja": template
        for name, template in templates.items()
    }
    return files | named


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name."""
    start = "tokenizer.chat_template"
    keys = [key for key in metadata if re.fullmatch(rf"{re.escape(start)}(\.[\w-]+)?", key)]
    return {key.removeprefix(start)[1:] or DEFAULT: metadata[key] for key in sorted(keys, reverse=True)}


def _tokenizer(file: Path, metadata: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text of tokenizer.json and the content of tokenizer_config.json."""
    said = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    architecture, model, pre = metadata["general.architecture"], said.get("model"), said.get("pre", "default")
    if "tokens" not in said or model not in ("gpt2", "llama", "gemma4"):
        raise UnsupportedModel(
            f"{file} is a {architecture} with the tokenizer {model!r}: no language model that writes text"
        )
    # It takes seconds to import, and is of no use to a process that finds the folder made.
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_PRE_TOKENIZER_SPLITS,
        GGUF_TOKENIZER_MAPPING,
        convert_gguf_tokenizer,
    )

    if model == "gpt2":
        pre = LIKE.get(pre, pre)
        if pre not in (*GGUF_PRE_TOKENIZER_SPLITS, *DIGIT_BY_DIGIT, *GPT2):
            raise UnsupportedModel(
                f"{file} cuts text into words by {pre!r}, which cannot be read from a GGUF file: "
                "use the model's Hugging Face folder"
            )
    tokens = said["tokens"]
    kinds = said.get("token_type") or [NORMAL] * len(tokens)
    names = {key.removeprefix("ggml."): name for key, name in GGUF_TOKENIZER_MAPPING["tokenizer"].items()}
    given = {name: said[key] for key, name in names.items() if key in said}
    given["pre_tokenizer_type"] = pre
    given["token_type"] = [
        UNUSED if PADDING.fullmatch(token) else kind for token, kind in zip(tokens, kinds, strict=True)
    ]
    definition = json.loads(convert_gguf_tokenizer(architecture, given)[0].to_str())
    definition["added_tokens"] = [  # without those that transformers' classes add for themselves
        token for token in definition["added_tokens"] if token["id"] < len(tokens)
    ]
    if model == "gpt2":
        _mend_byte_level(definition, pre, tokens, kinds)
    elif said.get("add_space_prefix") is False and definition["pre_tokenizer"]["type"] == "Metaspace":
        definition["pre_tokenizer"]["prepend_scheme"] = "never"
    config: dict[str, Any] = {
        f"{name}_token": tokens[said[key]]
        for name, key in (
            ("bos", "bos_token_id"),
            ("eos", "eos_token_id"),
            ("unk", "unknown_token_id"),
            ("pad", "padding_token_id"),
            ("sep", "seperator_token_id"),  # as GGUF spells it
            ("cls", "cls_token_id"),
            ("mask", "mask_token_id"),
        )
        if said.get(key, len(tokens)) < len(tokens)
    }
    config["add_bos_token"] = said.get("add_bos_token", model != "gpt2" or pre in LLAMA3)
    return json.dumps(definition, ensure_ascii=False), config


def _mend_byte_level(definition: dict[str, Any], pre: str, tokens: list[str], kinds: list[int]) -> None:
    """Complete what transformers makes of a byte-level tokenizer."""
    definition["model"]["ignore_merges"] = pre in WHOLE
    if pre in DIGIT_BY_DIGIT:
        definition["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, definition["pre_tokenizer"]],
        }
    # A special token with characters that stand for no byte, such as DeepSeek's, is taken for text there.
    vocab = definition["model"]["vocab"]
    spelled = {i: text for text, i in vocab.items()}
    for token, text in enumerate(tokens):
        if kinds[token] == CONTROL and spelled.get(token) != text:
            vocab.pop(spelled.get(token), None)
            vocab[text] = token
            special = {"id": token, "content": text, "special": True, "normalized": False}
            definition["added_tokens"].append(
                special | {"single_word": False, "lstrip": False, "rstrip": False}
            )
