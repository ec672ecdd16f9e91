"""The torch runner under a core, over a model whose outputs are computed anew beside it.

That it reads and writes the cache where it should, test_step shows over a model that names its history.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from tandem.engine.base import Sampling, Tokens, Verdict
from tandem.engine.config import BatchingChoice, EngineConfig
from tandem.engine.core.sequence import Sequence
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import GenerateTask, VerifyTask
from tandem.engine.torch.runner import TorchRunner
from tests.engine.torch import tiny_weights


def test_greedy_equals_full_recompute(tmp_path: Path) -> None:
    """Prefill chunks, windows, single decodes and preemption over the tiny Llama and its naive twin."""
    tiny = tiny_weights.make(tmp_path, seed=1)
    batching = BatchingChoice(name="chunked", parameters={"chunk": 8})
    config = EngineConfig(kv_blocks=14, block_size=4, token_budget=24, batching=batching)
    core = Core(TorchRunner(tiny.model, config.kv_blocks, config.block_size), config)
    rng = np.random.default_rng(2)
    stem = rng.integers(3, tiny_weights.VOCAB, 9).tolist()

    def close_finished() -> None:
        for s in list(core.memory.sequences.values()):
            if s.finish:
                core.cancel(s)

    def take(output: list[int], tokens: Tokens) -> None:
        output += tokens.ids

    outputs: list[list[int]] = []
    wanted: list[list[int]] = []
    verdicts: list[Verdict] = []
    for i in range(8):
        prompt = stem[: 1 + i] + rng.integers(3, tiny_weights.VOCAB, i).tolist()
        whole = list(prompt)
        for _ in range(20):
            whole.append(int(tiny.logits(tuple(whole)).argmax()))
        wanted.append(whole[len(prompt) :])
        s = Sequence(i, prompt, [], Sampling(max_tokens=20, ignore_eos=True), tiny_weights.EOS)
        core.open(s)
        drafts = wanted[i][: i % 6] + [0] * (i % 3)
        core.assign(s, VerifyTask(drafts, None, None, verdicts.append))
        while not verdicts:
            assert core.step()
            close_finished()
        verdict = verdicts.pop()
        assert verdict.accepted >= i % 6
        outputs.append(verdict.ids)
        core.assign(s, GenerateTask(partial(take, outputs[i])))
    while any(s.task for s in core.memory.sequences.values()):
        assert core.step()
        close_finished()
    assert outputs == wanted
    assert core.stats.preempted > 0
    assert core.stats.tokens_from_prefix > 0
