"""What is recorded of a pair says what a real speculative run of it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import family
from engine.base import Sampling
from engine.family.acceptance import main
from engine.family.prompts import answer_prompt, heldout
from engine.text import Tokenizer
from engine.torch_engine import TorchEngine

QUESTIONS, SEED = 3, 5


@pytest.mark.parametrize("window", [3, 7])
async def test_recorded_bits_predict_every_verdict(tmp_path: Path, window: int) -> None:
    out = tmp_path / "acceptance.jsonl"
    main(["--out", str(out), "--questions", str(QUESTIONS), "--kinds", "long", "--seed", str(SEED)])
    recorded = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["family"] for line in recorded] == ["long"] * QUESTIONS
    tokenizer = Tokenizer.load(family.path("target"))
    target = TorchEngine.load(family.path("target"), threads=1)
    small = TorchEngine.load(family.path("small"), threads=1)
    differing = judged = 0
    for session, (item, line) in enumerate(zip(heldout(QUESTIONS, ["long"], SEED), recorded, strict=True)):
        prompt, bits = tokenizer.encode(answer_prompt(item.question)), line["acceptance"]
        sampling = Sampling(max_tokens=len(bits))
        for engine in (target, small):
            await engine.open(session, prompt, sampling)
        output: list[int] = []
        finish = None
        while finish is None:
            proposed = (await small.draft(session, len(output), [], window)).ids
            verdict = await target.verify(session, proposed)
            expected = len(bits[len(output) : len(output) + len(proposed)].partition("0")[0])
            judged += len(proposed)
            differing += abs(min(expected, len(proposed)) - verdict.accepted)
            output += verdict.ids
            await small.extend(session, len(output) - len(verdict.ids), verdict.ids)
            finish = verdict.finish
        assert len(output) == len(bits)
    await target.close()
    await small.close()
    assert judged > 100
    assert differing <= 0.02 * judged  # two logits may be equal but for rounding, which depends on the batch
