"""Windows by expected gain, in worlds whose times and acceptance are known."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.policies.speculation.gain import GainWindow
from tandem.policies.speculation.history import PairHistory
from tandem.policies.speculation.rounds import BURST
from tandem.policies.speculation.window import WindowState


@dataclass(frozen=True)
class World:
    """Seconds of a drafted token, of a step with so many positions, of the link's round trip, and of a token that the
    drafter reads."""

    draft_s: float
    step_s: Callable[[int], float]
    rtt_s: float = 0.005
    read_s: float = 0.0


FEW = (0.0, 0.027, 0.043, 0.059, 0.078, 0.097)
TWO_CORES = World(0.015, lambda n: FEW[n] if n < len(FEW) else FEW[-1] + 0.0108 * (n - 5), read_s=0.005)
"""A 1.5B model in Q4 and a 0.5B one that drafts, on two cores."""
PROMPT, ANSWER = 64, 256  # tokens
GPU = World(0.004, lambda n: 0.03 + 1e-4 * n, read_s=0.001)


def played(
    world: World,
    alpha: Callable[[int], float],
    tokens: int,
    seed: int,
    slower: Callable[[int], float] = lambda _: 1.0,
) -> tuple[float, list[int]]:
    """Return the seconds of an output over those of the target alone, and the windows. alpha, and how much slower the
    drafter is: by position."""
    chance, pair = random.Random(seed), PairHistory(GainWindow(), world.rtt_s)
    seconds, done, read, windows = 0.0, 0, -PROMPT, list[int]()
    began = 0
    while done < tokens:
        if done - began >= ANSWER:  # another one begins: what drafts reads its prompt beside the target
            began, read = done, done - PROMPT if pair.rests else done
        behind = done - read if done - read > MAX_WINDOW + 1 else 0
        gamma = pair.choose(behind)
        windows.append(gamma)
        if gamma == 0:
            alone_s = BURST * world.step_s(1)
            pair.note_alone(BURST, alone_s)
            done, seconds = done + BURST, seconds + alone_s
            continue
        accepted = 0
        while accepted < gamma and chance.random() < alpha(done + accepted):
            accepted += 1
        draft_s, verify_s = (
            (gamma * world.draft_s + behind * world.read_s) * slower(done),
            world.step_s(gamma + 1),
        )
        pair.note(gamma, accepted, accepted + 1, verify_s, draft_s, behind)
        read, done, seconds = done, done + accepted + 1, seconds + world.rtt_s + draft_s + verify_s
    return seconds / (done * world.step_s(1)), windows


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_it_is_never_slower_than_the_target_alone(alpha: float) -> None:
    for world in (TWO_CORES, GPU, World(0.001, lambda _: 0.03, 0.0)):
        ratios = sorted(played(world, lambda _: alpha, 4000, seed)[0] for seed in range(5))
        assert ratios[-1] < 1.03


def test_it_takes_long_windows_where_they_pay() -> None:
    ratio, windows = played(GPU, lambda _: 0.95, 2000, 1)
    assert ratio < 0.35
    assert windows[-1] >= 8
    assert played(GPU, lambda _: 0.6, 2000, 1)[0] < 0.75


def test_it_rests_where_drafts_cost_too_much() -> None:
    ratio, windows = played(TWO_CORES, lambda _: 0.8, 4000, 1)
    assert ratio < 1.02
    assert windows.count(0) > len(windows) / 2


def test_it_comes_back_when_drafts_are_right_again() -> None:
    """A text that cannot be drafted, and then one that can."""
    _, windows = played(GPU, lambda position: 0.0 if position < 3000 else 0.95, 12_000, 3)
    half = len(windows) // 2
    assert 0 in windows[:half]
    assert windows[-1] >= 8


@pytest.mark.parametrize("seed", range(3))
def test_it_comes_back_when_the_drafter_is_fast_again(seed: int) -> None:
    """Times from before a rest are forgotten, and what is read after one does not count as drafting."""
    _, windows = played(GPU, lambda _: 0.9, 15_000, seed, lambda position: 30.0 if position < 1500 else 1.0)
    assert windows[len(windows) // 8] == 0
    assert min(windows[-20:]) >= 6


def test_a_new_pair_drafts_unless_its_link_takes_too_long() -> None:
    policy = GainWindow(start=5)
    assert policy.choose(WindowState(0, 0.01, 0, 0, 0)) == 0, "the target's own time"
    assert policy.choose(WindowState(0, 0.01, 0, 0, 0, alone_s=0.03)) == 5
    assert policy.choose(WindowState(0, 0.1, 0, 0, 0, alone_s=0.03)) == 0
    assert policy.choose(WindowState(0, 0.01, 0, 0, 0, alone_s=0.03, prior=0.01)) == 0
    with pytest.raises(ValueError, match="start"):
        GainWindow(start=1)


def test_as_long_as_a_drafter_was_only_seen_catching_up_its_windows_stay_small() -> None:
    known = WindowState(
        0.95, 0.001, 0.1, 0.0, 4, alpha=0.95, judged=300, prior=0.95, alone_s=0.1, verify_s=0.1,
        drafted=4.0, read_s=0.01,
    )  # fmt: skip
    assert GainWindow(start=4).choose(known) == 4
    assert GainWindow(start=4).choose(replace(known, draft_s=0.001)) > 8
    assert GainWindow(start=4).choose(replace(known, read_s=0.0)) > 8, "its drafts take no time"
    assert GainWindow(start=4).choose(replace(known, draft_s=0.001, judged=3)) == 4, "few were judged"


def test_a_verification_that_takes_less_than_the_target_alone_makes_no_draft_cheaper_than_free() -> None:
    state = WindowState(
        0.7, 0.0, 0.1, 0.0, 4, alpha=0.7, judged=300, prior=0.7, alone_s=0.1, verify_s=0.05, drafted=4.0,
        draft_s=0.005,
    )  # fmt: skip
    assert GainWindow().choose(state) == GainWindow().choose(replace(state, verify_s=0.1))
