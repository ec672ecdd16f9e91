"""The outer part of a split model, step by step: whatever it is asked, in whatever order, its output is the model's."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem.engine.base import Sampling, Verdict
from tandem.engine.config import EngineConfig, HostMemory
from tandem.engine.core.split.middle import MiddleSequence
from tandem.engine.core.split.outer import OuterCore, OuterSequence
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import ForwardTask, RoundTask, ShallowTask
from tandem.engine.split.base import always
from tandem.engine.torch import weights
from tandem.engine.torch.split.runner import MiddleRunner, Outer, TorchMiddle, TorchOuterRunner
from tandem.engine.torch.weights import Part
from tests.engine.torch import tiny_weights
from tests.engine.torch.place import DEVICE
from tests.engine.torch.split_parts import write_adapter
from tests.engine.torch.tiny_weights import TinyModel

BLOCKS, MIDDLE_BLOCKS, LONGEST = 14, 12, 8


@cache
def models() -> tuple[TinyModel, Outer, TorchMiddle]:
    with TemporaryDirectory() as folder:
        path = Path(folder)
        whole = tiny_weights.make(path, seed=1)
        adapter = write_adapter(path, path / "adapter" / "model.safetensors", 0.3)
        ends = weights.load(path, DEVICE, torch.float32, Part(0, 1))
        middle = weights.load(path, DEVICE, torch.float32, Part(1, ends=False))
        return whole, Outer(weights.with_adapter(ends, adapter)), TorchMiddle(middle)


class Pair:
    """A session at both parts. `rows`: what the middle was sent, by position; `proposed`: to be judged."""

    def __init__(self, number: int, prompt: list[int], sampling: Sampling) -> None:
        self.outer = OuterSequence(number, list(prompt), [], sampling, tiny_weights.EOS)
        self.middle = MiddleSequence(number, [], [], Sampling(max_tokens=60), tiny_weights.EOS)
        self.prompt, self.output = prompt, list[int]()
        self.position = 0
        self.rows = np.empty((0, 16), np.float32)
        self.proposed: int | None = None


class OuterMachine(RuleBasedStateMachine):
    """Three sessions in caches that are too small for them."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, outer, middle = models()
        small = EngineConfig(
            kv_blocks=BLOCKS,
            block_size=3,
            token_budget=7,
            max_sessions=6,
            host_memory=HostMemory(blocks=5),
        )
        self.core = OuterCore(TorchOuterRunner(outer, BLOCKS, 3), small)
        self.middle = Core(
            MiddleRunner(middle, MIDDLE_BLOCKS, 3), small.model_copy(update={"kv_blocks": MIDDLE_BLOCKS})
        )
        self.pairs: list[Pair] = []
        self.numbers = 0

    def until(self, core: Core, done: list[object]) -> None:
        for _ in range(500):
            if done:
                return
            core.step()
        raise AssertionError("it does not come to an end")

    def pair(self, data: st.DataObject) -> Pair:
        return data.draw(st.sampled_from(self.pairs))

    def send(self, pair: Pair, end: int) -> None:
        s = pair.outer
        pair.position, pair.rows = s.sent, s.shallow.between(s.sent, end)
        s.sent += len(pair.rows)
        assert s.sent == end, "states are missing"

    def forward(self, pair: Pair, wanted: int) -> np.ndarray:
        done: list[np.ndarray] = []
        self.middle.extend(pair.middle, pair.position, pair.rows)
        self.middle.assign(pair.middle, ForwardTask(wanted, lambda got: done.append(got.rows)))
        self.until(self.middle, done)
        return done[0]

    @precondition(lambda self: len(self.pairs) < 3)
    @rule(prompt=st.lists(st.integers(3, 8), min_size=1, max_size=14))
    def open(self, prompt: list[int]) -> None:
        self.numbers += 1
        pair = Pair(self.numbers, prompt, Sampling(max_tokens=LONGEST, ignore_eos=True))
        self.core.open(pair.outer)
        self.middle.open(pair.middle)
        self.pairs.append(pair)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), count=st.integers(1, 9))
    def shallow(self, data: st.DataObject, count: int) -> None:
        pair = self.pair(data)
        if pair.proposed is not None:
            return
        done: list[bool] = []
        task = ShallowTask(pair.outer.sent + count, lambda: done.append(True))
        self.core.shallow(pair.outer, task)
        self.until(self.core, done)
        if task.end > pair.outer.sent:
            self.send(pair, task.end)
            self.forward(pair, 0)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), longest=st.integers(0, 5), least=st.sampled_from([0.0, 0.1, 0.5]))
    def propose(self, data: st.DataObject, longest: int, least: float) -> None:
        pair, done = self.pair(data), list[bool]()
        s = pair.outer
        if s.finish is not None:
            return
        self.core.drop(s)
        if pair.proposed is not None:  # what was proposed before never reached the middle
            s.sent = min(s.sent, pair.position)
        self.core.draft(s, RoundTask(longest, lambda p: p >= least, True, lambda: done.append(True)))
        self.until(self.core, done)
        drafts = s.tokens[s.confirmed :]
        assert len(drafts) == len(s.choices) <= longest
        assert all(c.probability >= least for c in s.choices[:-1])
        assert [c.token for c in s.choices] == drafts
        self.send(pair, len(s.tokens))
        pair.proposed = len(drafts)

    @precondition(lambda self: any(p.proposed for p in self.pairs))
    @rule(data=st.data(), count=st.integers(1, 8), steps=st.integers(1, 4), taken=st.integers(0, 9))
    def branch(self, data: st.DataObject, count: int, steps: int, taken: int) -> None:
        pair = data.draw(st.sampled_from([p for p in self.pairs if p.proposed]))
        numbers = range(self.numbers + 1, self.numbers + count + 1)
        self.numbers += count
        self.core.branch(pair.outer, numbers, RoundTask(steps, always, False, lambda: None))
        for _ in range(taken):
            self.core.step()

    @precondition(lambda self: any(p.proposed is not None for p in self.pairs))
    @rule(data=st.data())
    def judge(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from([p for p in self.pairs if p.proposed is not None]))
        assert pair.proposed is not None
        deep = self.forward(pair, pair.proposed + 1)
        judgement = self.core.judge(pair.outer, deep)
        verdict, ready = judgement.verdict, judgement.ready
        assert judgement.steps >= ready
        assert (judgement.steps_s > 0) == (judgement.steps > 0)
        self.check(pair, verdict)
        assert ready == len(pair.outer.tokens) - pair.outer.confirmed
        assert verdict.finish or pair.outer.sent == len(pair.prompt) + len(pair.output) - 1
        pair.proposed = None

    def check(self, pair: Pair, verdict: Verdict) -> None:
        """Greedy: each token is the whole model's own."""
        for token in verdict.ids:
            assert token == int(self.whole.logits((*pair.prompt, *pair.output)).argmax())
            pair.output.append(token)
        assert pair.outer.tokens[pair.outer.prompt_len : pair.outer.confirmed] == pair.output
        assert (verdict.finish == "length") == (len(pair.output) == LONGEST)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), more=st.lists(st.integers(3, 8), max_size=3))
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        """The output becomes another one."""
        pair = self.pair(data)
        position = data.draw(st.integers(0, len(pair.output)))
        more = more[: LONGEST - position]
        if pair.proposed is not None:
            pair.outer.sent = min(pair.outer.sent, pair.position)
        pair.proposed = None
        pair.output[position:] = more
        self.core.extend(pair.outer, position, more)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        """The middle loses what it has from some position on."""
        pair = self.pair(data)
        if pair.proposed is None:
            position = data.draw(st.integers(0, pair.outer.sent))
            pair.outer.sent = position
            self.middle.extend(pair.middle, position, [])

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        pair = self.pair(data)
        self.pairs.remove(pair)
        self.core.cancel(pair.outer)
        self.middle.cancel(pair.middle)

    @rule()
    def step(self) -> None:
        self.core.step()

    @invariant()
    def the_books_are_right(self) -> None:
        held = {p.outer.number for p in self.pairs} | {b.number for p in self.pairs for b in p.outer.branches}
        assert set(self.core.memory.sequences) == held
        for pair in self.pairs:
            s = pair.outer
            assert s.computed <= s.shallow.end <= len(s.tokens)
            assert s.sent <= s.shallow.end
            assert len(s.choices) == len(s.tokens) - s.confirmed

    def teardown(self) -> None:
        for pair in self.pairs:
            self.core.cancel(pair.outer)
            self.middle.cancel(pair.middle)
        for core, blocks in ((self.core, BLOCKS), (self.middle, MIDDLE_BLOCKS)):
            for _ in range(3):
                core.step()
            assert core.memory.pool.available == blocks


OuterMachine.TestCase.settings = settings(stateful_step_count=50)
TestOuter = OuterMachine.TestCase
