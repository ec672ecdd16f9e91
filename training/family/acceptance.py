"""Record acceptance sequences of a real pair: `python -m tandem.training.family.acceptance --out FILE.jsonl`.

For each held-out question the target answers greedily; then one forward pass of the small model over question and
answer shows at every position whether it would have drafted the target's own token. With greedy decoding
that is all there is to know about a pair: a rejected draft is replaced by the target's token, so the sequence
is the same for every window. Lines: {"family": task family, "acceptance": "0110…"}, the end token included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tandem.engine.family import path
from tandem.training.family.encyclopedia.items import TASK_KINDS
from tandem.training.family.evaluate import ANSWER_TOKENS, next_logits
from tandem.training.family.generate import generate
from tandem.training.family.models import load
from tandem.training.family.prompts import answer_prompt, heldout


@torch.inference_mode()
def record(
    target: Path, small: Path, questions: int, kinds: Sequence[str], seed: int, progress: Progress
) -> Iterator[tuple[str, str]]:
    """Yield (family, acceptance) of `questions` held-out questions of each kind."""
    model, tokenizer = load(target)
    drafter = load(small)[0]
    for kind in kinds:
        prompts = [answer_prompt(item.question) for item in heldout(questions, [kind], seed)]
        bar = progress.add_task(kind, total=2 * len(prompts))
        answers = generate(model, tokenizer, prompts, ANSWER_TOKENS, False, partial(progress.advance, bar))
        for prompt, answer in zip(prompts, answers, strict=True):
            start = tokenizer.encode(prompt)
            ids = torch.tensor([[*start, *answer]])
            own, drafted = (next_logits(m, ids, len(start)).argmax(-1) for m in (model, drafter))
            progress.advance(bar)
            yield kind, "".join("1" if same else "0" for same in (own == drafted).tolist())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tandem.training.family.acceptance", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument("--target", type=Path, default=path("target"), help="model folder")
    parser.add_argument("--small", type=Path, default=path("small"), help="model folder")
    parser.add_argument("--questions", type=int, default=30, help="of each family (%(default)s)")
    parser.add_argument("--kinds", nargs="+", default=list(TASK_KINDS), choices=TASK_KINDS, help="families")
    parser.add_argument("--seed", type=int, default=21, help="of the questions (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    shares: dict[str, list[str]] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress, chosen.out.open("w") as file:
        for kind, bits in record(
            chosen.target, chosen.small, chosen.questions, chosen.kinds, chosen.seed, progress
        ):
            file.write(json.dumps({"family": kind, "acceptance": bits}) + "\n")
            shares.setdefault(kind, []).append(bits)
    table = Table("family", "answers", "tokens", "acceptance per token", title="Greedy, held-out questions")
    for kind, found in shares.items():
        every = "".join(found)
        table.add_row(kind, str(len(found)), str(len(every)), f"{every.count('1') / len(every):.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
