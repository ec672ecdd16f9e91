from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.split import CloudMonitor, DeviceMonitor, Split, SplitPolicies, TokenBytes
from tandem.policies.split.chunking import chunking
from tandem.policies.split.drafting import DraftRound, DraftState, drafting
from tandem.policies.split.parallel_drafting import NOTHING, Ahead, parallel_drafting

A_BYTES = 8192


class Watching:
    """A drafting policy that drafts as many as it may, and keeps what it is shown and told."""

    def __init__(self, most: int = 100) -> None:
        self.most = most
        self.shown: list[DraftState] = []
        self.told: list[DraftRound] = []

    def go_on(self, state: DraftState) -> bool:
        self.shown.append(state)
        return len(state.confidences) < self.most

    def learn(self, done: DraftRound) -> None:
        self.told.append(done)


def split(
    prompt: int = 100,
    most: int = 20,
    *,
    cloud: CloudMonitor | None = None,
    device: DeviceMonitor | None = None,
    **policies: Any,
) -> Split:
    cloud = cloud or CloudMonitor()
    device = device or DeviceMonitor(8.192e6, 16.384e6, 0.01)  # a token: 1 ms up, 0.5 ms down
    hat = SplitPolicies(chunking.create("hat"), Watching(), parallel_drafting.create("hat", k=2))
    return Split(
        prompt,
        most,
        TokenBytes(A_BYTES, A_BYTES),
        cloud=cloud,
        device=device,
        policies=hat._replace(**policies),
    )


def test_chunks_follow_what_was_reported_since_the_last_one() -> None:
    made = split(1000)
    first = made.next_chunk()
    made.uploaded(first, first * 1e-3)
    made.answered(first, 0.3)
    second = made.next_chunk()
    assert second > first, "the cloud is slower than was thought"
    made.uploaded(second, second * 0.1)
    assert made.next_chunk() < second, "and the link too"


def test_what_a_draft_is_weighed_with() -> None:
    cloud, policy = CloudMonitor(), Watching()
    made = split(cloud=cloud, drafting=policy)
    made.answered(10, 0.02)
    made.begin(1)
    assert made.draft_on()
    shown = policy.shown[-1]
    assert (shown.confidences, shown.left) == ((), 18)
    assert shown.token_s == pytest.approx(1.5e-3 + cloud.g.line.token_s)
    assert shown.round_s == pytest.approx(0.01 + 1.5e-3 + 0.02)
    assert shown.draft_s > 0
    made.drafted(0.9)
    assert made.draft_on(ready=True)
    assert policy.shown[-1] == DraftState((0.9,), 17, 0.0, shown.token_s, shown.round_s)
    made.drafted(0.4)
    assert made.draft == 2
    made.computed(1, 0.008)  # two steps, one of which drafted
    made.judged(accepted=1, wait_s=0.1)
    assert policy.told == [DraftRound((0.9, 0.4), 1, 0.004, pytest.approx(0.104))]
    # three tokens travelled: 10 + 4.5 + 20 ms are accounted for
    assert cloud.overhead_s == pytest.approx(0.1 - 0.0345)


def test_a_round_begins_anew() -> None:
    policy = Watching()
    made = split(drafting=policy)
    made.begin(1)
    made.drafted(0.9)
    made.computed(1, 0.008)
    made.judged(1, 0.1)
    made.begin(3)
    made.draft_on()
    assert (policy.shown[-1].confidences, policy.shown[-1].left) == ((), 16)
    made.judged(0, 0.05)
    assert policy.told[-1] == DraftRound((), 0, 0.0, 0.05)


def test_what_is_drafted_ahead() -> None:
    made = split()
    made.answered(10, 0.02)
    for branches in (1, 2) * 10:
        made.drafted_ahead(branches, 0.004 + 0.001 * branches)
    made.begin(1)
    assert made.ahead() == NOTHING, "no token is uncertain"
    made.drafted(0.5)
    assert made.ahead() == Ahead(2, 5)  # (10 + 2 · 1.5 + 20) / 6
    assert made.ahead(passed_s=0.015) == Ahead(2, 3)
    made.begin(18)
    made.drafted(0.5)
    assert made.ahead() == NOTHING, "the answer ends with the next round"


@given(
    prompt=st.integers(1, 2000),
    most=st.integers(1, 40),
    chunks=st.sampled_from(list(chunking)),
    drafts=st.sampled_from(list(drafting)),
    meanwhile=st.sampled_from(list(parallel_drafting)),
    seed=st.integers(0, 1000),
)
def test_a_request(prompt: int, most: int, chunks: str, drafts: str, meanwhile: str, seed: int) -> None:
    """Call it as a mode does: chunks make up the prompt, and the answer is never overshot, in any case."""
    random, device = Random(seed), DeviceMonitor()
    made = split(
        prompt,
        most,
        device=device,
        chunking=chunking.create(chunks),
        drafting=drafting.create(drafts),
        parallel_drafting=parallel_drafting.create(meanwhile),
    )
    sizes = []
    while size := made.next_chunk():
        sizes.append(size)
        made.uploaded(size, size * random.uniform(1e-4, 1e-3))
        made.answered(size + random.randrange(50), random.uniform(0.01, 0.1))
    assert sum(sizes) == prompt
    assert min(sizes) > 0
    sent, ready = 1, 0
    while sent < most:
        made.begin(sent)
        drafted = 0
        while made.draft_on(ready=ready > drafted):
            made.drafted(random.random() ** 0.2)
            drafted += 1
        made.computed(max(0, drafted - ready), random.uniform(1e-3, 1e-2))
        assert drafted < most - sent, "the model adds a token of its own"
        made.uploaded(drafted + 1, random.uniform(1e-3, 1e-2))
        branches, steps = made.ahead()
        for _ in range(steps):
            made.drafted_ahead(branches, random.uniform(1e-3, 1e-2))
        made.answered(drafted + 1 + random.randrange(50), random.uniform(0.01, 0.1))
        made.downloaded(drafted + 1, random.uniform(1e-3, 1e-2))
        accepted = random.randint(0, drafted)
        made.judged(accepted, random.uniform(0.01, 0.3))
        sent += accepted + 1
        assert steps <= max(0, most - sent), "what is drafted ahead still fits"
        ready = random.choice([0, steps])
    assert sent == most


def test_bytes_of_states_are_those_of_their_direction() -> None:
    device = DeviceMonitor(1e6, 1e6, 0.0)
    made = Split(
        100, 20, TokenBytes(4000, 16_000), cloud=CloudMonitor(), device=device,
        policies=SplitPolicies(chunking.create("hat"), Watching(), parallel_drafting.create("hat", k=2)),
    )  # fmt: skip
    made.uploaded(10, 0.02)
    made.downloaded(10, 0.04)
    assert (device.up_bytes_s, device.down_bytes_s) == (pytest.approx(2e6), pytest.approx(4e6))


@pytest.mark.parametrize(("stages", "chunks", "under_way"), [(1, "hat", 3), (3, "hat", 5), (3, "whole", 1)])
def test_chunks_under_way_fill_every_stage_and_the_link(stages: int, chunks: str, under_way: int) -> None:
    made = Split(
        100, 20, TokenBytes(A_BYTES, A_BYTES), cloud=CloudMonitor(), device=DeviceMonitor(), pipeline=stages,
        policies=SplitPolicies(chunking.create(chunks), Watching(), parallel_drafting.create("hat", k=2)),
    )  # fmt: skip
    assert made.under_way == under_way
    usual = split()
    assert usual.under_way == 3, "one stage unless it is said"


def test_a_draft_may_have_one_token_less_than_the_output() -> None:
    made = split(most=10)
    made.begin(7)
    drafted = []
    while made.draft_on():
        made.drafted(0.9)
        drafted.append(made.draft)
    assert drafted == [1, 2], "and the model adds one of its own"
