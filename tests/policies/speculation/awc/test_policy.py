"""AWC whole: features, the network in numpy against torch, exploration, and what it decides in clear cases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.speculation.arithmetic import expected_tokens
from tandem.policies.speculation.awc.exploration import Exploration
from tandem.policies.speculation.awc.features import CANDIDATE, STATE, features
from tandem.policies.speculation.awc.network import LAYERS, BadWeights, Network, load
from tandem.policies.speculation.awc.policy import PaperWindow
from tandem.policies.speculation.window import WindowState
from tandem.training.awc.train import WcDnn, fit

times = st.floats(0, 10)
shares = st.floats(0, 1)
states = st.builds(
    WindowState,
    acceptance=shares,
    rtt_s=times,
    tpot_s=times,
    queue=st.floats(0, 100),
    previous=st.integers(0, 12),
    verify_s=times,
    draft_s=times,
    fused_s=times,
    alpha=shares,
    judged=st.integers(0, 300),
    prior=shares,
    verify_least_s=times,
    fused_least_s=times,
    fused_share=shares,
    mean_window=st.one_of(st.just(0.0), st.floats(2, 12)),
)


@given(states)
def test_features_are_finite_whatever_the_state(state: WindowState) -> None:
    seen, expected = features(state)
    assert len(seen) == len(STATE)
    assert len(expected) == 12
    assert all(math.isfinite(x) for x in (*seen, *expected))
    assert min(expected) == 0


@given(states)
def test_the_network_is_defined_everywhere(state: WindowState) -> None:
    costs = load().costs(state)
    assert costs.shape == (12,)
    assert np.isfinite(costs).all()


def test_what_is_expected_is_the_closed_form() -> None:
    state = WindowState(
        0.5, 0.02, 0.03, 0.1, 4, verify_s=0.04, draft_s=0.01, fused_s=0.03, alpha=0.8, judged=10**9
    )
    _, expected = features(state)
    token_s = [(0.01 * g + 0.02 + 0.04) / expected_tokens(0.8, g) for g in range(2, 13)]
    by_hand = [math.log(one) for one in (0.03, *token_s)]
    assert expected == pytest.approx([x - min(by_hand) for x in by_hand], abs=1e-6)


def _saved(network: WcDnn) -> dict[str, np.ndarray]:
    parameters = network.state_dict()
    return {f"{n}.{k}": parameters[f"{n}.{k}"].numpy() for n in LAYERS for k in ("weight", "bias")}


@given(states)
def test_numpy_and_torch_agree(state: WindowState) -> None:
    torch.manual_seed(1)
    network = WcDnn()
    torch.nn.init.normal_(network.output.weight)
    seen, expected = features(state)
    with torch.no_grad():
        wanted = network(torch.tensor([seen]), torch.tensor([expected]))[0].numpy()
    assert Network(_saved(network)).costs(state) == pytest.approx(wanted, rel=1e-3, abs=1e-3)


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=r"lack 'input\.weight'"):
        Network({})
    parameters = _saved(WcDnn())
    parameters["input.weight"] = parameters["input.weight"][:, 1:]
    with pytest.raises(BadWeights, match=f"not {len(STATE) + len(CANDIDATE)}"):
        Network(parameters)
    (tmp_path / "w.npz").write_bytes(BytesIO(b"no archive").getvalue())
    with pytest.raises(BadWeights, match=r"w\.npz"):
        load(str(tmp_path / "w.npz"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: a network this small is slower with several, especially on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_training_learns_what_the_closed_form_does_not_know() -> None:
    """Costs that reward a window the closed form thinks poor: after training it is chosen."""
    draw = np.random.default_rng(0)
    states = draw.normal(size=(400, len(STATE)))
    expected = np.tile(np.abs(np.arange(12) - 3) * 0.1, (400, 1))
    costs = np.tile(np.abs(np.arange(12) - 8) * 0.1, (400, 1))
    parameters, said = fit(states, expected, costs, np.arange(400), epochs=300)
    assert said["validation_regret_closed_form"] > 0.3
    assert said["validation_regret"] < 0.02
    assert set(parameters) == {f"{n}.{k}" for n in LAYERS for k in ("weight", "bias")}


def test_exploration_begins_with_the_device_and_then_without() -> None:
    exploration = Exploration(start=5, rounds=2)
    new = WindowState(0, 0.01, 0, 0, 0)
    drafted = WindowState(0.5, 0.01, 0.02, 0, 5, verify_s=0.02, draft_s=0.01)
    known = WindowState(0.5, 0.01, 0.02, 0, 1, verify_s=0.02, draft_s=0.01, fused_s=0.02)
    assert [exploration.first(s) for s in (new, new, drafted, known)] == [5, 5, 1, None]


def test_what_was_saved_up_in_one_mode_is_not_spent_on_it_in_the_other() -> None:
    """Leaving fused rounds that were far better, where a trial of the device was dear, for the device."""
    exploration = Exploration(share=0.05)
    state = WindowState(0.5, 0.1, 0.02, 0, 1, verify_s=0.05, draft_s=0.005, fused_s=0.01)
    assert {exploration.again(state, 1, 6, gap=3.0) for _ in range(300)} == {1}, "too dear to be tried yet"
    assert exploration.again(state, 6, 1, gap=0.1) == 6


@given(gap=st.floats(0, 3), chosen=st.sampled_from([1, 6]))
def test_exploration_keeps_within_its_share(gap: float, chosen: int) -> None:
    exploration = Exploration(share=0.05)
    state = WindowState(0.5, 0.01, 0.02, 0, 1, verify_s=0.02, draft_s=0.005, fused_s=0.02)
    other = 6 if chosen == 1 else 1
    seconds = {1: 0.02, 6: 6 * 0.005 + 0.03}
    spent = lost = 0.0
    for _ in range(500):
        taken = exploration.again(state, chosen, other, gap)
        assert taken in (chosen, other)
        spent += seconds[chosen]
        if taken == other:
            lost += seconds[other] * (1 - math.exp(-gap))
    assert lost <= 0.05 * spent


def settled(state: WindowState) -> int:
    policy = PaperWindow()
    for _ in range(3):
        policy.choose(WindowState(0, 0.01, 0, 0, 0))
    chosen = [policy.choose(state) for _ in range(40)]
    return max(set(chosen), key=chosen.count)


def test_clear_cases_are_decided_clearly() -> None:
    near = WindowState(
        0.9, 0.002, 0.02, 0.1, 6, verify_s=0.05, draft_s=0.002, fused_s=0.05, alpha=0.95, judged=100
    )
    assert settled(near) >= 6  # cheap, good drafts behind a short link
    far = WindowState(
        0.1, 0.2, 0.02, 0.1, 6, verify_s=0.05, draft_s=0.05, fused_s=0.02, alpha=0.2, judged=100
    )
    assert settled(far) == 1


@pytest.mark.parametrize(
    ("gap", "share", "fused"),
    [
        (0.1, 0.5, True),
        (0.1, 0.0, False),
        (0.3, 0.0, True),
        (-0.05, 0.5, False),
        (-0.05, 1.0, True),
        (-0.2, 1.0, False),
    ],
)
def test_it_takes_more_to_leave_what_the_others_do(
    monkeypatch: pytest.MonkeyPatch, gap: float, share: float, fused: bool
) -> None:
    """gap: how much dearer the device is thought to be than fused rounds."""
    policy = PaperWindow()
    monkeypatch.setattr(policy._network, "costs", lambda state: np.array([0.0, *[gap] * 11]))
    state = WindowState(
        0.5,
        0.01,
        0.03,
        0.1,
        4,
        verify_s=0.04,
        draft_s=0.01,
        fused_s=0.03,
        alpha=0.8,
        judged=50,
        fused_share=share,
    )
    chosen = [policy.choose(state) for _ in range(12)]
    assert (chosen[-1] == 1) == fused


@pytest.mark.parametrize(
    ("others", "slope", "window"),
    [(0.0, 0.01, 2), (8.0, 0.0, 8), (8.0, 0.01, 7), (8.0, 0.1, 3), (8.0, 1.0, 2)],
)
def test_windows_that_cost_about_the_same_are_as_wide_as_the_others(
    monkeypatch: pytest.MonkeyPatch, others: float, slope: float, window: int
) -> None:
    """slope: what every token of window is thought dearer, relative to windows of two."""
    policy = PaperWindow(start=8)
    costs = np.array([9.0, *(slope * extra for extra in range(11))])
    monkeypatch.setattr(policy._network, "costs", lambda state: costs)
    state = WindowState(
        0.5, 0.01, 0.03, 0.1, 4, verify_s=0.04, draft_s=0.01, fused_s=0.03, mean_window=others
    )
    chosen = [policy.choose(state) for _ in range(30)]
    assert max(set(chosen[10:]), key=chosen[10:].count) == window
