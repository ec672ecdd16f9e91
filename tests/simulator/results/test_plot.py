"""Pictures of simulations and sweeps: what they show, on axes that begin at 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from tandem.simulator.results.plot import plot
from tandem.simulator.results.sweep_plot import plot_sweep
from tandem.simulator.runs.run import simulate
from tandem.simulator.runs.sweep import grid
from tests.simulator.configurations import config, raw

WORKLOAD = raw()["workload"]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return the figures that were drawn and written."""
    written = list[Figure]()
    save = Figure.savefig

    def saved(self: Figure, *args: Any, **kwargs: Any) -> None:
        written.append(self)
        save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", saved)
    return written


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.axison]


def points(*vary: str, **changes: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    variants = grid(raw(**changes), vary)
    return [(variant.settings, simulate(variant.config).summary()) for variant in variants]


def test_a_simulation_is_drawn(tmp_path: Path, figures: list[Figure]) -> None:
    plot(simulate(config()), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    workload = {**WORKLOAD, "readers": [[1.0, 8.0]]}
    plot(simulate(config(mode="cloud", workload=workload, devices=[])), tmp_path / "p.svg")
    without, with_readers = map(titles, figures)
    assert "Waits of readers" in with_readers
    assert "Waits of readers" not in without
    assert {"Open sessions: verifiers", "Open sessions: devices"} <= set(without)


def test_no_axis_shows_what_cannot_be(tmp_path: Path, figures: list[Figure]) -> None:
    workload = {**WORKLOAD, "readers": [[1.0, 8.0]]}
    plot(simulate(config(workload=workload)), tmp_path / "p.svg")
    for axes in figures[0].axes:
        assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0, axes.get_title()
        if "share" in axes.get_ylabel():
            assert axes.get_ylim() == (0, 1)
        if "sessions" in axes.get_ylabel():
            assert all(tick == int(tick) for tick in axes.get_yticks())


def test_one_axis_is_a_line_in_its_order(tmp_path: Path, figures: list[Figure]) -> None:
    found = points("devices.0.link.rtt_ms=40,10")
    plot_sweep(found, "small", tmp_path / "p.svg")
    (figure,) = figures
    ttft = figure.axes[0]
    (line,) = ttft.lines
    assert list(line.get_xdata()) == [10, 40]
    assert list(line.get_ydata()) == [1e3 * summary["ttft_s"]["mean"] for _, summary in found[::-1]]
    assert (ttft.get_title(), ttft.get_xlabel()) == ("Mean TTFT", "devices.0.link.rtt_ms")
    assert ttft.get_ylabel() == "ms (simulated)"
    assert not figure.legends
    assert {"Requests", "Output", "Servers busy"} <= set(titles(figure))
    assert "Failed" not in titles(figure), "nothing did"
    assert "Answers that stalled" not in titles(figure), "nobody reads along"
    assert all(axes.get_ylim()[0] == 0 for axes in figure.axes)
    assert all(axes.get_ylim()[1] > 1.05 * max(axes.lines[0].get_ydata()) for axes in figure.axes[:3])
    busy = figure.axes[titles(figure).index("Servers busy")]
    assert busy.get_ylim() == (0, 1)


def test_two_axes_are_a_line_for_each_value_of_the_second(tmp_path: Path, figures: list[Figure]) -> None:
    windows = "window={name: static, parameters: {size: 2}},{name: dynamic}"
    plot_sweep(points("mode=speculative,cloud", windows), "small", tmp_path / "p.png")
    (figure,) = figures
    ttft = figure.axes[0]
    assert [line.get_label() for line in ttft.lines] == ["window = static (size 2)", "window = dynamic"]
    assert [label.get_text() for label in ttft.get_xticklabels()] == ["speculative", "cloud"]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 2


def test_simulations_without_a_figure_leave_a_gap(tmp_path: Path, figures: list[Figure]) -> None:
    """One request failed everywhere has no TTFT."""
    nowhere = {"max_sessions": 1, "max_waiting": 0}
    found = points("workload.count=1,12", engine=nowhere)
    found[0][1]["ttft_s"] = None
    plot_sweep(found, "small", tmp_path / "p.png")
    (line,) = figures[0].axes[0].lines
    assert [value == value for value in line.get_ydata()] == [False, True]
    assert "Failed" in titles(figures[0])
