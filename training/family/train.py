"""Train the family from nothing: `python -m tandem.training.family.train target|tiny|small|medium|other|all`.

Budgets are in tokens, so the result does not depend on the machine's speed. The recipe: Muon for the matrices
of the blocks, AdamW for embeddings and norms, warm-up and cosine; float32 weights, bf16 products. About once
a minute a checkpoint goes to a work folder outside git, from which an interrupted training goes on, and the
weights are saved where they are used, so that a usable model exists early.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from tandem.engine.family import NAMES, WEIGHTS
from tandem.training.family.batches import Corpus, Mix
from tandem.training.family.models import new_named_model, save
from tandem.training.family.muon import Muon
from tandem.training.family.tokenizer import VOCABULARY, train_tokenizer

WARMUP_STEPS = 40
CLIP = 1.0
FINAL_LR = 0.02
"""Learning rate at the end of a stage, as a share of its peak."""
CHECKPOINT_S = 60.0


@dataclass(frozen=True)
class Stage:
    """A part of a training with its own schedule. `copying` is the share of steps on expansions alone."""

    tokens: int
    lr: float
    mix: Mix
    copying: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Plan of a training: stages in order, batches of `rows` x `length` tokens, and the seed."""

    stages: tuple[Stage, ...]
    rows: int = 4
    length: int = 512
    seed: int = 1

    def steps(self, stage: Stage) -> int:
        return max(1, stage.tokens // (self.rows * self.length))


EXPANSIONS = Mix(0.0, 0.0, expansions=0.2, copies=0.2, retold=0.6, rounds=8)
"""Mix of a copying step. A model of two layers learns to copy only from many of these at once."""
SMALL = (
    Stage(1_800_000, 8e-3, Mix(0.60, 0.40)),
    Stage(1_400_000, 6e-3, Mix(0.60, 0.40), copying=0.8),
)
PLANS = {
    "target": Plan((Stage(6_000_000, 6e-3, Mix(0.60, 0.36, 0.03, 0.01)),)),
    "tiny": Plan(SMALL, seed=4),
    "small": Plan(SMALL, seed=2),
    "medium": Plan((*SMALL, Stage(2_400_000, 6e-3, Mix(0.60, 0.40), copying=0.5)), seed=5),
    "other": Plan(SMALL, seed=3),
}


class Trainer:
    """One model on its way through its plan. Everything that a checkpoint holds is here."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.corpus = Corpus(tokenizer, plan.seed, plan.rows, plan.length)
        self.step = 0
        """Steps done, over all stages."""
        self._start_stage()

    def _start_stage(self) -> None:
        """Fresh optimisers: a stage begins with its own warm-up."""
        matrices = [p for name, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in name]
        chosen = {id(p) for p in matrices}
        rest = [p for p in self.model.parameters() if id(p) not in chosen]
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=0.0),
            torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        ]

    def locate(self) -> tuple[Stage, int] | None:
        """The stage of the next step and the steps already done in it; None when the plan is done."""
        done = self.step
        for stage in self.plan.stages:
            if done < self.plan.steps(stage):
                return stage, done
            done -= self.plan.steps(stage)
        return None

    def train_step(self) -> float:
        """Do one step; returns its cross-entropy in nats per counted token."""
        place = self.locate()
        if place is None:
            raise RuntimeError("the plan is done")
        stage, done = place
        if done == 0 and self.step > 0:
            self._start_stage()
        copying = Random(f"form {self.plan.seed} {self.step}").random() < stage.copying
        ids, counted = self.corpus.batch(self.step, EXPANSIONS if copying else stage.mix)
        with torch.autocast("cpu", torch.bfloat16):  # 1.8 times as fast where the CPU has bf16 instructions
            entropy = cross_entropy(self.model, ids, counted)
        entropy.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        rate = stage.lr * schedule(done, self.plan.steps(stage))
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
        self.model.zero_grad()
        self.step += 1
        return entropy.item()

    def save_checkpoint(self, path: Path) -> None:
        state = {
            "plan": repr(self.plan),
            "step": self.step,
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)

    def load_checkpoint(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        if state["plan"] != repr(self.plan):
            raise SystemExit(f"{path} belongs to another plan of training: delete it, or restore that plan")
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


def schedule(step: int, steps: int) -> float:
    """The learning rate at a step (from 0) as a share of the peak: linear warm-up times a cosine."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / WARMUP_STEPS) * (cosine * (1 - FINAL_LR) + FINAL_LR)


def cross_entropy(model: LlamaForCausalLM, ids: Tensor, counted: Tensor) -> Tensor:
    """The mean cross-entropy of the counted tokens, in nats; other logits are not computed."""
    chosen = counted[:, 1:]
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[:, :-1][chosen])
    return F.cross_entropy(logits.float(), ids[:, 1:][chosen])


def train(
    name: str, work: Path, fresh: bool = False, plan: Plan | None = None, weights: Path = WEIGHTS
) -> None:
    """Train a model of the family by its plan, from its checkpoint if there is one, and save its weights."""
    plan = plan or PLANS[name]
    torch.manual_seed(plan.seed)
    tokenizer = train_tokenizer(VOCABULARY[name])
    trainer = Trainer(new_named_model(name), tokenizer, plan)
    checkpoint = work / f"{name}.pt"
    if checkpoint.exists() and not fresh:
        trainer.load_checkpoint(checkpoint)
    total = sum(plan.steps(stage) for stage in plan.stages)
    tokens = plan.rows * plan.length
    columns = (
        TextColumn("{task.description:>7}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} steps, loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task(name, total=total, completed=trainer.step, loss=math.nan, speed=0.0)
        began, first, saved, smooth = time.monotonic(), trainer.step, time.monotonic(), math.nan
        while trainer.locate() is not None:
            entropy = trainer.train_step()
            smooth = entropy if math.isnan(smooth) else 0.97 * smooth + 0.03 * entropy
            speed = (trainer.step - first) * tokens / (time.monotonic() - began)
            progress.update(bar, completed=trainer.step, loss=smooth, speed=speed)
            if time.monotonic() - saved > CHECKPOINT_S:
                trainer.save_checkpoint(checkpoint)
                save(trainer.model, tokenizer, weights / name)
                progress.console.print(
                    f"{name}: {trainer.step} of {total} steps, loss {smooth:.3f}, {speed:.0f} tokens/s"
                )
                saved = time.monotonic()
    trainer.save_checkpoint(checkpoint)
    save(trainer.model, tokenizer, weights / name)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tandem.training.family.train", description=__doc__.split("\n")[0]
    )
    parser.add_argument("model", choices=[*NAMES, "all"], help="which model to train")
    parser.add_argument(
        "--work", type=Path, default=Path(".train"), help="folder of the checkpoints (%(default)s)"
    )
    parser.add_argument("--fresh", action="store_true", help="begin anew even if there is a checkpoint")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    parser.add_argument(
        "--tokens", type=float, default=1.0, help="multiply every budget of tokens (%(default)s)"
    )
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    disable_progress_bar()  # of transformers, which would break into ours at every save
    for name in NAMES if chosen.model == "all" else [chosen.model]:
        stages = tuple(
            replace(stage, tokens=int(stage.tokens * chosen.tokens)) for stage in PLANS[name].stages
        )
        train(name, chosen.work, chosen.fresh, replace(PLANS[name], stages=stages))


if __name__ == "__main__":
    main()
