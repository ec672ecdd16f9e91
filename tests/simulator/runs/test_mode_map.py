"""Maps of modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.simulator.config.errors import ConfigError
from tandem.simulator.results.map_plot import plot_map
from tandem.simulator.results.mode_map import AUTO, Played, points
from tandem.simulator.runs.mode_map import asked, mapped, play_all
from tests.simulator.configurations import raw, split

AXES = ["devices.0.link.rtt_ms=10,300", "workload.arrival.rate_per_s=1,20"]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate in this process."""
    monkeypatch.setattr(
        "tandem.simulator.runs.tasks.ray_map", lambda function, items, chunk: map(function, items)
    )


def played(mode: str, loss_usd: float, finished: float = 1.0) -> Played:
    return Played(mode, {"seed": 1}, mode, loss_usd, 0.0, None, None, finished, {"cloud": finished})


def test_every_mode_that_is_served_and_auto_at_every_point() -> None:
    simulations = asked(raw(), AXES, "fast")
    assert [each.mode for each in simulations[:4]] == [AUTO] * 4
    assert {each.mode for each in simulations} >= {AUTO, "cloud", "device", "speculative", "race"}
    assert len(simulations) % 4 == 0
    assert len({each.key for each in simulations}) == len(simulations)
    (auto,) = {each.variant.config.router.collaboration.name for each in simulations[:4]}
    assert auto == "auto"
    assert {each.variant.config.mode for each in simulations[:4]} == {None}
    assert not {each.key for each in asked(raw(), AXES, "cheap")} & {each.key for each in simulations}
    assert "split" not in {each.mode for each in simulations}, "there is no middle"


def test_what_is_wrong_is_said_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="objective: one of balanced, fast, cheap, private, not 'quick'"):
        asked(raw(), AXES, "quick")
    with pytest.raises(ConfigError, match="did you mean seed"):
        asked(raw(), ["sead=1,2"])
    with pytest.raises(ConfigError, match="serve mode split alone"):
        asked(raw(**split()), AXES)


def test_points_are_ranked_and_drawn(tmp_path: Path) -> None:
    simulations = asked(raw(), AXES)
    out = tmp_path / "map.jsonl"
    found = mapped(simulations, play_all(simulations, out))
    assert [tuple(point.settings.values()) for point in found] == [(10, 1), (10, 20), (300, 1), (300, 20)]
    for point in found:
        losses = [each.loss_usd for each in point.fixed]
        assert losses == sorted(losses)
        assert point.ahead >= 0.0
        assert point.auto.mode == AUTO
        assert sum(point.auto.picked.values()) == pytest.approx(point.auto.finished)
        assert point.favourite in {each.mode for each in point.fixed}
        assert all(
            set(each.picked) == {each.mode} for each in point.fixed if each.mode in ("cloud", "device")
        )
    assert len(out.read_bytes().splitlines()) == len(simulations)
    plot_map(found, "small", tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_may_know_a_simulation_by_other_settings(tmp_path: Path) -> None:
    out = tmp_path / "map.jsonl"
    list(play_all(asked(raw(), ["seed=3"]), out))
    kept = out.read_bytes()
    again = asked(raw(), ["workload.count=12"])
    (point,) = mapped(again, play_all(again, out))
    assert out.read_bytes() == kept, "nothing was simulated again"
    assert point.settings == {"workload.count": 12}


def test_a_mode_that_finishes_nothing_is_no_choice() -> None:
    (point,) = points([played("sketch", 1.0, finished=0.0), played("cloud", 2.0), played(AUTO, 3.0)])
    assert [each.mode for each in point.fixed] == ["cloud"]
    assert (point.ahead, point.auto_ahead) == (0.0, -0.5)
