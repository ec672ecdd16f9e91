"""Sessions in batches over a small cache: outcomes never depend on what else goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.base import InvalidRequest, Sampling, Tokens, UnknownSession, Verdict
from engine.core import Core
from engine.hosttier import TierSettings
from engine.sequence import Generate, Verify
from engine.sequence import Sequence as Session
from policies.batching import ChunkedPrefill
from policies.scheduling import Ints, Load, SchedulingPolicy, fit, scheduling
from tests.engine import tiny_weights
from tests.engine.core_driver import Driver
from tests.engine.history_model import EOS, VOCAB

BLOCK = 4
# Prompts with common beginnings, of one token up to several blocks.
STEMS = [[3, 4, 5, 6, 7, 8, 3, 3, 4, 4, 5, 5], [3, 4, 5, 6, 8, 8, 8, 8], [7] * 17]
PROMPTS = [stem[:n] for stem in STEMS for n in range(1, len(stem) + 1, 3)] + [stem[:] for stem in STEMS]
SAMPLINGS = [
    Sampling(max_tokens=20),
    Sampling(max_tokens=1),
    Sampling(max_tokens=9, ignore_eos=True),
    Sampling(max_tokens=24, stop_tokens=(7, 3)),
    Sampling(max_tokens=16, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4),
    Sampling(max_tokens=20, temperature=1.0, seed=1),
    Sampling(max_tokens=18, temperature=0.7, top_k=4, top_p=0.9, seed=2, ignore_eos=True),
    Sampling(max_tokens=18, temperature=1.3, repetition_penalty=1.2, frequency_penalty=0.3, seed=3),
]


def random_q(rng: np.random.Generator, drafts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.tile(np.arange(VOCAB, dtype=np.int32), (len(drafts), 1))
    return ids, rng.dirichlet(np.ones(VOCAB), len(drafts)).astype(np.float32)


class Whim:
    """Runs whomever it likes, and so preempts and resumes at random."""

    def __init__(self, seed: int = 0) -> None:
        self.interval_s = 0.02
        self._random = np.random.default_rng(seed)

    def choose(self, load: Load) -> Ints:
        return fit(load, self._random.permutation(len(load)))


SCHEDULERS: dict[str, Callable[[int], SchedulingPolicy]] = {
    "whim": Whim,
    **{name: lambda _, name=name: scheduling.create(name) for name in scheduling},
}
# A block is 64 bytes here: the slow link carries one in 16 steps.
TIERS = [
    TierSettings(40),
    TierSettings(40, write_through=False),
    TierSettings(3),
    TierSettings(40, bytes_per_s=400.0),
    TierSettings(40, bytes_per_s=400.0, write_through=False, overlap=False),
]


class CoreMachine(RuleBasedStateMachine):
    """Any schedule of operations and steps."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.opened = 0

    @initialize(
        blocks=st.integers(11, 20),
        budget=st.sampled_from([4, 24, 64]),
        chunk=st.sampled_from([1, 5, 64]),
        tier=st.sampled_from([None, *TIERS]),
        scheduler=st.sampled_from([None, *SCHEDULERS]),
        seed=st.integers(0, 9),
    )
    def begin(
        self,
        blocks: int,
        budget: int,
        chunk: int,
        tier: TierSettings | None,
        scheduler: str | None,
        seed: int,
    ) -> None:
        policy = None if scheduler is None else SCHEDULERS[scheduler](seed)
        self.driver = Driver(blocks, BLOCK, budget, ChunkedPrefill(chunk), policy, 3, tier)

    def idle(self) -> list[int]:
        return [i for i, c in self.driver.clients.items() if c.busy is None]

    @precondition(lambda self: len(self.driver.clients) < 7)
    @rule(data=st.data(), prompt=st.sampled_from(PROMPTS), sampling=st.sampled_from(SAMPLINGS))
    def open(self, data: st.DataObject, prompt: list[int], sampling: Sampling) -> None:
        log = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=min(6, sampling.max_tokens)))
        self.opened += 1
        self.driver.open(self.opened, prompt, sampling, log)

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def generate(self, data: st.DataObject) -> None:
        self.driver.generate(data.draw(st.sampled_from(self.idle())))

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), good=st.integers(0, 6), bad=st.lists(st.integers(0, VOCAB - 1), max_size=4))
    def verify(self, data: st.DataObject, good: int, bad: list[int]) -> None:
        session = data.draw(st.sampled_from(self.idle()))
        client = self.driver.clients[session]
        drafts = (self.driver._proposals(client, good)[0] if good else []) + bad
        if client.sampling.greedy or not drafts or data.draw(st.booleans()):
            self.driver.verify(session, drafts)
        else:
            seed = data.draw(st.integers(0, 99))
            self.driver.verify(session, drafts, random_q(np.random.default_rng(seed), drafts))

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), window=st.integers(0, 8), only_extend=st.booleans())
    def draft(self, data: st.DataObject, window: int, only_extend: bool) -> None:
        session = data.draw(st.sampled_from(self.idle()))
        client = self.driver.clients[session]
        position = data.draw(st.integers(0, len(client.output)))
        room = client.sampling.max_tokens - position
        kept = data.draw(st.integers(0, min(len(client.drafts), room)))
        tokens = client.drafts[:kept]
        tokens += data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=min(4, room - kept)))
        if only_extend:
            self.driver.extend(session, position, tokens)
        else:
            self.driver.draft(session, position, tokens, window)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.driver.step()
            self.driver.check()

    @precondition(lambda self: any(c.busy == "generate" for c in self.driver.clients.values()))
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        busy = [i for i, c in self.driver.clients.items() if c.busy == "generate"]
        self.driver.pause(data.draw(st.sampled_from(busy)))

    @precondition(lambda self: self.driver.clients)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.driver.cancel(data.draw(st.sampled_from(sorted(self.driver.clients))))

    @invariant()
    def books(self) -> None:
        self.driver.check()

    def teardown(self) -> None:
        self.driver.finish_all()
        self.driver.check()
        for session in list(self.driver.clients):
            self.driver.cancel(session)
        assert self.driver.core.memory.pool.available == self.driver.core.memory.pool.num_blocks


CoreMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestCore = CoreMachine.TestCase


@pytest.mark.parametrize(
    "tier", [None, TIERS[0], TIERS[-1]], ids=["one-tier", "two-tiers", "slow-second-tier"]
)
def test_no_leak_in_ten_thousand_operations(tier: TierSettings | None):
    """At random, most sessions more than the cache holds; afterwards every block is back."""
    rng = np.random.default_rng(11)
    driver = Driver(
        blocks=16, budget=24, scheduling=None if tier is None else Whim(), max_running=3, tier=tier
    )
    did: Counter[str] = Counter()
    for turn in range(10_000):
        idle = [i for i, c in driver.clients.items() if c.busy is None]
        kind = rng.choice(["open", "generate", "verify", "draft", "extend", "cancel", "step", "step", "step"])
        did[kind] += 1
        if kind == "open" and len(driver.clients) < 10:
            driver.open(turn, PROMPTS[rng.integers(len(PROMPTS))], SAMPLINGS[rng.integers(len(SAMPLINGS))])
        elif kind == "cancel" and driver.clients and rng.random() < 0.4:
            driver.cancel(int(rng.choice(sorted(driver.clients))))
        elif kind == "step" or not idle:
            driver.step()
        else:
            session = int(rng.choice(idle))
            client = driver.clients[session]
            tokens = [int(t) for t in rng.integers(0, VOCAB, rng.integers(0, 5))]
            position = int(rng.integers(0, len(client.output) + 1))
            tokens = tokens[: client.sampling.max_tokens - position]
            if kind == "generate":
                driver.generate(session)
            elif kind == "verify":
                driver.verify(session, tokens, random_q(rng, tokens) if turn % 2 and tokens else (None, None))
            elif kind == "draft":
                driver.draft(session, position, tokens, int(rng.integers(0, 6)))
            elif kind == "extend":
                driver.extend(session, position, tokens)
        if turn % 8 == 0:
            driver.check()
    driver.finish_all()
    stats = driver.core.stats
    assert stats.preempted > 50, "the cache was never short"
    assert stats.tokens_from_prefix > 500, "no prefix was ever shared"
    if tier is not None:
        assert stats.blocks_written > 100, "nothing went to host memory"
        assert stats.tokens_loaded + stats.tokens_recomputed > 100, "nothing came back"
    assert min(driver.done[k] for k in ("generate", "verify", "draft")) > 100
    for session in list(driver.clients):
        driver.cancel(session)
    driver.check()
    if driver.core.memory.tier is not None:
        assert driver.core.memory.tier.free == driver.core.memory.tier.settings.blocks
    driver.run()  # copies under way
    assert driver.core.memory.pool.available == 16
    assert (driver.core.memory.sequences, driver.core.memory.waiting) == ({}, [])
    assert stats.opened == stats.cancelled + stats.finished


@pytest.mark.parametrize("scheduler", [None, *SCHEDULERS])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_preempted_sessions_repeat_their_tokens(sampling: Sampling, scheduler: str | None):
    """More sessions generate than the cache holds; the driver compares each token with the reference."""
    policy = None if scheduler is None else SCHEDULERS[scheduler](0)
    driver = Driver(
        blocks=14, budget=64, scheduling=policy, max_running=4, tier=TIERS[0] if scheduler else None
    )
    for session, prompt in enumerate(PROMPTS[:8]):
        driver.open(session, prompt, sampling)
        driver.generate(session)
    while any(c.busy for c in driver.clients.values()):
        assert driver.step() or driver.core.idle_s is not None
        driver.check()
        for session in [i for i, c in driver.clients.items() if c.finish]:
            driver.cancel(session)
    if scheduler is None and sampling.max_tokens > 10 and not sampling.stop_tokens:
        assert driver.core.stats.preempted > 0
        assert driver.core.stats.tokens_from_prefix > 0
    if scheduler == "whim" and sampling.max_tokens > 10 and not sampling.stop_tokens:
        assert driver.core.stats.preempted > 0
        assert driver.core.stats.tokens_loaded > 0
    assert driver.core.stats.finished == 8


# -- admission ------------------------------------------------------------------------------------------


def test_admission_is_in_order():
    """The second needs more than is free; the third would fit, and waits its turn."""
    driver = Driver(blocks=8)
    driver.open(1, [3] * 20, Sampling(max_tokens=4))
    driver.open(2, [4] * 20, Sampling(max_tokens=4))
    driver.open(3, [5], Sampling(max_tokens=4))
    driver.run()
    assert [s.session for s in driver.core.memory.waiting] == [2, 3]
    driver.cancel(1)
    driver.run()
    assert driver.core.memory.waiting == []


def test_a_prompt_that_fills_the_whole_cache_is_served():
    driver = Driver(blocks=5)
    driver.open(1, [3] * 16, Sampling(max_tokens=4, ignore_eos=True))
    driver.generate(1)
    driver.run()
    assert driver.clients[1].finish == "length"


def test_a_full_session_that_gave_way_can_come_back():
    """A finished output that fills the cache to its last slot, preempted and then rolled back."""
    driver = Driver(blocks=5)
    driver.open(1, [3] * 16, Sampling(max_tokens=4, ignore_eos=True))
    driver.generate(1)
    driver.run()
    first = list(driver.clients[1].output)
    driver.core.memory.preempt(driver.core.memory.sequences[1])
    driver.run()
    assert driver.core.memory.waiting == []
    driver.extend(1, 2, [])
    driver.generate(1)
    driver.run()
    assert driver.clients[1].output == first


def test_a_window_that_does_not_fit_beside_an_older_session_waits_for_it():
    """The younger's window is larger than the budget and than the blocks left: it gives way, and must not
    come back at once to take the older one's turn again."""
    driver = Driver(blocks=8, budget=4)
    driver.open(1, [3] * 18, Sampling(max_tokens=14, ignore_eos=True))
    driver.open(2, [4] * 6, Sampling(max_tokens=20, ignore_eos=True))
    driver.run()
    driver.verify(2, [5] * 9)
    driver.extend(1, 0, [6] * 3)
    driver.generate(1)
    driver.finish_all()
    assert driver.done == {"generate": 1, "verify": 1}
    assert driver.core.stats.preempted >= 1


def test_sessions_at_rest_give_way_first():
    """The oldest waits for its client; the young one at work takes its blocks."""
    driver = Driver(blocks=8)
    driver.open(1, [3] * 12, Sampling(max_tokens=8))
    driver.run()
    driver.open(2, [4] * 12, Sampling(max_tokens=16, ignore_eos=True))
    driver.generate(2)
    driver.run()
    assert driver.clients[2].finish == "length"
    assert [s.session for s in driver.core.memory.waiting] == [1]
    driver.cancel(2)
    driver.generate(1)
    driver.run()
    assert driver.clients[1].finish


def test_two_engines_do_not_wait_for_each_other():
    """A speculative session holds blocks at the target while its draft waits for blocks at the drafter, and
    another the other way round: the sessions at rest give way to those with work, whoever is older."""
    target, drafter = Driver(blocks=6), Driver(blocks=6)
    sampling = Sampling(max_tokens=8, ignore_eos=True)
    for session, (first, second) in enumerate([(target, drafter), (drafter, target)]):
        first.open(session, [3 + session] * 14, sampling)
        first.run()
        second.open(session, [3 + session] * 14, sampling)
    for driver in (target, drafter):
        driver.run()
    assert [len(d.core.memory.waiting) for d in (target, drafter)] == [1, 1]
    drafter.draft(0, 0, [], 3)
    drafter.finish_all()
    target.verify(1, [5, 5])
    target.finish_all()
    assert (drafter.done, target.done) == ({"draft": 1}, {"verify": 1})


def test_a_session_without_work_does_not_keep_others_out():
    """The oldest waits for room and has nothing to do; a younger one with work is let in before it."""
    driver = Driver(blocks=8)
    driver.open(1, [3] * 12, Sampling(max_tokens=8))
    driver.open(2, [4] * 24, Sampling(max_tokens=8))
    driver.open(3, [5] * 4, Sampling(max_tokens=4))
    driver.generate(3)
    driver.run()
    assert driver.clients[3].finish
    assert [s.session for s in driver.core.memory.waiting] == [2]


# -- operations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_extending_back_to_any_position_repeats_the_output(sampling: Sampling):
    driver = Driver(blocks=20)
    driver.open(1, PROMPTS[-1], sampling)
    driver.generate(1)
    driver.run()
    whole = list(driver.clients[1].output)
    assert driver.clients[1].finish
    for position in [*range(len(whole) + 1), 0]:
        driver.extend(1, position, [])
        driver.check()
        driver.generate(1)
        driver.run()
        assert driver.clients[1].output == whole


@pytest.mark.parametrize("room", range(1, 7))
@pytest.mark.parametrize("drafts", range(8))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_longer_than_the_room(room: int, drafts: int, temperature: float):
    """With and without stated distributions; the driver knows that the last place is the target's own."""
    sampling = Sampling(max_tokens=room, temperature=temperature, seed=5, ignore_eos=True)
    for stated in (False, True):
        driver = Driver()
        client = driver.open(1, [3, 4, 5], sampling)
        proposed = driver._proposals(client, drafts)[0] if drafts else []
        proposed += [6] * (drafts - len(proposed))
        q = random_q(np.random.default_rng(room), proposed) if stated and drafts else (None, None)
        driver.verify(1, proposed, q)
        driver.run()
        driver.generate(1)
        driver.run()
        assert len(client.output) == room
        assert client.finish == "length"


def test_a_finished_output_stays_finished():
    driver = Driver()
    driver.open(1, [3, 4], Sampling(max_tokens=2))
    driver.generate(1)
    driver.run()
    for _ in range(2):
        outcomes: list[object] = []
        driver.core.assign(1, Verify([5, 6], None, None, outcomes.append))
        driver.core.assign(1, Generate(outcomes.append))
        assert outcomes == [Verdict(0, [], driver.clients[1].finish), Tokens([], driver.clients[1].finish)]
    driver.draft(1, len(driver.clients[1].output), [], 4)  # nothing to propose


def test_an_output_ends_however_its_last_token_came():
    driver = Driver()
    sampling = Sampling(max_tokens=3, stop_tokens=(7,))
    for session, tokens in enumerate([[5, EOS], [5, 7], [5, 5, 5]]):
        driver.open(session, [3, 4], sampling)
        driver.extend(session, 0, tokens)
        driver.generate(session)  # the driver expects nothing but the end
        assert driver.clients[session].output == tokens
        driver.open(10 + session, [3, 4], sampling, tokens)
        driver.generate(10 + session)
        assert driver.clients[10 + session].output == tokens


def test_a_prompt_may_end_with_a_stop_token():
    driver = Driver()
    driver.open(1, [3, EOS], Sampling(max_tokens=8, ignore_eos=False))
    driver.draft(1, 0, [], 3)
    driver.run()
    assert driver.clients[1].drafts


def test_proposals_nobody_confirmed_are_no_output():
    driver = Driver()
    client = driver.open(1, [3, 4], Sampling(max_tokens=12, ignore_eos=True))
    driver.draft(1, 0, [], 4)
    driver.run()
    assert len(client.drafts) == 4
    assert client.output == []
    driver.verify(1, [int(t) for t in client.drafts[:2]])
    driver.run()
    assert len(client.output) == 3


def test_refusals_change_nothing():
    driver = Driver()
    with pytest.raises(UnknownSession, match="no session 9"):
        driver.core.assign(9, Generate(lambda tokens: None))
    with pytest.raises(UnknownSession):
        driver.core.extend(9, 0, [])
    driver.core.cancel(9)
    driver.core.pause(9)
    client = driver.open(1, [3, 4], Sampling(max_tokens=4))
    for position, tokens in ((-1, []), (1, []), (0, [5] * 5)):
        with pytest.raises(InvalidRequest, match="cannot set"):
            driver.core.extend(1, position, tokens)
    driver.generate(1)
    with pytest.raises(InvalidRequest, match="still at work"):
        driver.core.assign(1, Generate(lambda tokens: None))
    with pytest.raises(InvalidRequest, match="still at work"):
        driver.core.extend(1, 0, [])
    driver.run()
    assert client.finish


def test_cancel_ends_a_generation_at_once():
    driver = Driver()
    driver.open(1, [3, 4], Sampling(max_tokens=20, ignore_eos=True))
    driver.generate(1)
    for _ in range(3):
        driver.step()
    driver.cancel(1)
    before = driver.core.stats.tokens_generated
    driver.run()
    assert driver.core.stats.tokens_generated == before
    assert driver.core.stats.cancelled == 1


# -- the step -----------------------------------------------------------------------------------------------


def test_prefill_begins_before_any_operation():
    driver = Driver()
    driver.open(1, [3] * 10, Sampling(max_tokens=4))
    driver.run()
    assert (
        driver.core.memory.sequences[1].computed == 9
    )  # the last token is computed with what needs its logits
    assert driver.core.stats.tokens_prefilled == 9


@pytest.mark.parametrize("budget", [1, 2, 5, 64])
@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_chunked_prefill_equals_whole(budget: int, chunk: int):
    """The driver compares with the whole; a step never exceeds the budget, but for one window alone."""
    driver = Driver(blocks=40, budget=budget, batching=ChunkedPrefill(chunk))
    driver.open(1, [3, 4] * 15, Sampling(max_tokens=6, ignore_eos=True))
    driver.open(2, [4, 3] * 15, Sampling(max_tokens=6, ignore_eos=True))
    driver.generate(1)
    driver.verify(2, [5, 6, 7])
    driver.finish_all()
    assert driver.done == {"generate": 1, "verify": 1}
    assert max(driver.model.positions) <= max(budget, 4)
    if budget == chunk == 64:
        assert max(driver.model.positions) == 30 + 33


def test_a_window_is_computed_in_one_step():
    """With a budget that its prompt fills, the window waits rather than be split."""

    class Watched(ChunkedPrefill):
        def form(self, demands, budget):
            grants = super().form(demands, budget)
            seen.extend((d.pending, d.window, g) for d, g in zip(demands, grants, strict=True))
            return grants

    seen: list[tuple[int, int, int]] = []
    driver = Driver(blocks=40, budget=7, batching=Watched(7))
    driver.open(1, [3, 4] * 9, Sampling(max_tokens=20, ignore_eos=True))
    driver.verify(1, [5] * 5)
    driver.run()
    assert seen == [(23, 6, 7), (16, 6, 7), (9, 6, 3), (6, 6, 6)]


def test_a_shared_prefix_is_not_computed_again():
    driver = Driver(blocks=20)
    for session in (1, 2):
        driver.open(session, [*STEMS[0], session], Sampling(max_tokens=6))
        driver.generate(session)
        driver.run()
    assert driver.core.stats.tokens_from_prefix == 12
    driver.cancel(1)
    driver.cancel(2)
    driver.open(3, [*STEMS[0], 3], Sampling(max_tokens=6))  # the prefix outlives its sessions
    driver.run()
    assert driver.core.stats.tokens_from_prefix == 24


def test_greedy_over_a_real_model_equals_full_recompute(tmp_path: Path):
    """Prefill chunks, windows, single decodes and preemption over the tiny Llama and its naive twin."""
    torch.manual_seed(0)
    tiny = tiny_weights.make(tmp_path, seed=1)
    core = Core(tiny.model, 14, BLOCK, ChunkedPrefill(8), 24)
    rng = np.random.default_rng(2)
    stem = rng.integers(3, tiny_weights.VOCAB, 9).tolist()

    def close_finished() -> None:
        for session in [s.session for s in core.memory.sequences.values() if s.finish]:
            core.cancel(session)

    outputs: dict[int, list[int]] = {}
    verdicts: list[Verdict] = []
    for session in range(8):
        prompt = stem[: 1 + session] + rng.integers(3, tiny_weights.VOCAB, session).tolist()
        sampling = Sampling(max_tokens=20, ignore_eos=True)
        expected = list(prompt)
        for _ in range(20):
            expected.append(int(tiny.logits(tuple(expected)).argmax()))
        outputs[session] = []

        def take(tokens: Tokens, session: int = session) -> None:
            outputs[session] += tokens.ids

        core.open(Session(session, session, prompt, [], sampling, tiny_weights.EOS, None))
        drafts = expected[len(prompt) :][: session % 6] + [0] * (session % 3)
        core.assign(session, Verify(drafts, None, None, verdicts.append))
        while not verdicts:
            assert core.step()
            close_finished()
        verdict = verdicts.pop()
        assert verdict.accepted >= session % 6
        outputs[session] += verdict.ids
        core.assign(session, Generate(take))
        outputs[100 + session] = expected[len(prompt) :]
    while any(s.task for s in core.memory.sequences.values()):
        assert core.step()
        close_finished()
    for session in range(8):
        assert outputs[session] == outputs[100 + session]
    assert core.stats.preempted > 0
    assert core.stats.tokens_from_prefix > 0
