"""Contract of batching policies, and what each does beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.scheduling.batching import (
    Buffered,
    ChunkedPrefill,
    Continuous,
    Demand,
    Fifo,
    LengthAware,
    batching,
)

LIMITED = ("continuous", "fifo", "lab")  # to so many sequences a step


@st.composite
def demands_(draw: st.DrawFn) -> list[Demand]:
    made = []
    for arrival in draw(st.permutations(range(draw(st.integers(0, 8))))):
        window = draw(st.integers(0, 12))
        prefill = draw(st.sampled_from([0, 0, 1, 7, 200]) if window else st.integers(1, 200))
        slack = draw(st.integers(0, 300))
        made.append(Demand(prefill + window, window, arrival, draw(st.integers(0, 5000)), slack))
    return made


@pytest.mark.parametrize("name", list(batching))
@given(demands=demands_(), budget=st.integers(1, 64))
def test_contract(name: str, demands: list[Demand], budget: int) -> None:
    policy = batching.create(name, **({"size": 2} if name in LIMITED else {}))
    grants = policy.form(demands, budget)
    assert len(grants) == len(demands)
    assert policy.size is None or sum(grant > 0 for grant in grants) <= policy.size
    for d, g in zip(demands, grants, strict=True):
        assert 0 <= g <= d.pending
        assert g == d.pending or g <= d.pending - d.window, "a window is split"
    granted = [(d, g) for d, g in zip(demands, grants, strict=True) if g]
    if sum(grants) > budget:
        ((d, g),) = granted
        assert g == d.window, "only a window alone may exceed the budget"
    assert bool(granted) == bool(demands), "there is work, and nobody may do it"


@pytest.mark.parametrize("name", list(batching))
@given(demands=demands_(), budget=st.integers(1, 64))
def test_all_is_done_in_the_end(name: str, demands: list[Demand], budget: int) -> None:
    policy = batching.create(name)
    for _ in range(sum(d.pending for d in demands)):
        if not demands:
            return
        grants = policy.form(demands, budget)
        demands = [
            Demand(d.pending - g, d.window, d.arrival, d.context + g)
            for d, g in zip(demands, grants, strict=True)
            if g < d.pending
        ]
    assert not demands


def test_chunked_decodes_first_and_prefills_in_order_of_arrival() -> None:
    policy = ChunkedPrefill(chunk=10)
    old, young = Demand(30, 1, 1, 0), Demand(30, 1, 3, 0)
    decode, verify = Demand(1, 1, 4, 0), Demand(5, 5, 2, 0)
    assert policy.form([young, decode, old, verify], 64) == [0, 1, 10, 5]
    assert policy.form([young, old], 64) == [30, 30]  # nobody's next token waits: the whole budget
    assert policy.form([young, old], 40) == [10, 30]


def test_chunks_shrink_as_their_context_grows() -> None:
    policy = ChunkedPrefill(chunk=32, context_doubles=1000)
    decode = Demand(1, 1, 0, 0)
    chunks = [policy.form([decode, Demand(500, 1, 1, c)], 256)[1] for c in (0, 1000, 3000, 10**6)]
    assert chunks == [32, 16, 8, 1]


def test_buffered_prefills_as_much_as_the_readers_can_wait_for() -> None:
    policy = Buffered(chunk=16, context_doubles=10**9, share=0.5)

    def chunk(*slacks: int, prompts: int = 1) -> int:
        waiting = [Demand(500, 1, i) for i in range(prompts)]
        return policy.form([*waiting, *(Demand(1, 1, 9 + i, 9, s) for i, s in enumerate(slacks))], 256)[0]

    assert chunk(200, 120) == 100  # one waits to begin: half of what the second reader to run dry leaves
    assert chunk(200, 160, 80, 120) == 60
    assert chunk(200, 160, 80, 120, prompts=2) == 80
    assert chunk(200, 160, 80, 120, prompts=9) == 100
    assert chunk(0, 0, 200) == 16
    assert chunk(10**6) == 255
    assert chunk() == 256


def test_chunked_refuses_a_chunk_of_nothing() -> None:
    with pytest.raises(ValueError, match="chunk"):
        ChunkedPrefill(chunk=0)


@pytest.mark.parametrize("name", list(batching))
@given(demands=demands_(), budget=st.integers(1, 32), busy=st.integers(1, 40))
def test_nobody_starves_beside_decodes_without_end(
    name: str, demands: list[Demand], budget: int, busy: int
) -> None:
    """Decodes that come back as soon as they are served, and as many as they like, do not keep others out:
    each ready window, and (but for chunked prefill, where decodes go first) each prompt gets its turn."""
    policy = batching.create(name)
    clock = max((d.arrival for d in demands), default=0) + 1
    decodes = list(range(clock, clock + busy))
    left = [d for d in demands if name not in ("chunked", "buffered") or d.pending == d.window]
    clock += busy
    rounds = 0
    while left:
        rounds += 1
        assert rounds <= 4 + sum(d.pending for d in demands) * (2 + busy), "somebody starves"
        grants = policy.form([*left, *(Demand(1, 1, a, 9) for a in decodes)], budget)
        served = grants[len(left) :]
        left = [
            Demand(d.pending - g, d.window, d.arrival, d.context + g)
            for d, g in zip(left, grants, strict=False)
            if g < d.pending
        ]
        for i, granted in enumerate(served):
            if granted:
                clock += 1
                decodes[i] = clock


def test_fifo_lets_nobody_overtake() -> None:
    line = [Demand(30, 1, 1), Demand(5, 5, 2), Demand(1, 1, 3)]
    assert Fifo().form(line, 33) == [30, 0, 0]
    assert Fifo().form(line, 36) == [30, 5, 1]
    assert Fifo(size=2).form(line, 64) == [30, 5, 0]
    assert Fifo().form([Demand(90, 1, 1)], 64) == [64]


def test_length_aware_takes_the_head_and_those_closest_to_it() -> None:
    line = [Demand(5, 5, 1, 100), Demand(5, 5, 2, 900), Demand(5, 5, 3, 110), Demand(5, 5, 4, 95)]
    assert LengthAware(size=3).form(line, 64) == [5, 0, 5, 5]
    assert LengthAware(size=1).form(line, 64) == [5, 0, 0, 0]


def test_continuous_takes_windows_and_then_whole_prompts() -> None:
    window, prompt = Demand(5, 5, 3), Demand(40, 1, 4)
    assert Continuous().form([prompt, window], 64) == [40, 5]
    assert Continuous().form([prompt, window], 44) == [0, 5]
    oldest = Demand(40, 1, 1)
    assert Continuous().form([oldest, window], 44) == [40, 0]  # it has waited long enough


def test_steps_are_as_large_as_is_usual_unless_it_is_said() -> None:
    """256 sequences; or chunks of 32 positions, which shrink to half at 1,024 of context."""
    assert [batching.create(name).size for name in LIMITED] == [256] * 3
    for policy in (ChunkedPrefill(), Buffered()):
        assert policy.size is None
        assert (policy.chunk, policy.context_doubles) == (32, 1024)
    assert Buffered().share == 0.5
    assert [name for name in batching if batching.create(name).needs_slack] == ["buffered"]
    assert Demand(5, 1, 0) == Demand(5, 1, 0, context=0, slack=0)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_step_takes_a_share_of_the_readers_time(share: float) -> None:
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        Buffered(share=share)
    assert [Buffered(share=bound).share for bound in (0.0, 1.0)] == [0.0, 1.0]


def test_the_oldest_is_the_head_wherever_it_stands() -> None:
    line = [Demand(5, 5, 4, 95), Demand(5, 5, 2, 900), Demand(5, 5, 1, 100), Demand(5, 5, 3, 880)]
    assert LengthAware(size=2).form(line, 64) == [5, 0, 5, 0]
