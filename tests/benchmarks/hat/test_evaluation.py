"""HAT's evaluation asks all systems the same, and compares what it says it compares."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from tandem.benchmarks.hat import evaluation, setting
from tandem.benchmarks.hat.evaluation import (
    ALONE,
    CANDIDATES,
    CELLS,
    HAT,
    PAPERS,
    PUBLISHED,
    TABLE_V,
    U_MEDUSA,
    U_SHAPE,
    Results,
    Run,
    ablated,
    figures,
    runs,
)
from tandem.benchmarks.hat.setting import CNNDM, DATASETS, SPECBENCH, Cell, Dataset, System, measure
from tests.effort import tried
from tests.simulator.data import needs_data

U = ablated(PAPERS)["none"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting, "WARM_UP", tried(2, 6))
    monkeypatch.setattr(setting, "COUNT", tried(6, 12))


@needs_data
def test_prompts_are_as_long_as_the_papers() -> None:
    """Compare with its Table III: mean, 90th percentile and standard deviation; only the mean is set."""
    for dataset, mean, p90, deviation in ((SPECBENCH, 351.2, 891.0, 397.3), (CNNDM, 1036.6, 1772.0, 511.8)):
        lengths = setting.prompt_lengths(dataset)
        assert fmean(lengths) == pytest.approx(mean, rel=0.01)
        assert np.percentile(lengths, 90) == pytest.approx(p90, rel=0.05)
        assert np.std(lengths) == pytest.approx(deviation, rel=0.2)


def test_a_seed_asks_all_systems_the_same() -> None:
    ours, theirs = (setting.requests(SPECBENCH, alpha, 6.0, 1) for alpha in (0.9, 0.3))
    assert [(a.arrival_s, a.prompt_tokens, a.output_tokens, a.device) for a in ours] == [
        (b.arrival_s, b.prompt_tokens, b.output_tokens, b.device) for b in theirs
    ]
    drawn = [bit for request in ours for bit in (request.acceptance or b"")[: setting.MAX_TOKENS]]
    assert fmean(drawn) == pytest.approx(0.9, abs=0.01)
    assert setting.requests(SPECBENCH, 0.9, 6.0, 2)[0] != ours[0]


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_hat_is_quicker_than_plain_u_shape_and_a_seed_gives_the_same_figures() -> None:
    ours, theirs = measure(CNNDM, PAPERS, 2.0), measure(CNNDM, U, 2.0)
    assert ours.ttft_s < theirs.ttft_s
    assert ours.tbt_s < theirs.tbt_s
    assert (ours.failed, theirs.failed) == (0, 0)
    assert theirs.accepted == 1.0
    assert measure(CNNDM, PAPERS, 2.0) == ours


@pytest.mark.usefixtures("few")
def test_sending_everything_back_costs_a_download() -> None:
    lean, all_back = (measure(SPECBENCH, U, 0.01, everything=one, devices=1) for one in (False, True))
    tokens = fmean(r.prompt_tokens for r in setting.requests(SPECBENCH, 0.5, 0.01, 0, 1)[setting.WARM_UP :])
    assert all_back.ttft_s - lean.ttft_s == pytest.approx(tokens * 8192 / 12.5e6, rel=0.02)
    assert all_back.tbt_s == pytest.approx(lean.tbt_s, rel=0.02)


def test_power_modes_change_after_some_requests_and_only_slow_devices_down() -> None:
    modes = setting.setting(SPECBENCH, PAPERS, 6.0, varying="power modes").devices
    constant = setting.setting(SPECBENCH, PAPERS, 6.0).devices
    assert len(modes) == sum(group.count for group in constant)
    asked = setting.requests(SPECBENCH, SPECBENCH.alpha, 6.0, 0)
    assert [time_s for time_s, _ in modes[0].speed_trace] == [0, *(one.arrival_s for one in asked[5::5])]
    shares = {share for device in modes for _, share in device.speed_trace}
    assert shares == set(setting.POWER_MODES)
    assert not any(group.speed_trace for group in constant)


def test_figures_come_from_the_cells_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use invented cells: HAT has 0.5 s less 0.1 s per seed, the baselines 1 s; the ablation is the paper's."""
    monkeypatch.setattr(evaluation, "_has_wifi", lambda: False)
    chosen = {
        (dataset.name, name): candidates[-1]
        for dataset in DATASETS.values()
        for name, candidates in CANDIDATES.items()
    }
    papers = {
        (name, str(system)): row
        for name in DATASETS
        for system, row in zip(ablated(chosen[name, HAT]).values(), TABLE_V[name], strict=True)
    }

    def cell(run: Run) -> Cell:
        ours = replace(run.system, wire="float16") in (chosen[run.dataset, HAT], PAPERS)
        if ours and run.system.wire != "float16":
            return Cell(0.25, 0.1, 9.0, 2.06, 1.0, 0, 0.5)
        seconds = 0.5 - 0.1 * run.seed if ours else 1.0
        tbt_s = seconds * (1 + (run.rate - 4) / 100)
        if not ours and run.system != chosen[run.dataset, U_SHAPE]:
            row = papers.get((run.dataset, str(run.system)))
            tbt_s, seconds = (tbt_s, seconds) if row is None else (row[1] / 1e3, 1.0)
        return Cell(seconds, tbt_s, 9.0, 2.06 if ours else 1.0, 1.0, 0, 0.5)

    coded = {key: replace(system, wire="int6") for key, system in chosen.items()}
    results = Results([(run, cell(run)) for run in runs(chosen, coded, 3)], 3)
    found = figures(results, chosen, coded)
    assert found["ttft_cut_min"] == 0.6
    assert found["ttft_cut_min_range"] == [0.5, 0.7]
    assert (found["ttft_cut_coded_min"], found["ttft_cut_equal_bytes_min_specbench"]) == (0.75, 0.75)
    assert found["tbt_growth"] == pytest.approx(0.05)
    assert (found["accepted_length"], found["prefill_sla"]) == (2.06, 1.0)
    assert found["speedup"] == 2.5


def test_every_cell_is_simulated_once_a_seed() -> None:
    chosen = {(d.name, n): c[0] for d in DATASETS.values() for n, c in CANDIDATES.items()}
    coded = {
        (d.name, n): replace(c[-1], wire="int6") for d in DATASETS.values() for n, c in CANDIDATES.items()
    }
    once, thrice = (runs(chosen, coded, seeds) for seeds in (1, 3))
    assert len(thrice) == 3 * len(once)
    for dataset, rate in CELLS:
        for system in (coded[dataset.name, HAT], coded[dataset.name, U_MEDUSA]):
            assert Run(dataset.name, system, rate, 0) in once, "with settings of its own"
    for dataset, rate in CELLS:
        for system in ablated(chosen[dataset.name, HAT]).values():
            assert Run(dataset.name, system, rate, 0) in once
        for system in (PAPERS, PUBLISHED[U_SHAPE]):
            assert Run(dataset.name, system, ALONE, 0, devices=1) in once


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=lambda one: one.name)
def test_settings_are_of_the_papers_scale(dataset: Dataset) -> None:
    config = setting.setting(dataset, System(), 6.0)
    assert sum(group.count for group in config.devices) == 30
    assert sum(group.count for group in config.devices if group.hardware == "AGXOrin") == 10
    info = config.split_info
    assert info is not None
    assert info.first < 0.1 * info.layers
