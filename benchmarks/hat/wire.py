"""Loss of hidden states on the wire: share of a model's next tokens that each kind keeps, and its bits a number.

    tandem benchmark hat_wire [--model DIR] [--layers 2] [--texts 24]

The states after a device's first layers go through `pack` and `unpack` of each kind on their way up, and what the model
returns of them (before its last norm) through those of the kind that comes back. A next token is kept if it is the one
that the model says with exact states, after each token of a text as it is. Without `--model`: the embedded target and
held-out questions with answers; with the folder of another model, GSM8K's questions with their answers, and by
themselves SpecBench's prompts, within which a model is asked for no token and is less sure of the next.

kept_*, bits_*: share of the texts' next tokens, and bits of a number, by kind; *_prompts: of SpecBench's prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tandem.benchmarks import report
from tandem.benchmarks.hat.leakage import texts
from tandem.benchmarks.paths import DATA
from tandem.engine import family
from tandem.engine.split.hidden_states import KINDS, Kind, back, pack, unpack
from tandem.training.family.models import load

LONGEST = 200  # tokens of a text


class Kept(NamedTuple):
    """Share of next tokens that are what they were, and bits of a number on its way up."""

    kept: float
    bits: float


class Travelling:
    """A model whose hidden states travel after its first layers, and back before its last norm, if `kind` is set."""

    def __init__(self, model: Any, layers: int) -> None:
        self.model, self.layers = model, layers
        self.kind: Kind | None = None
        self.bytes = self.numbers = 0

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Have them travel within the context."""
        hooks = [
            self.model.model.layers[self.layers].register_forward_pre_hook(self._up, with_kwargs=True),
            self.model.model.norm.register_forward_pre_hook(self._down),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def said(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the next token after each."""
        logits: torch.Tensor = self.model(torch.tensor([ids])).logits[0]
        return logits.argmax(-1)

    def _up(
        self, _: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (self._travelled(args[0], self.kind, True), *args[1:]), options
        return args, options | {"hidden_states": self._travelled(options["hidden_states"], self.kind, True)}

    def _down(self, _: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._travelled(args[0], None if self.kind is None else back(self.kind), False),)

    def _travelled(self, states: torch.Tensor, kind: Kind | None, up: bool) -> torch.Tensor:
        if kind is None:
            return states
        packed = pack(states[0].float().numpy(), kind)
        if up:
            self.bytes += packed.data.nbytes
            self.numbers += states.numel()
        return torch.tensor(unpack(packed, states.shape[-1]))[None].to(states.dtype)


def measure(model: Any, layers: int, asked: Sequence[Sequence[int]]) -> dict[Kind, Kept]:
    """Return what each kind keeps of the next tokens of these texts, and its bits."""
    travelling, found = Travelling(model, layers), {}
    with torch.inference_mode(), travelling.hooked():
        exact = [travelling.said(ids) for ids in asked]
        for kind in report.progress(KINDS, "kinds"):
            travelling.kind, travelling.bytes, travelling.numbers = kind, 0, 0
            kept = sum(
                int((travelling.said(ids) == said).sum()) for ids, said in zip(asked, exact, strict=True)
            )
            found[kind] = Kept(kept / sum(map(len, asked)), 8 * travelling.bytes / travelling.numbers)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = report.parser("hat_wire", __doc__)
    parser.add_argument("--model", type=Path, help="folder of another model")
    parser.add_argument("--layers", type=int, default=2, help="first layers, at the device (default 2)")
    parser.add_argument("--texts", type=int, default=24, help="(default 24)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.model is None:
        model, tokenizer = load(family.path("target"))
        sets = {"": texts(tokenizer, options.texts)}
    else:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
        reader = AutoTokenizer.from_pretrained(options.model)
        sets = {
            suffix: [reader(text)["input_ids"][:LONGEST] for text in some]
            for suffix, some in (("", _answers(options.texts)), ("_prompts", _prompts(options.texts)))
        }
    figures: dict[str, float] = {}
    for suffix, asked in sets.items():
        found = measure(model, options.layers, asked)
        report.table(
            f"{sum(map(len, asked))} next tokens of {options.model or 'target'}{suffix}, m = {options.layers}",
            ["kind", "kept", "bits"],
            [[kind, f"{one.kept:.2%}", f"{one.bits:.2f}"] for kind, one in found.items()],
        )
        figures |= {f"kept_{kind}{suffix}": round(one.kept, 4) for kind, one in found.items()}
        figures |= {f"bits_{kind}{suffix}": round(one.bits, 3) for kind, one in found.items()}
    report.figures("hat_wire", figures)


def _answers(count: int) -> list[str]:
    return ["{question}\n{answer}".format(**one) for one in _lines("gsm8k_test.jsonl", count)]


def _prompts(count: int) -> list[str]:
    return [one["turns"][0] for one in _lines("spec_bench.jsonl", count)]


def _lines(name: str, count: int) -> list[dict[str, Any]]:
    lines = (DATA / "prompts" / name).read_text().splitlines()
    return [json.loads(line) for line in lines[:: max(1, len(lines) // count)]][:count]


if __name__ == "__main__":
    main()
