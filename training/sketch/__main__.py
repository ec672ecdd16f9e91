"""Tune the embedded target to shorter sketches with equally good expansions (PICE):

    python -m tandem.training.sketch tune [--out FILE]         tune, judge, and write FILE if the bar is met
    python -m tandem.training.sketch evaluate [--delta FILE]   judge a change that there is
    python -m tandem.training.sketch merge OUT [--delta FILE]  write a model folder with the change in it

Three steps. Supervised: notes lose the words without which the expander's sentence stays as good. Reward: pairs of
sampled sketches, scored b1 / len(r) + b2 · ROUGE-1(expand(r), y), teach a model which of two scores more. Reinforced:
J = E[(1 − γ) · R(r|x) − γ · KL(π_RL ‖ π)], π being the supervised model. What is learnt is a low-rank change of the
target's matrices (LoRA), which is all that FILE holds (*.safetensors); beside it goes a report (*.json). The bar, on
phrasings never trained on: at least 10 % fewer tokens of sketch at no less ROUGE-1 and no fewer facts in the expansion.
The same options give the same file, on the same machine with as many threads.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from tandem.engine.family import path, sketch_delta_file
from tandem.training.family import models
from tandem.training.family.prompts import heldout
from tandem.training.sketch import low_rank
from tandem.training.sketch.evaluate import Figures, compare, measure, table
from tandem.training.sketch.score import Expander
from tandem.training.sketch.tune import Plan, tune

JUDGING_SEED = 11
"""Seed of the family's held-out questions; choices were made with seed 5."""
COLUMNS = (
    TextColumn("{task.description} {task.fields[figure]:.3f}"),
    BarColumn(),
    TextColumn("{task.completed}/{task.total}"),
    TimeRemainingColumn(),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    disable_progress_bar()  # of transformers
    try:
        _run(options)
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def _run(options: argparse.Namespace) -> None:
    target, tokenizer = models.load(options.target)
    if options.command == "merge":
        low_rank.apply(target, options.delta)
        models.save(target, tokenizer, options.out)
        print(f"{options.out}: {options.target.name} with {options.delta.name}")
        return
    changed = models.load(options.target)[0]
    if options.command == "evaluate":
        low_rank.apply(changed, options.delta)
    torch.set_num_threads(options.threads)
    expander = Expander(models.load(options.expander)[0], tokenizer)
    report: dict[str, Any] = {"target": options.target.name, "expander": options.expander.name}
    stages = {"before": _measure(target, expander, options)}
    if options.command == "tune":
        plan = Plan(**{field.name: getattr(options, field.name) for field in fields(Plan)})
        with Progress(*COLUMNS, console=Console(stderr=True)) as progress:
            report["training"] = tune(
                target,
                expander,
                plan,
                progress,
                lambda model: stages.update(supervised=_measure(model, expander, options)),
            )
        low_rank.save(target, options.out)
        low_rank.apply(changed, options.out)
    stages["after"] = _measure(changed, expander, options)
    report["figures"] = {stage: figures.report() for stage, figures in stages.items()}
    report["changes"] = compare(stages["before"], stages["after"])
    if options.command == "tune":
        options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if not report["changes"]["bar_met"]:
            options.out.unlink()
    Console(width=120).print(table(stages))
    print(json.dumps(report))


def _measure(target: LlamaForCausalLM, expander: Expander, options: argparse.Namespace) -> Figures:
    items = heldout(options.questions, seed=options.judging_seed)
    facts = heldout(options.questions, ["fact"], options.judging_seed)
    return measure(target, expander, items, facts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tandem.training.sketch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="tune | evaluate | merge")
    tuning, judging, merging = (commands.add_parser(name) for name in ("tune", "evaluate", "merge"))
    for command in (tuning, judging, merging):
        command.add_argument(
            "--target", type=Path, default=path("target"), help="model folder (the family's)"
        )
    for command in (judging, merging):
        command.add_argument(
            "--delta", type=Path, default=sketch_delta_file(), help="*.safetensors (the family's)"
        )
    merging.add_argument("out", type=Path, metavar="OUT", help="folder")
    tuning.add_argument("--out", type=Path, default=sketch_delta_file(), help="*.safetensors (the family's)")
    for command in (tuning, judging):
        command.add_argument(
            "--expander", type=Path, default=path("small"), help="model folder (the family's small)"
        )
        command.add_argument("--questions", type=int, default=100, help="to judge with (%(default)s)")
        command.add_argument(
            "--judging-seed", type=int, default=JUDGING_SEED, help="of these questions (%(default)s)"
        )
        command.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    explained = dict(re.findall(r"^ +(\w+): (.+)\.$", Plan.__doc__ or "", re.MULTILINE))
    for field in fields(Plan):
        tuning.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            help=f"{explained[field.name]} (%(default)s)",
        )
    return parser


if __name__ == "__main__":
    main()
