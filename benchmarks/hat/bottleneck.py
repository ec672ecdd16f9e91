"""Bottleneck: whether a few numbers in place of a state hide a prompt, if they are trained to.

    tandem benchmark hat_bottleneck [--texts 4] [--steps 300]

In place of a state after m = 2 layers a device sends a few numbers that a linear map makes of it; the middle maps them
back to a state. Both maps are trained on texts of another world: to leave the whole model's distribution of next tokens
as it is, and, with a weight, to mislead a probe that learns at the same time to read the tokens. The attacker knows the
maps and the base model, as a cloud does that computes with them, and attacks as in `hat_leakage`: a probe trained anew,
and inversion, which runs the probe's likeliest candidates through the first layers and the map.

widths: numbers sent of each of a state's; weights: of misleading the probe. By width and weight, in this order, probe
and inversion: share of tokens that each attack recovers; kept: share of next tokens that are what they were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from tandem.benchmarks import report
from tandem.benchmarks.hat.leakage import Probe, Texts, Victim, attack, public_texts, texts
from tandem.engine import family
from tandem.training.family.models import load

DEPTH = 2
WIDTHS = (8, 16, 32, 64)
WEIGHTS = (0.0, 1.0)
BATCH, TOKENS = 8, 64
"""Texts of a training step, and tokens of each."""
RATE, PROBE_RATE = 0.003, 0.02
"""Learning rates of the maps and of the probe beside them."""


class Narrowed(Victim):
    """A victim that sends `width` numbers of a state; at first its principal components."""

    def __init__(self, whole: LlamaForCausalLM, depth: int, width: int, states: Tensor) -> None:
        """states: of other texts, [tokens, hidden]."""
        super().__init__(whole, depth)
        self.mean = states.mean(0)
        _, sizes, directions = torch.linalg.svd(states - self.mean, full_matrices=False)
        size = sizes[:width] / math.sqrt(len(states))
        self.down = nn.Parameter((directions[:width] / size[:, None]).clone())
        self.up = nn.Parameter((directions[:width] * size[:, None]).T.clone())

    def sent(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden - self.mean, self.down)

    def received(self, sent: Tensor) -> Tensor:
        return nn.functional.linear(sent, self.up) + self.mean


def train(narrowed: Narrowed, public: Texts, weight: float, steps: int) -> None:
    """Train the maps. weight: of misleading the probe; steps: of gradient descent."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.tensor([ids[:TOKENS] for ids in public if len(ids) >= TOKENS])
    vocabulary = narrowed.whole.config.vocab_size
    with torch.inference_mode(False), torch.enable_grad():
        probe = Probe(narrowed, torch.tensor(1.0), narrowed.down.shape[0])
        maps = torch.optim.Adam([narrowed.down, narrowed.up], lr=RATE)
        reader = torch.optim.Adam(probe.parameters(), lr=PROBE_RATE)
        for _ in range(steps):
            ids = rows[torch.randint(len(rows), (BATCH,), generator=generator)]
            seen: list[Tensor] = []

            def watched(sent: Tensor, seen: list[Tensor] = seen) -> Tensor:
                seen.append(sent)
                return sent

            with torch.no_grad():
                wanted = narrowed.whole(ids).logits.log_softmax(-1)
            said = narrowed.logits(ids, watched).log_softmax(-1)
            lost = nn.functional.kl_div(said, wanted, reduction="none", log_target=True).sum(-1).mean()
            (sent,), tokens = seen, ids.flatten()
            read = nn.functional.cross_entropy(probe(sent.flatten(0, 1)), tokens)
            maps.zero_grad()
            (lost - weight * read.clamp(max=math.log(vocabulary))).backward()
            maps.step()
            reader.zero_grad()
            nn.functional.cross_entropy(probe(sent.detach().flatten(0, 1)), tokens).backward()
            reader.step()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = report.parser("hat_bottleneck", __doc__)
    parser.add_argument("--texts", type=int, default=4, help="prompts that are attacked (default 4)")
    parser.add_argument("--steps", type=int, default=300, help="of training (default 300)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    whole, tokenizer = load(family.path("target"))
    whole.requires_grad_(False)
    public, prompts = public_texts(tokenizer), texts(tokenizer, options.texts)
    plain, cases = Victim(whole, DEPTH), list(product(WIDTHS, WEIGHTS))
    rows, figures = [], []
    with torch.inference_mode():
        no_noise = torch.Generator()
        states = torch.cat([plain.states(ids, 0.0, no_noise) for ids in public])
    for width, weight in report.progress(cases, "bottlenecks"):
        narrowed = Narrowed(whole, DEPTH, width, states.clone())
        train(narrowed, public, weight, options.steps)
        with torch.inference_mode():
            found = attack(narrowed, public, prompts, 0.0)
        figures.append(found)
        rows.append([str(width), f"{weight:g}", *(f"{share:.1%}" for share in found)])
    report.table(
        f"Tokens recovered of {len(prompts)} prompts, of states of {states.shape[1]} numbers, m = {DEPTH}",
        ["numbers sent", "weight of misleading", "probe", "inversion", "next tokens kept"],
        rows,
    )
    report.figures(
        "hat_bottleneck",
        {
            "widths": list(WIDTHS),
            "weights": list(WEIGHTS),
            **{
                name: [round(getattr(found, name), 3) for found in figures]
                for name in ("probe", "inversion", "kept")
            },
        },
    )


if __name__ == "__main__":
    main()
