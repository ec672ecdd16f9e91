"""A pair's recorded acceptance agrees with its real speculative runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.engine import family
from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.training.family.acceptance import main
from tandem.training.family.prompts import answer_prompt, heldout

QUESTIONS, SEED = 3, 5


@pytest.mark.slow
@pytest.mark.parametrize("window", [3, 7])
async def test_recorded_bits_predict_every_verdict(tmp_path: Path, window: int) -> None:
    out = tmp_path / "acceptance.jsonl"
    questions = ["--questions", str(QUESTIONS), "--kinds", "long", "--seed", str(SEED)]
    main(["--out", str(out), *questions, "--threads", "1"])
    recorded = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["family"] for line in recorded] == ["long"] * QUESTIONS
    tokenizer = Tokenizer.load(family.path("target"))
    target = load(family.path("target"), EngineConfig(), threads=1)
    small = load(family.path("small"), EngineConfig(), threads=1)
    differing = judged = 0
    for item, line in zip(heldout(QUESTIONS, ["long"], SEED), recorded, strict=True):
        prompt, bits = tokenizer.encode(answer_prompt(item.question)), line["acceptance"]
        sampling = Sampling(max_tokens=len(bits))
        verifier, drafter = [await engine.open(prompt, sampling) for engine in (target, small)]
        output: list[int] = []
        finish = None
        while finish is None:
            proposed = (await drafter.draft(len(output), [], window)).ids
            verdict = await verifier.verify(proposed)
            expected = len(bits[len(output) : len(output) + len(proposed)].partition("0")[0])
            judged += len(proposed)
            differing += abs(min(expected, len(proposed)) - verdict.accepted)
            output += verdict.ids
            await drafter.extend(len(output) - len(verdict.ids), verdict.ids)
            finish = verdict.finish
        assert len(output) == len(bits)
    await target.close()
    await small.close()
    assert judged > 100
    assert differing <= 0.02 * judged  # two logits may be equal but for rounding, which depends on the batch
