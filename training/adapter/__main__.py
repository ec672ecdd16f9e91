"""Train the adapter with which the outer part of a split model drafts, and evaluate its drafts:

    tandem adapter [MODEL] [--layers m] --out FILE                  train and evaluate
    tandem adapter evaluate [MODEL] [--layers m] [--adapter FILE]   evaluate one that there is
    tandem adapter answers MODEL --questions FILE --out CORPUS      write a corpus of its own answers

MODEL is a model of the embedded family, a local folder, or a hub's org/name that the torch engine runs. Without options
it is the embedded target with m = 2, on texts about the family's world. For any other model give --corpus: one JSON
object a line, {"question": …, "answer": …}. One line in 20 is kept for evaluation, unless --judge names other files.

The adapter is one attention block of the model's shape behind its first m layers. The model itself stays as it is.
Beside FILE (*.safetensors) goes a report of the same name (*.json); `tandem split MODEL --layers m
--adapter FILE` makes a bundle with it. The same options give the same file, on the same machine with as many threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from tandem.deployments.pools.models import model_folder
from tandem.engine import family
from tandem.engine.base import EngineError
from tandem.engine.models.model_folder import model_name, shape
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.split import bundle
from tandem.engine.torch.weights import check_adaptable
from tandem.training.adapter import answers, texts
from tandem.training.adapter.distil import (
    KEPT_BYTES,
    LOSSES,
    TOGETHER,
    VISITS,
    Distillation,
    compared,
    kept_bytes,
    lessons,
)
from tandem.training.adapter.evaluate import ETAS, Figures, Questions, measure, table

JUDGING_SEED = 11
"""Seed of the family's held-out questions; choices were made with seed 5."""
SMOOTHING = 0.97


def main(arguments: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["answers"]:
        answers.main(words[1:])
        return
    evaluating = words[:1] == ["evaluate"]
    options = _parser(evaluating).parse_args(words[evaluating:])
    torch.set_num_threads(options.threads)
    embedded = options.model in family.NAMES
    file: Path | None = options.file
    if file is None and evaluating and embedded:
        file = family.adapter_file(options.model, options.layers)
    if file is None:
        sys.exit(f"{'which adapter? give --adapter' if evaluating else 'where to? give --out'} FILE")
    if not embedded and options.corpus is None and not (evaluating and options.judge):
        sys.exit("the family's texts are nothing to this model: give --corpus FILE")
    try:
        model = model_folder(options.model)
        check_adaptable(shape(model))
        split = bundle.describe(model, options.layers)
        report: dict[str, Any] = {
            "model": model_name(model.resolve()),
            "checksum": split.checksum,
            "layers": split.first,
        }
        questions = _questions(model, options)
        if not evaluating:
            report["training"] = _train(model, file, options)
        figures = _evaluate(model, file, questions, options)
    except (EngineError, OSError, ValueError) as error:
        sys.exit(str(error))
    report["figures"] = {group: found.report() for group, found in figures.items()}
    if not evaluating:
        file.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    Console(width=120).print(table(figures))
    print(json.dumps(report))


def _parser(evaluating: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem adapter" + (" evaluate" if evaluating else ""),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default="target",
        help="name, folder, or hub's org/name (%(default)s)",
    )
    parser.add_argument("--layers", type=int, metavar="m", default=2, help="shallow layers (%(default)s)")
    if evaluating:
        parser.add_argument(
            "--adapter", dest="file", type=Path, metavar="FILE", help="default: the family's own"
        )
    else:
        parser.add_argument("--out", dest="file", type=Path, metavar="FILE", help="*.safetensors to write")
        parser.add_argument("--steps", type=int, default=2500, help="batches to learn from (%(default)s)")
        parser.add_argument(
            "--loss",
            choices=LOSSES,
            default="kl",
            help="hat: smooth L1 and cross-entropy, its paper's (%(default)s)",
        )
        parser.add_argument("--rate", type=float, default=0.02, help="highest learning rate (%(default)s)")
        parser.add_argument("--batch", type=int, default=2048, help="tokens of a batch (%(default)s)")
        parser.add_argument("--seed", type=int, default=1, help="of texts and weights (%(default)s)")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="JSON lines; default: the family's texts")
    parser.add_argument(
        "--judge",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="JSON lines to evaluate with, a group a file; default: of the corpus",
    )
    parser.add_argument("--length", type=int, default=512, help="tokens of question and answer (%(default)s)")
    parser.add_argument(
        "--questions",
        type=int,
        default=60,
        help="to evaluate with; of the family, and twice as many facts (%(default)s)",
    )
    parser.add_argument(
        "--judging-seed",
        type=int,
        default=JUDGING_SEED,
        help="of the family's questions to evaluate with (%(default)s)",
    )
    parser.add_argument("--eta", type=float, nargs="+", default=list(ETAS), help="thresholds (0 to 0.9)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    return parser


def _questions(model: Path, options: argparse.Namespace) -> Questions:
    """Return the prompts to evaluate with."""
    tokenizer = Tokenizer.load(model)
    if options.judge:
        groups = {file.stem: texts.read(file) for file in options.judge}
    elif options.corpus is None:
        return texts.family_questions(tokenizer, options.questions, options.judging_seed)
    else:
        groups = {"questions": texts.divided(options.corpus)[1]}
    return {
        group: _short(tokenizer, lines, group, options.length)[: options.questions]
        for group, lines in groups.items()
    }


def _short(tokenizer: Tokenizer, lines: Sequence[texts.Line], group: str, length: int) -> list[list[int]]:
    """Return the prompts of fewer than `length` tokens. Raises ValueError if there is none."""
    prompts = [texts.prompt_of(tokenizer, line.question) for line in lines]
    short = [prompt for prompt in prompts if len(prompt) < length]
    if not short:
        raise ValueError(f"no question to evaluate with ({group}) has fewer than {length} tokens")
    return short


def _train(model: Path, file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the adapter; returns what the report says of its training."""
    rng = Random(f"adapter {options.seed}")
    torch.manual_seed(options.seed)
    disable_progress_bar()  # of transformers
    together, visits, tokens = TOGETHER, VISITS, None
    if options.corpus is None:
        batches = texts.batches(texts.of_family(Tokenizer.load(model), rng), options.batch, rng)
    else:
        lines, config = texts.divided(options.corpus)[0], shape(model)
        known = texts.documents_of(Tokenizer.load(model), lines, options.length)
        tokens, whole = compared(known, config.vocab_size), texts.grouped(known, options.batch, rng)
        if kept_bytes(whole, config.hidden) <= KEPT_BYTES:
            batches, together, visits = iter(whole), len(whole), options.steps
        else:
            batches = texts.batches(texts.again_and_again(known, rng), options.batch, rng)
    frozen = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval().requires_grad_(False)
    run = Distillation(frozen, options.layers, options.loss, options.rate, options.steps, tokens)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}, loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    began_s, learnt, smooth = time.monotonic(), 0, math.nan
    with Progress(*columns, console=Console(stderr=True)) as progress:
        supply = lessons(run, batches, rng, together, visits)
        bar = progress.add_task("distilling", total=options.steps, loss=math.nan)
        while run.done < options.steps:
            lesson = next(supply)
            loss = run.step(lesson)
            smooth = loss if math.isnan(smooth) else SMOOTHING * smooth + (1 - SMOOTHING) * loss
            learnt += lesson.counted.numel()
            progress.update(bar, completed=run.done, loss=smooth)
    run.adapter.save(file, AutoConfig.from_pretrained(model).dtype or torch.float32)
    settings = {name: getattr(options, name) for name in ("steps", "batch", "loss", "rate", "seed")}
    return settings | {
        "corpus": "the family's" if options.corpus is None else options.corpus.name,
        "parameters": sum(parameter.numel() for parameter in run.adapter.parameters()),
        "tokens": learnt,
        "seconds": round(time.monotonic() - began_s),
        "last_loss": round(smooth, 4),
    }


def _evaluate(
    model: Path, file: Path, questions: Questions, options: argparse.Namespace
) -> dict[str, Figures]:
    total = len(options.eta) * sum(map(len, questions.values()))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("answers in rounds", total=total)
        return asyncio.run(
            measure(
                model,
                options.layers,
                file,
                questions,
                options.length,
                options.eta,
                lambda: progress.advance(bar),
            )
        )


if __name__ == "__main__":
    main()
