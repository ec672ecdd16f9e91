"""An engine with Tandem's own core and a model that knows what to say: forms, speculation and sampling are real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from tandem.engine.base import EngineInfo
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine
from tandem.engine.torch.engine import start
from tests.app.api.null_backend import EOS, TOKENIZER
from tests.engine.torch.history_model import HistoryModel

Script = Callable[[str], str]
"""Gives the answer to a prompt."""
ANSWER = TOKENIZER.special_id("<|a|>")
WORD = TOKENIZER.encode(" and")[0]
CONTEXT = 8192
LIKELY, ELSEWHERE = 60.0, 30.0


def scripted(script: Script, name: str) -> CoreEngine:
    """Return an engine that says what the script does, where its form allows that. name: of its model."""
    model = HistoryModel(CONTEXT, TOKENIZER.vocab_size, lambda tokens: _logits(script, tokens))
    info = EngineInfo(
        model=name,
        vocabulary=TOKENIZER.vocabulary,
        vocab_size=TOKENIZER.vocab_size,
        context=CONTEXT,
        eos=EOS,
    )
    config = EngineConfig(kv_blocks=2 * CONTEXT // 16)
    return start(cast(Any, model), info, config, TOKENIZER, threads=1)


def _logits(script: Script, tokens: Sequence[int]) -> torch.Tensor:
    """Return logits of the script's next token, and less likely ones of the end; a text goes on with one word."""
    logits = torch.zeros(TOKENIZER.vocab_size)
    if ANSWER not in tokens:
        logits[WORD] = LIKELY
        return logits
    begin = len(tokens) - 1 - tokens[::-1].index(ANSWER)
    prompt, output = tokens[: begin + 1], list(tokens[begin + 1 :])
    answer = [*TOKENIZER.encode(script(TOKENIZER.decode(prompt))), EOS]
    logits[EOS] = ELSEWHERE
    if len(output) < len(answer) and output == answer[: len(output)]:
        logits[answer[len(output)]] = LIKELY
    return logits
