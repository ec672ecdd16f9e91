"""Prompts for filling in: the text between a prompt and its suffix."""

from __future__ import annotations

from tandem.app.api.http.errors import no_filling
from tandem.engine.text.tokenizer import Tokenizer

MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SmolLM
)


def filled(prompt: str, suffix: str, tokenizer: Tokenizer) -> str:
    """Return the prompt for the text between both. Raise ApiError for a vocabulary without tokens for that."""
    for before, after, middle in MARKS:
        if all(_is_token(mark, tokenizer) for mark in (before, after, middle)):
            return f"{before}{prompt}{after}{suffix}{middle}"
    raise no_filling()


def _is_token(mark: str, tokenizer: Tokenizer) -> bool:
    return sum(tokenizer.token_bytes(token) == mark.encode() for token in tokenizer.encode(mark)) == 1
