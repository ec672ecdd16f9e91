from __future__ import annotations

import pytest

from tandem.policies.speculation.window import WindowState
from tandem.training.awc.scenarios import WINDOWS, draw, outcome, row
from tandem.training.awc.train import dataset, sweep


def test_a_scenario_is_the_same_whenever_it_is_drawn() -> None:
    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert draw(3) != draw(3, outside=True)


def test_an_outcome_holds_every_window_and_what_was_seen() -> None:
    found = outcome(5, requests=1)
    assert tuple(found.cost_s) == WINDOWS
    assert all(cost > 0 for cost in found.cost_s.values())
    assert found.cost_s[found.best] == min(found.cost_s.values())
    states, expected, costs, groups = dataset([found])
    assert len(states) == len(found.states) == len(costs) == len(groups) > 0
    assert (costs.min(1) == 0).all()
    assert expected.shape == costs.shape
    state = WindowState(*found.states[0])
    assert row(state) == found.states[0]


@pytest.mark.nightly
def test_an_interrupted_training_goes_on(tmp_path, monkeypatch, cluster) -> None:  # type: ignore[no-untyped-def]
    first = sweep(2, tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(b"".join(line for line in kept.read_bytes().splitlines(True) if b'"index":0' in line))
    simulated: list[int] = []

    def counted(index: int):  # type: ignore[no-untyped-def]
        simulated.append(index)
        return outcome(index)

    monkeypatch.setattr("tandem.training.awc.train.outcome", counted)
    monkeypatch.setattr(
        "tandem.simulator.runs.tasks.ray_map", lambda function, items, chunk: map(function, items)
    )
    again = sweep(2, tmp_path)
    assert simulated == [1]
    assert first == again
