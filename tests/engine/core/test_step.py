"""Sessions in batches over a small cache: outcomes never depend on what else goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandem.engine.base import EngineStats, InvalidRequest, Sampling, Tokens, Verdict
from tandem.engine.config import HostMemory
from tandem.engine.core.step import GRACE_S
from tandem.engine.core.tasks import GenerateTask, VerifyTask
from tandem.policies.scheduling.base import (
    EngineLoad,
    FirstComeFirstServed,
    Ints,
    SchedulingPolicy,
    fit,
    scheduling,
)
from tandem.policies.scheduling.batching import ChunkedPrefill
from tests.effort import tried
from tests.engine.core.core_driver import EOS, VOCAB, Client, Driver, MakeRunner, Q
from tests.engine.core.plain_runner import PlainRunner
from tests.engine.torch.history_model import HistoryRunner

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
RUNNERS: dict[str, MakeRunner] = {"plain": PlainRunner, "torch": HistoryRunner}


@pytest.fixture(params=RUNNERS)
def make(request: pytest.FixtureRequest) -> MakeRunner:
    return RUNNERS[request.param]


def random_q(rng: np.random.Generator, drafts: list[int]) -> Q:
    ids = np.tile(np.arange(VOCAB, dtype=np.int32), (len(drafts), 1))
    return ids, rng.dirichlet(np.ones(VOCAB), len(drafts)).astype(np.float32)


def test_one_step_does_for_the_prompt_and_the_first_token_that_is_asked_for_at_once() -> None:
    driver = Driver(PlainRunner)
    client = driver.open([3, 4, 5], Sampling(max_tokens=1))
    assert not driver.core.step()
    assert driver.core.idle_s == pytest.approx(GRACE_S)
    driver.now += GRACE_S / 2
    driver.generate(client)
    assert driver.core.step()
    assert driver.core.stats.steps == driver.core.stats.tokens_generated == 1


def test_a_prompt_is_taken_in_though_nothing_is_asked_for() -> None:
    driver = Driver(PlainRunner)
    client = driver.open([3, 4, 5], Sampling(max_tokens=1))
    driver.run()
    assert client.sequence.computed == 2


def test_no_step_takes_a_session_that_the_scheduling_policy_has_not_seen() -> None:
    driver = Driver(PlainRunner, scheduling=Whim(), max_running=1)
    running, new = (driver.open([3, 4, n], Sampling(max_tokens=9, ignore_eos=True)) for n in (5, 6))
    driver.generate(running)
    assert driver.core.step()
    assert new.sequence.computed == 0
    decisions = driver.core.stats.decisions
    driver.generate(new)
    driver.step()
    assert driver.core.stats.decisions == decisions + 1


class Whim:
    """Runs whomever it likes, and so preempts and resumes at random."""

    def __init__(self, seed: int = 0) -> None:
        self.interval_s = 0.02
        self._random = np.random.default_rng(seed)

    def choose(self, load: EngineLoad) -> Ints:
        return fit(load, self._random.permutation(len(load)))


SCHEDULERS: dict[str, Callable[[int], SchedulingPolicy]] = {
    "whim": Whim,
    **{name: lambda _, name=name: scheduling.create(name) for name in scheduling},
}
# A block is 64 bytes here, in megabytes/s: the slow link carries one in 16 steps, the other one two in a step.
SLOW, FAIR = 400e-6, 12_800e-6
HOSTS = [
    HostMemory(blocks=40),
    HostMemory(blocks=40, write_through=False),
    HostMemory(blocks=3),
    HostMemory(blocks=40, copy_mb_per_s=FAIR, write_through=False),
    HostMemory(blocks=40, copy_mb_per_s=SLOW),
    HostMemory(blocks=40, copy_mb_per_s=SLOW, write_through=False),
    HostMemory(blocks=40, copy_mb_per_s=SLOW, write_through=False, overlap=False),
]


class CoreMachine(RuleBasedStateMachine):
    """Any schedule of operations and steps."""

    make: MakeRunner

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(self.make)

    @initialize(
        blocks=st.integers(11, 20),
        budget=st.sampled_from([4, 24, 64]),
        chunk=st.sampled_from([1, 5, 64]),
        host=st.sampled_from([None, *HOSTS]),
        scheduler=st.sampled_from([None, *SCHEDULERS]),
        seed=st.integers(0, 9),
        lookup=st.sampled_from([0, 4]),
    )
    def begin(
        self,
        blocks: int,
        budget: int,
        chunk: int,
        host: HostMemory | None,
        scheduler: str | None,
        seed: int,
        lookup: int,
    ) -> None:
        policy = None if scheduler is None else SCHEDULERS[scheduler](seed)
        self.driver = Driver(self.make, blocks, BLOCK, budget, ChunkedPrefill(chunk), policy, 3, host, lookup)

    @precondition(lambda self: len(self.driver.clients) < 7)
    @rule(data=st.data(), prompt=st.sampled_from(PROMPTS), sampling=st.sampled_from(SAMPLINGS))
    def open(self, data: st.DataObject, prompt: list[int], sampling: Sampling) -> None:
        log = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=min(6, sampling.max_tokens)))
        self.driver.open(prompt, sampling, log)

    @precondition(lambda self: self.driver.idle)
    @rule(data=st.data())
    def generate(self, data: st.DataObject) -> None:
        self.driver.generate(data.draw(st.sampled_from(self.driver.idle)))

    @precondition(lambda self: self.driver.idle)
    @rule(data=st.data(), good=st.integers(0, 6), bad=st.lists(st.integers(0, VOCAB - 1), max_size=4))
    def verify(self, data: st.DataObject, good: int, bad: list[int]) -> None:
        client = data.draw(st.sampled_from(self.driver.idle))
        drafts = self.driver.proposals(client, good)[0] + bad
        if client.sampling.greedy or not drafts or data.draw(st.booleans()):
            self.driver.verify(client, drafts)
        else:
            seed = data.draw(st.integers(0, 99))
            self.driver.verify(client, drafts, random_q(np.random.default_rng(seed), drafts))

    @precondition(lambda self: self.driver.idle)
    @rule(data=st.data(), window=st.integers(0, 8), only_extend=st.booleans())
    def draft(self, data: st.DataObject, window: int, only_extend: bool) -> None:
        client = data.draw(st.sampled_from(self.driver.idle))
        position = data.draw(st.integers(0, len(client.output)))
        room = client.sampling.max_tokens - position
        kept = data.draw(st.integers(0, min(len(client.drafts), room)))
        tokens = client.drafts[:kept]
        tokens += data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=min(4, room - kept)))
        if only_extend:
            self.driver.extend(client, position, tokens)
        else:
            self.driver.draft(client, position, tokens, window)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.driver.step()
            self.driver.check()

    @precondition(lambda self: any(c.busy == "generate" for c in self.driver.clients))
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        busy = [c for c in self.driver.clients if c.busy == "generate"]
        self.driver.pause(data.draw(st.sampled_from(busy)))

    @precondition(lambda self: self.driver.clients)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.driver.cancel(data.draw(st.sampled_from(self.driver.clients)))

    @invariant()
    def books(self) -> None:
        self.driver.check()

    def teardown(self) -> None:
        self.driver.finish_all()
        self.driver.check()
        for client in list(self.driver.clients):
            self.driver.cancel(client)
        self.driver.run()  # copies under way
        assert self.driver.core.memory.pool.available == self.driver.core.memory.pool.num_blocks


class PlainCoreMachine(CoreMachine):
    make = PlainRunner


class TorchCoreMachine(CoreMachine):
    make = HistoryRunner


for _machine in (PlainCoreMachine, TorchCoreMachine):
    _machine.TestCase.settings = settings(
        max_examples=tried(1, 2) * settings.default.max_examples, stateful_step_count=50
    )
TestPlainCore, TestTorchCore = PlainCoreMachine.TestCase, TorchCoreMachine.TestCase


@pytest.mark.parametrize(
    "host",
    [
        None,
        *(pytest.param(host, marks=pytest.mark.slow) for host in (HOSTS[0], HOSTS[3], HOSTS[-2])),
        HOSTS[-1],
    ],
    ids=["one-tier", "two-tiers", "fair", "slow", "slow-in-turns"],
)
def test_no_leak_in_thousands_of_operations(make: MakeRunner, host: HostMemory | None) -> None:
    """Random operations, with more sessions than the cache holds; afterwards every block is free."""
    rng = np.random.default_rng(11)
    driver = Driver(
        make,
        blocks=16,
        budget=24,
        scheduling=None if host is None else Whim(),
        max_running=3,
        host=host,
        lookup=3,
    )
    turns, part = tried((2_500, 5), (10_000, 1)) if host in (None, HOSTS[-1]) else (10_000, 1)
    for turn in range(turns):
        kind = rng.choice(["open", "generate", "verify", "draft", "extend", "cancel", "step", "step", "step"])
        if kind == "open" and len(driver.clients) < 10:
            driver.open(PROMPTS[rng.integers(len(PROMPTS))], SAMPLINGS[rng.integers(len(SAMPLINGS))])
        elif kind == "cancel" and driver.clients and rng.random() < 0.4:
            driver.cancel(driver.clients[rng.integers(len(driver.clients))])
        elif kind == "step" or not driver.idle:
            driver.step()
        else:
            client = driver.idle[rng.integers(len(driver.idle))]
            tokens = [int(t) for t in rng.integers(0, VOCAB, rng.integers(0, 5))]
            position = int(rng.integers(0, len(client.output) + 1))
            tokens = tokens[: client.sampling.max_tokens - position]
            if kind == "generate":
                driver.generate(client)
            elif kind == "verify":
                driver.verify(client, tokens, random_q(rng, tokens) if turn % 2 and tokens else None)
            elif kind == "draft":
                driver.draft(client, position, tokens, int(rng.integers(0, 6)))
            elif kind == "extend":
                driver.extend(client, position, tokens)
        if turn % 8 == 0:
            driver.check()
    driver.finish_all()
    stats = driver.core.stats
    assert stats.preempted > 50 / part, "the cache was never short"
    assert stats.tokens_from_prefix > 500 / part, "no prefix was ever shared"
    if host is not None:
        assert stats.blocks_written > 100 / part, "nothing went to host memory"
        assert stats.tokens_loaded + stats.tokens_recomputed > 50 / part, "nothing came back"
    assert stats.tokens_looked_up > 50 / part, "no session looked anything up"
    if part == 1:  # of 50 that are looked up, one is right
        assert stats.tokens_found > 0, "no token was found"
    assert min(driver.done[k] for k in ("generate", "verify", "draft")) > 100 / part
    for client in list(driver.clients):
        driver.cancel(client)
    driver.check()
    if driver.core.memory.tier is not None:
        assert driver.core.memory.tier.free == driver.core.memory.tier.settings.blocks
    driver.run()  # copies under way
    assert driver.core.memory.pool.available == 16
    assert (driver.core.memory.sequences, driver.core.memory.waiting) == ({}, [])
    assert stats.opened == stats.cancelled + stats.finished


def preempting() -> list[Any]:
    """Return every sampling with every scheduler; all but those with none, with Whim, and a diagonal are slow."""
    cases = []
    for row, scheduler in enumerate([None, *SCHEDULERS]):
        for column, sampling in enumerate(SAMPLINGS):
            always = scheduler in (None, "whim") or column == row % len(SAMPLINGS)
            marks = () if always else pytest.mark.slow
            cases.append(pytest.param(scheduler, sampling, marks=marks, id=f"{column}-{scheduler}"))
    return cases


@pytest.mark.parametrize(("scheduler", "sampling"), preempting())
def test_preempted_sessions_repeat_their_tokens(
    make: MakeRunner, sampling: Sampling, scheduler: str | None
) -> None:
    """More sessions generate than the cache holds; the driver compares each token with the reference."""
    policy = None if scheduler is None else SCHEDULERS[scheduler](0)
    driver = Driver(
        make, blocks=14, budget=64, scheduling=policy, max_running=4, host=HOSTS[0] if scheduler else None
    )
    for prompt in PROMPTS[:8]:
        driver.generate(driver.open(prompt, sampling))
    while any(c.busy for c in driver.clients):
        assert driver.step() or driver.core.idle_s is not None
        driver.check()
        for client in [c for c in driver.clients if c.finish]:
            driver.cancel(client)
    if scheduler is None and sampling.max_tokens > 10 and not sampling.stop_tokens:
        assert driver.core.stats.preempted > 0
        assert driver.core.stats.tokens_from_prefix > 0
    if scheduler == "whim" and sampling.max_tokens > 10 and not sampling.stop_tokens:
        assert driver.core.stats.preempted > 0
        assert driver.core.stats.tokens_loaded > 0
    assert driver.core.stats.finished == 8


# -- admission ------------------------------------------------------------------------------------------


def test_admission_is_in_order(make: MakeRunner) -> None:
    """The second needs more than is free; the third would fit, and waits its turn."""
    driver = Driver(make, blocks=8)
    first = driver.open([3] * 20, Sampling(max_tokens=4))
    second = driver.open([4] * 20, Sampling(max_tokens=4))
    third = driver.open([5], Sampling(max_tokens=4))
    driver.run()
    assert driver.waiting == [second.sequence, third.sequence]
    driver.cancel(first)
    driver.run()
    assert driver.waiting == []


def test_who_has_waited_in_another_session_goes_before_those_who_came_since(make: MakeRunner) -> None:
    driver = Driver(make, blocks=8, scheduling=FirstComeFirstServed())
    first = driver.open([3] * 20, Sampling(max_tokens=12, ignore_eos=True))
    driver.generate(first)
    driver.step()
    assert first.sequence.admitted
    driver.now = 7.0
    second = driver.open([4] * 20, Sampling(max_tokens=4))
    driver.now = 10.0
    third = driver.open([5] * 20, Sampling(max_tokens=4, waited_s=5.0))
    for client in (second, third):
        driver.generate(client)
    driver.step()
    assert driver.waiting == [second.sequence, third.sequence]
    driver.cancel(first)
    driver.step()
    assert driver.waiting == [second.sequence]
    driver.run()


def test_a_prompt_that_fills_the_whole_cache_is_served(make: MakeRunner) -> None:
    driver = Driver(make, blocks=8)
    client = driver.open([3] * 28, Sampling(max_tokens=4, ignore_eos=True))
    driver.generate(client)
    driver.run()
    assert client.finish == "length"


def test_a_full_session_that_gave_way_can_come_back(make: MakeRunner) -> None:
    """A finished output that fills the cache to its last slot, preempted and then rolled back."""
    driver = Driver(make, blocks=8)
    client = driver.open([3] * 28, Sampling(max_tokens=4, ignore_eos=True))
    driver.generate(client)
    driver.run()
    first = list(client.output)
    driver.core.memory.preempt(client.sequence)
    driver.run()
    assert driver.waiting == []
    driver.extend(client, 2, [])
    driver.generate(client)
    driver.run()
    assert client.output == first


def test_a_window_that_does_not_fit_beside_an_older_session_waits_for_it(make: MakeRunner) -> None:
    """The younger's window is larger than the budget and than the blocks left: it gives way, and must not
    come back at once to take the older one's turn again."""
    driver = Driver(make, blocks=8, budget=4)
    older = driver.open([3] * 18, Sampling(max_tokens=14, ignore_eos=True))
    younger = driver.open([4] * 6, Sampling(max_tokens=20, ignore_eos=True))
    driver.run()
    driver.verify(younger, [5] * 9)
    driver.extend(older, 0, [6] * 3)
    driver.generate(older)
    driver.finish_all()
    assert driver.done == {"generate": 1, "verify": 1}
    assert driver.core.stats.preempted >= 1


def test_sessions_at_rest_give_way_first(make: MakeRunner) -> None:
    """The oldest waits for its client; the young one at work takes its blocks."""
    driver = Driver(make, blocks=8)
    resting = driver.open([3] * 12, Sampling(max_tokens=8))
    driver.run()
    working = driver.open([4] * 12, Sampling(max_tokens=16, ignore_eos=True))
    driver.generate(working)
    driver.run()
    assert working.finish == "length"
    assert driver.waiting == [resting.sequence]
    driver.cancel(working)
    driver.generate(resting)
    driver.run()
    assert resting.finish


def speculating(driver: Driver, rounds: int, gap_s: float) -> Client:
    """Return a session that has come back so often, always after that time, and is away now."""
    client = driver.open([3] * 16, Sampling(max_tokens=16, ignore_eos=True))
    driver.run()
    for _ in range(rounds):
        driver.now += gap_s
        driver.verify(client, [])
        driver.run()
    return client


def test_a_session_between_two_rounds_keeps_its_place(make: MakeRunner) -> None:
    """A younger one gets it once the client has been away for longer than usual; the core says when."""
    driver = Driver(make, blocks=8)
    old = speculating(driver, 4, gap_s=0.1)
    young = driver.open([4] * 16, Sampling(max_tokens=16, ignore_eos=True))
    driver.generate(young)
    for _ in range(2):
        driver.step()
        assert driver.waiting == [young.sequence]
        driver.now += 0.05
    driver.verify(old, [])
    driver.step()
    driver.step()
    assert (old.busy, driver.waiting) == (None, [young.sequence])
    assert driver.core.idle_s == pytest.approx(0.2, rel=0.2)
    driver.run()
    assert (young.finish, driver.waiting) == ("length", [old.sequence])


def test_an_older_session_does_not_wait_for_younger_ones_rounds(make: MakeRunner) -> None:
    driver = Driver(make, blocks=8)
    old = driver.open([5] * 16, Sampling(max_tokens=16, ignore_eos=True))
    driver.run()
    young = speculating(driver, 4, gap_s=0.1)
    driver.generate(old)
    driver.run()
    assert (old.finish, driver.waiting) == ("length", [young.sequence])


def test_two_engines_do_not_wait_for_each_other(make: MakeRunner) -> None:
    """A speculative session holds blocks at the target while its draft waits for blocks at the drafter, and
    another the other way round: the sessions at rest give way to those with work, whoever is older."""
    target, drafter = Driver(make, blocks=8), Driver(make, blocks=8)
    sampling = Sampling(max_tokens=8, ignore_eos=True)
    drafting = drafter.open([3] * 18, sampling), target.open([4] * 18, sampling)
    drafter.run()
    target.run()
    verifying = target.open([3] * 18, sampling), drafter.open([4] * 18, sampling)
    for driver in (target, drafter):
        driver.run()
    assert (target.waiting, drafter.waiting) == ([verifying[0].sequence], [verifying[1].sequence])
    drafter.draft(verifying[1], 0, [], 3)
    drafter.finish_all()
    target.verify(verifying[0], [5, 5])
    target.finish_all()
    assert not any(c.busy for c in drafting)
    assert (drafter.done, target.done) == ({"draft": 1}, {"verify": 1})


def test_a_session_without_work_does_not_keep_others_out(make: MakeRunner) -> None:
    """The oldest waits for room and has nothing to do; a younger one with work is let in before it."""
    driver = Driver(make, blocks=8)
    driver.open([3] * 12, Sampling(max_tokens=8))
    large = driver.open([4] * 24, Sampling(max_tokens=8))
    small = driver.open([5] * 4, Sampling(max_tokens=4))
    driver.generate(small)
    driver.run()
    assert small.finish
    assert driver.waiting == [large.sequence]


def test_what_comes_back_waits_until_it_has_gone(make: MakeRunner) -> None:
    """A session is let in again while its last block is still on the way out, behind another's."""
    driver = Driver(make, blocks=16, host=HostMemory(blocks=40, copy_mb_per_s=FAIR, write_through=False))
    other = driver.open([4] * 28, Sampling(max_tokens=4))
    client = driver.open([3, 4, 5, 6, 7, 8, 3], Sampling(max_tokens=9, ignore_eos=True))
    driver.run()
    for c in (other, client):
        driver.core.memory.preempt(c.sequence)
    driver.core.step_time.token_s = 1.0  # so that loading is the sooner
    driver.generate(client)
    driver.finish_all()
    assert driver.core.stats.tokens_loaded > 0
    assert client.finish


def test_a_session_at_rest_that_comes_back_leaves_the_core_at_rest(make: MakeRunner) -> None:
    """A reloaded session has nothing to compute; `idle_s` of 0 would be an endless loop."""
    driver = Driver(make, host=HostMemory(blocks=40, copy_mb_per_s=FAIR, write_through=False))
    client = driver.open([3, 4, 5, 6, 7, 8, 3], Sampling(max_tokens=4))
    driver.run()
    driver.core.memory.preempt(client.sequence)
    driver.core.step_time.token_s = 1.0  # so that loading is the sooner
    driver.run()
    assert driver.core.stats.tokens_loaded > 0
    assert driver.core.idle_s is None


# -- operations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_extending_back_to_any_position_repeats_the_output(make: MakeRunner, sampling: Sampling) -> None:
    driver = Driver(make, blocks=20)
    client = driver.open(PROMPTS[-1], sampling)
    driver.generate(client)
    driver.run()
    whole = list(client.output)
    assert client.finish
    for position in [*range(len(whole) + 1), 0]:
        driver.extend(client, position, [])
        driver.check()
        driver.generate(client)
        driver.run()
        assert client.output == whole


@pytest.mark.parametrize("room", range(1, 7))
@pytest.mark.parametrize("drafts", range(8))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_longer_than_the_room(make: MakeRunner, room: int, drafts: int, temperature: float) -> None:
    """Use drafts with and without distributions; the driver knows that the last place is the target's own."""
    sampling = Sampling(max_tokens=room, temperature=temperature, seed=5, ignore_eos=True)
    for stated in (False, True):
        driver = Driver(make)
        client = driver.open([3, 4, 5], sampling)
        proposed = driver.proposals(client, drafts)[0]
        proposed += [6] * (drafts - len(proposed))
        q = random_q(np.random.default_rng(room), proposed) if stated and drafts else None
        driver.verify(client, proposed, q)
        driver.run()
        driver.generate(client)
        driver.run()
        assert len(client.output) == room
        assert client.finish == "length"


def test_all_tokens_of_a_verification_reach_the_reader(make: MakeRunner) -> None:
    driver = Driver(make)
    client = driver.open([3, 4, 5], Sampling(max_tokens=20, ignore_eos=True, reader_rate=1e-6))
    driver.verify(client, driver.proposals(client, 3)[0])
    driver.run()
    assert len(client.output) > 1
    unread = client.sequence.reader.buffer(driver.core.clock())
    assert unread == pytest.approx(len(client.output), abs=0.01)


def test_a_finished_output_stays_finished(make: MakeRunner) -> None:
    driver = Driver(make)
    client = driver.open([3, 4], Sampling(max_tokens=2))
    driver.generate(client)
    driver.run()
    for _ in range(2):
        outcomes: list[object] = []
        driver.core.assign(client.sequence, VerifyTask([5, 6], None, None, outcomes.append))
        driver.core.assign(client.sequence, GenerateTask(outcomes.append))
        assert outcomes == [Verdict(0, [], client.finish), Tokens([], client.finish)]
    driver.draft(client, len(client.output), [], 4)  # nothing to propose
    assert driver.done == {"generate": 1, "draft": 1}


def test_an_output_ends_however_its_last_token_came(make: MakeRunner) -> None:
    driver = Driver(make)
    sampling = Sampling(max_tokens=3, stop_tokens=(7,))
    for tokens in ([5, EOS], [5, 7], [5, 5, 5]):
        extended, logged = driver.open([3, 4], sampling), driver.open([3, 4], sampling, tokens)
        driver.extend(extended, 0, tokens)
        for client in (extended, logged):
            driver.generate(client)  # the driver expects nothing but the end
            assert client.output == tokens
    assert driver.done == {"generate": 6}


def test_a_prompt_may_end_with_a_stop_token(make: MakeRunner) -> None:
    driver = Driver(make)
    client = driver.open([3, EOS], Sampling(max_tokens=8, ignore_eos=False))
    driver.draft(client, 0, [], 3)
    driver.run()
    assert client.drafts


def test_proposals_nobody_confirmed_are_no_output(make: MakeRunner) -> None:
    driver = Driver(make)
    client = driver.open([3, 4], Sampling(max_tokens=12, ignore_eos=True))
    driver.draft(client, 0, [], 4)
    driver.run()
    assert len(client.drafts) == 4
    assert client.output == []
    driver.verify(client, client.drafts[:2])
    driver.run()
    assert len(client.output) == 3


def test_refusals_change_nothing(make: MakeRunner) -> None:
    driver = Driver(make)
    client = driver.open([3, 4], Sampling(max_tokens=4))
    for position, tokens in ((-1, []), (1, []), (0, [5] * 5)):
        with pytest.raises(InvalidRequest, match="cannot set"):
            driver.core.extend(client.sequence, position, tokens)
    driver.generate(client)
    with pytest.raises(InvalidRequest, match="still at work"):
        driver.core.assign(client.sequence, GenerateTask(lambda tokens: None))
    with pytest.raises(InvalidRequest, match="still at work"):
        driver.core.extend(client.sequence, 0, [])
    driver.run()
    assert client.finish


def test_cancel_ends_a_generation_at_once(make: MakeRunner) -> None:
    driver = Driver(make)
    client = driver.open([3, 4], Sampling(max_tokens=20, ignore_eos=True))
    driver.generate(client)
    for _ in range(3):
        driver.step()
    driver.cancel(client)
    before = driver.core.stats.tokens_generated
    driver.run()
    assert driver.core.stats.tokens_generated == before
    driver.core.cancel(client.sequence)  # it has ended: nothing happens, also not here
    driver.core.pause(client.sequence)
    driver.check()
    assert driver.core.stats.cancelled == 1


# -- the step -------------------------------------------------------------------------------------------


def test_prefill_begins_before_any_operation(make: MakeRunner) -> None:
    driver = Driver(make)
    client = driver.open([3] * 10, Sampling(max_tokens=4))
    driver.run()
    assert client.sequence.computed == 9  # the last token is computed with what needs its logits
    assert driver.core.stats.tokens_prefilled == 9


@pytest.mark.parametrize("budget", [1, 2, 5, 64])
@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_chunked_prefill_equals_whole(make: MakeRunner, budget: int, chunk: int) -> None:
    """The driver compares with the whole; a step never exceeds the budget, but for one window alone."""
    driver = Driver(make, blocks=40, budget=budget, batching=ChunkedPrefill(chunk))
    first = driver.open([3, 4] * 15, Sampling(max_tokens=6, ignore_eos=True))
    second = driver.open([4, 3] * 15, Sampling(max_tokens=6, ignore_eos=True))
    driver.generate(first)
    driver.verify(second, [5, 6, 7])
    driver.finish_all()
    assert driver.done == {"generate": 1, "verify": 1}
    assert max(driver.positions) <= max(budget, 4)
    if budget == chunk == 64:
        assert max(driver.positions) == 30 + 33


def test_a_window_is_computed_in_one_step(make: MakeRunner) -> None:
    """A budget that the prompt fills delays the window rather than splits it."""

    class Watched(ChunkedPrefill):
        def form(self, demands, budget):
            grants = super().form(demands, budget)
            seen.extend((d.pending, d.window, g) for d, g in zip(demands, grants, strict=True))
            return grants

    seen: list[tuple[int, int, int]] = []
    driver = Driver(make, blocks=40, budget=7, batching=Watched(7))
    driver.verify(driver.open([3, 4] * 9, Sampling(max_tokens=20, ignore_eos=True)), [5] * 5)
    driver.run()
    assert seen == [(23, 6, 7), (16, 6, 7), (9, 6, 3), (6, 6, 6)]


def test_a_shared_prefix_is_not_computed_again(make: MakeRunner) -> None:
    driver = Driver(make, blocks=20)
    for last in (1, 2):
        driver.generate(driver.open([*STEMS[0], last], Sampling(max_tokens=6)))
        driver.run()
    assert driver.core.stats.tokens_from_prefix == 12
    for client in list(driver.clients):
        driver.cancel(client)
    driver.open([*STEMS[0], 3], Sampling(max_tokens=6))  # the prefix outlives its sessions
    driver.run()
    assert driver.core.stats.tokens_from_prefix == 24


def test_without_prefix_caching_no_prefix_outlives_its_sessions(make: MakeRunner) -> None:
    driver = Driver(make, blocks=20, prefix_caching=False)
    for last in (1, 2):
        driver.generate(driver.open([*STEMS[0], last], Sampling(max_tokens=6)))
        driver.run()
        for client in list(driver.clients):
            driver.cancel(client)
    assert driver.core.stats.tokens_from_prefix == 0


def test_a_prompt_is_computed_from_where_it_parts_from_an_earlier_one(make: MakeRunner) -> None:
    driver = Driver(make, blocks=20)
    for end in ([5, 5, 6, 7, 1], [5, 5, 8, 7, 1]):
        driver.generate(driver.open([*STEMS[0], *end], Sampling(max_tokens=6)))
        driver.run()
    assert driver.core.stats.tokens_from_prefix == 14


# -- the counters ---------------------------------------------------------------------------------------


def counters(driver: Driver) -> dict[str, float]:
    """Return the counters that have changed since the start."""
    fields, first = (msgspec.structs.asdict(stats) for stats in (driver.core.stats, EngineStats()))
    apart = {"decision_s", "served"}
    return {name: value for name, value in fields.items() if value != first[name] and name not in apart}


def test_the_counters_count(make: MakeRunner) -> None:
    driver = Driver(make, blocks=20)
    sampling = Sampling(max_tokens=6, ignore_eos=True)
    first = driver.open([3, 4, 5, 6, 7, 8, 3, 4, 5], sampling)
    driver.generate(first)
    driver.run()
    done: dict[str, float] = {"blocks_total": 20, "opened": 1, "steps": 6, "step_s": pytest.approx(0.05)}
    done |= {"tokens_prefilled": 8, "tokens_generated": 6, "tokens_queried": 9}
    assert counters(driver) == done
    second = driver.open(first.prompt, sampling)
    wrong = (first.output[2] + 1) % VOCAB
    driver.verify(second, [*first.output[:2], wrong])
    driver.run()
    done |= {"opened": 2, "steps": 7, "tokens_generated": 9, "tokens_verified": 3, "tokens_accepted": 2}
    done |= {"tokens_queried": 18, "tokens_from_prefix": 8}
    assert counters(driver) == done
    driver.draft(second, 3, [], 2)
    driver.run()
    done |= {"tokens_drafted": 2, "steps": 9, "step_s": pytest.approx(0.06)}
    assert counters(driver) == done
    driver.cancel(first)
    driver.cancel(second)
    assert counters(driver) == done | {"finished": 1, "cancelled": 1}


@pytest.mark.parametrize("sooner", ["loading", "recomputing"])
def test_the_counters_of_host_memory(make: MakeRunner, sooner: str) -> None:
    driver = Driver(make, blocks=20, host=HostMemory(blocks=40, copy_mb_per_s=FAIR, write_through=False))
    client = driver.open([3, 4, 5, 6, 7, 8, 3, 4], Sampling(max_tokens=6))
    driver.run()
    driver.core.memory.preempt(client.sequence)
    driver.core.step_time.token_s = 1.0 if sooner == "loading" else 1e-6
    driver.run()
    before = {"blocks_total": 20, "opened": 1, "preempted": 1, "blocks_written": 2}
    before |= {"tokens_queried": 16, "tokens_from_prefix": 4}
    if sooner == "loading":  # the last block alone: the other one is still there
        assert counters(driver) == before | {"steps": 1, "tokens_prefilled": 7, "tokens_loaded": 3}
    else:
        assert counters(driver) == before | {"steps": 2, "tokens_prefilled": 10, "tokens_recomputed": 3}


def test_stays_are_told(make: MakeRunner) -> None:
    """The driver's clock counts, which goes on by 10 ms before each step."""
    driver = Driver(make, blocks=20)
    sampling = Sampling(max_tokens=3, ignore_eos=True)
    first = driver.open([3, 4, 5, 6, 7, 8, 3, 4, 5], sampling)
    driver.generate(first)
    driver.run()
    served = driver.core.stats.served
    assert sum(served.queue_s.counts) == sum(served.prefill_s.counts) == sum(served.inference_s.counts) == 1
    assert served.queue_s.total == pytest.approx(0.01)
    assert (served.prefill_s.total, served.inference_s.total) == (0.0, pytest.approx(0.02)), (
        "of 1 and 3 steps"
    )
    assert (served.prefilled.total, served.preemptions.total, served.step_tokens.total) == (9, 0, 11)
    second = driver.open(first.prompt, sampling)
    driver.generate(second)
    driver.run()
    assert served.prefilled.total == 9 + 1, "the rest was in the KV cache"
    cancelled = driver.open([9, 9, 9, 9, 9], sampling)
    driver.run()
    driver.cancel(cancelled)
    assert (sum(served.queue_s.counts), sum(served.inference_s.counts)) == (3, 2)


def test_decisions_are_counted(make: MakeRunner) -> None:
    driver = Driver(make, scheduling=Whim(), max_running=1)
    for prompt in PROMPTS[:3]:
        driver.generate(driver.open(prompt, Sampling(max_tokens=9, ignore_eos=True)))
    driver.finish_all()
    stats = driver.core.stats
    assert stats.decisions == driver.core._control.decisions > 3
    assert 0 < stats.decision_s < 1


# -- without torch --------------------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # whoever imports it fails
from tandem.engine.config import HostMemory
from tandem.engine.base import Sampling
from tandem.policies.scheduling import scheduling
from tests.engine.core.core_driver import Driver
from tests.engine.core.plain_runner import PlainRunner

driver = Driver(PlainRunner, blocks=12, scheduling=scheduling.create("buffer_aware"), max_running=2,
                host=HostMemory(blocks=40))
for i in range(6):
    driver.generate(driver.open([3 + i] * 9, Sampling(max_tokens=12, ignore_eos=True)))
driver.finish_all()
driver.check()
assert driver.core.stats.tokens_generated == 72 and driver.core.stats.decisions > 0
import tandem.engine.core.engine, engine.core.thread  # the rest of the core
assert not [name for name in sys.modules if name.startswith(("torch.", "ray"))]
"""


def test_it_works_where_there_is_no_torch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=60)
