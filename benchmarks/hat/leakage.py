"""Leakage: how much of a prompt its hidden states reveal to a cloud that has the public base model.

    tandem benchmark hat_leakage [--texts 6]

A device uploads the hidden states after its first m layers (float16, as on the wire). An attacker tries to
recover the prompt in two ways. A **probe**: a linear map from a state to the public embedding of its token, trained on
texts of another world, in which no name is one of the prompts'. An **inversion**: token by token, the probe's likeliest
candidates are run through the public model's first m layers after the prefix recovered so far, and the one whose state
is nearest is taken. Both know the amount of noise. The prompts are held-out questions with their answers, on the
embedded target.

Noise of a given share of a state's root mean square is what a device may add. Its price, where there is an adapter:
the share of the answers' tokens that this would still have drafted, and of the whole model's tokens that the answers
still have; and, of a text as it is, the share of next tokens that the model then says otherwise.

probe_m2, inversion_m2: share of tokens recovered without noise, at m = 2; inversion_deepest: at the largest m tried.
noises: the shares tried; recovered, acceptance, accepted, exact, begun: of each, at m = 2, what inversion recovers, and
what `benchmarks.hat.noise` says of its price.
noise_halving: the least of them at which inversion recovers half of the tokens or less at m = 2, and kept_at_halving:
the share of next tokens that are what they were, at that noise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import takewhile
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.benchmarks import report
from tandem.benchmarks.hat.noise import Price, noisy, prices
from tandem.engine import family
from tandem.engine.text.tokenizer import Tokenizer
from tandem.training.family.encyclopedia.items import LONG_KINDS, Item, make_item
from tandem.training.family.encyclopedia.world import World
from tandem.training.family.models import load
from tandem.training.family.prompts import answer_prompt, answer_text, heldout, heldout_questions

DEPTHS = (1, 2, 4, 6, 9, 11)
NOISES = (0.0, 0.2, 0.4, 0.8, 1.6, 3.2)  # shares of a state's root mean square
NOISY_DEPTH = 2
CANDIDATES = 64  # of the probe, that inversion looks at
PROBE_TEXTS, PROBE_STEPS, PROBE_BATCH = 400, 400, 1024
LONGEST = 96  # tokens of a prompt
ANSWERS = 24  # for measuring the price
ANSWER_TOKENS = 256  # of question and answer

Texts = Sequence[list[int]]


class Recovered(NamedTuple):
    """Shares of tokens that the probe alone and the inversion read, and of next tokens that noise left alone."""

    probe: float
    inversion: float
    kept: float


class Victim:
    """The base model, cut after its first `depth` layers as the attacker runs it."""

    def __init__(self, whole: LlamaForCausalLM, depth: int) -> None:
        self.whole, self.depth = whole, depth
        self.shallow = LlamaForCausalLM(whole.config).model.eval()
        self.shallow.load_state_dict(whole.model.state_dict())
        self.shallow.layers = self.shallow.layers[:depth]
        self.shallow.norm = nn.Identity()

    def sent(self, hidden: Tensor) -> Tensor:
        """Return what a device sends of hidden states; here all of them."""
        return hidden

    def received(self, sent: Tensor) -> Tensor:
        """Return the hidden states with which the middle goes on."""
        return sent

    def states(self, ids: list[int], noise: float, generator: torch.Generator) -> Tensor:
        """Return what is uploaded of a text, [tokens, hidden]."""
        hidden = self.shallow(torch.tensor([ids])).last_hidden_state[0]
        return noisy(self.sent(hidden), noise, generator).half().float()

    def invert(self, states: Tensor, candidates: Tensor) -> list[int]:
        """The tokens whose states come nearest, one after the other. candidates: [tokens, CANDIDATES]."""
        found: list[int] = []
        cache = DynamicCache(config=self.shallow.config)
        for state, tried in zip(states, candidates, strict=True):
            cache.batch_repeat_interleave(len(tried))
            hidden = self.shallow(tried[:, None], past_key_values=cache).last_hidden_state[:, 0]
            best = int((self.sent(hidden) - state).square().sum(-1).argmin())
            cache.batch_select_indices(torch.tensor([best]))
            found.append(int(tried[best]))
        return found

    def next_tokens(self, ids: list[int], noise: float, generator: torch.Generator) -> Tensor:
        """Return the whole model's next token after each token if the middle is given what is uploaded, [tokens]."""
        given = torch.tensor([ids])
        return self.logits(given, lambda sent: noisy(sent, noise, generator))[0].argmax(-1)

    def logits(self, ids: Tensor, changed: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the whole model's logits, [texts, tokens, vocab], if what is sent is changed on its way. ids: [texts,
        tokens]."""

        def cut(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            if args:
                return (self.received(changed(self.sent(args[0]))), *args[1:]), options
            hidden = self.received(changed(self.sent(options["hidden_states"])))
            return args, options | {"hidden_states": hidden}

        layers: Any = self.whole.model.layers
        hook = layers[self.depth].register_forward_pre_hook(cut, with_kwargs=True)
        try:
            logits: Tensor = self.whole(ids).logits
        finally:
            hook.remove()
        return logits


class Probe(nn.Module):
    """Linear map from states to tokens, through their public embeddings: so it also finds tokens that it has never
    seen."""

    embedding: Tensor
    scale: Tensor

    def __init__(self, victim: Victim, scale: Tensor, width: int) -> None:
        """width: numbers of a state."""
        super().__init__()
        embedding = victim.whole.model.embed_tokens.weight.detach().clone()
        self.register_buffer("embedding", nn.functional.normalize(embedding, dim=-1))
        self.register_buffer("scale", scale)
        self.map = nn.Linear(width, embedding.shape[1])

    def forward(self, states: Tensor) -> Tensor:
        """[tokens, width] to logits [tokens, vocab]."""
        return nn.functional.linear(self.map(states / self.scale), self.embedding)


def train_probe(victim: Victim, texts: Texts, noise: float, generator: torch.Generator) -> Probe:
    """Train a probe for the victim's states with this noise."""
    states = torch.cat([victim.states(ids, noise, generator) for ids in texts])
    tokens = torch.tensor([token for ids in texts for token in ids])
    with torch.inference_mode(False), torch.enable_grad():
        states = states.clone()
        probe = Probe(victim, states.square().mean().sqrt(), states.shape[-1])
        optimiser = torch.optim.AdamW(probe.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, PROBE_STEPS)
        for _ in range(PROBE_STEPS):
            rows = torch.randint(len(tokens), (PROBE_BATCH,), generator=generator)
            loss = nn.functional.cross_entropy(probe(states[rows]), tokens[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return probe


def attack(victim: Victim, public: Texts, prompts: Texts, noise: float) -> Recovered:
    """Attack all prompts."""
    generator = torch.Generator().manual_seed(0)
    probe = train_probe(victim, public, noise, generator)
    by_probe = by_inversion = kept = 0
    for ids in prompts:
        states = victim.states(ids, noise, generator)
        candidates = probe(states).topk(CANDIDATES).indices
        by_probe += _same(candidates[:, 0].tolist(), ids)
        by_inversion += _same(victim.invert(states, candidates), ids)
        clean = victim.whole(torch.tensor([ids])).logits[0].argmax(-1)
        kept += _same(clean.tolist(), victim.next_tokens(ids, noise, generator).tolist())
    total = sum(map(len, prompts))
    return Recovered(by_probe / total, by_inversion / total, kept / total)


def public_texts(tokenizer: PreTrainedTokenizerFast, count: int = PROBE_TEXTS) -> Texts:
    """Return the texts that probes are trained on."""
    rng, elsewhere = Random(0), World(1)
    return _ids(tokenizer, [make_item(elsewhere, rng, rng.choice(LONG_KINDS)) for _ in range(count)])


def texts(tokenizer: PreTrainedTokenizerFast, count: int) -> Texts:
    """Prompts to attack."""
    return _ids(tokenizer, heldout(count))


def _ids(tokenizer: PreTrainedTokenizerFast, items: Sequence[Item]) -> Texts:
    said = [answer_prompt(item.question) + answer_text(item) for item in items]
    return [tokenizer(text, add_special_tokens=False)["input_ids"][:LONGEST] for text in said]


def _same(found: Sequence[int], real: Sequence[int]) -> int:
    return sum(a == b for a, b in zip(found, real, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = report.parser("hat_leakage", __doc__)
    parser.add_argument("--texts", type=int, default=6, help="prompts that are attacked (default 6)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    whole, tokenizer = load(family.path("target"))
    public, prompts = public_texts(tokenizer), texts(tokenizer, options.texts)
    wanted = [(m, 0.0) for m in DEPTHS] + [(NOISY_DEPTH, noise) for noise in NOISES[1:]]
    found: dict[tuple[int, float], Recovered] = {}
    with torch.inference_mode():
        for depth, noise in report.progress(wanted, "attacks"):
            found[depth, noise] = attack(Victim(whole, depth), public, prompts, noise)
    report.table(
        f"Tokens recovered of {len(prompts)} prompts",
        ["m", "noise", "probe", "inversion", "next tokens kept"],
        [[str(m), f"{n:g}", *(f"{share:.1%}" for share in got)] for (m, n), got in found.items()],
    )
    paid = asyncio.run(paid_for(NOISES))
    report.table(
        f"What noise costs, m = {NOISY_DEPTH}, {ANSWERS} answers",
        ["noise", "acceptance", "accepted a round", "tokens as they were", "… before the first other one"],
        [
            [f"{noise:g}", f"{p.acceptance:.1%}", f"{p.accepted:.2f}", f"{p.exact:.1%}", f"{p.begun:.1%}"]
            for noise, p in paid.items()
        ],
    )
    at_depth = [(noise, found[NOISY_DEPTH, noise]) for noise in NOISES]
    above = list(takewhile(lambda one: one[1].inversion > 0.5, at_depth))
    noise, halved = at_depth[min(len(above), len(at_depth) - 1)]
    report.figures(
        "hat_leakage",
        {
            "probe_m2": round(found[2, 0.0].probe, 3),
            "inversion_m2": round(found[2, 0.0].inversion, 3),
            "inversion_deepest": round(found[DEPTHS[-1], 0.0].inversion, 3),
            "noises": list(NOISES),
            "recovered": [round(one.inversion, 3) for _, one in at_depth],
            **{what: [round(getattr(p, what), 3) for p in paid.values()] for what in Price._fields},
            "noise_halving": noise if halved.inversion <= 0.5 else float("inf"),
            "kept_at_halving": round(halved.kept, 3),
        },
    )


async def paid_for(noises: Sequence[float], answers: int = ANSWERS) -> dict[float, Price]:
    """Return prices by noise, where there is an adapter. answers: number of those whose price is seen."""
    model = family.path("target")
    tokenizer = Tokenizer.load(model)
    prompts = [
        tokenizer.render_chat([{"role": "user", "content": question}])
        for question in heldout_questions(answers, seed=5)
    ]
    adapter = family.adapter("target", NOISY_DEPTH)
    return await prices(model, NOISY_DEPTH, adapter, prompts, ANSWER_TOKENS, noises)


if __name__ == "__main__":
    main()
