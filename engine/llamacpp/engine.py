"""The engine over llama.cpp: a GGUF model behind the engine protocol, its steps in a thread of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tandem.engine.base import EngineInfo
from tandem.engine.core.engine import CoreEngine
from tandem.engine.core.step import Core
from tandem.engine.llamacpp.config import MAX_ROWS, LlamacppConfig
from tandem.engine.llamacpp.model import LlamaModel
from tandem.engine.llamacpp.runner import LlamaRunner
from tandem.engine.text.grammar import Grammars
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import drive


def load(
    file: Path,
    tokenizer: Tokenizer,
    config: LlamacppConfig,
    *,
    name: str | None = None,
    threads: int | None = None,
    report: Callable[[dict[str, object]], object] | None = None,
) -> CoreEngine:
    """Load an engine from a GGUF file.

    tokenizer: the file's.
    name: of the model, by default the file's.
    threads: most of a step; None for one on each CPU that this process may use.
    report: called with the loaded model's figures and memory, by name.

    Raises UnsupportedModel.
    """
    began_s, threads = time.perf_counter(), threads or len(os.sched_getaffinity(0))
    model = LlamaModel(
        file,
        cells=config.kv_tokens,
        rows=MAX_ROWS,
        batch_tokens=config.token_budget,
        threads=threads,
        gpu_layers=config.gpu_layers,
        reproducible=config.reproducible,
    )
    info = EngineInfo(
        model=name or file.stem,
        vocabulary=tokenizer.vocabulary,
        vocab_size=min(model.vocab_size, tokenizer.vocab_size),
        context=model.context,
        eos=tokenizer.eos,
    )
    core = Core(LlamaRunner(model, MAX_ROWS, config.block_size, info.vocab_size), config)
    grammars = Grammars(tokenizer, info.vocab_size)
    make = partial(CoreEngine, tokenizer=tokenizer, grammars=grammars)
    engine = drive(core, info, 1, make)  # torch only samples
    if report is not None:
        report(
            {
                "model": info.model,
                "load_s": round(time.perf_counter() - began_s, 2),
                "parameters": model.parameters,
                "bytes": model.size_bytes,
                "threads": threads,
                "kv_blocks": config.kv_blocks,
                "kv_tokens": config.kv_tokens,
            }
        )
    return engine
