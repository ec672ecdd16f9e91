"""The comparison of chunks asks all systems the same, and compares medians of the best with medians of the best."""

from __future__ import annotations

from tandem.benchmarks.hat.chunks import DEFAULT, FIXED, SYSTEMS, Run, figures, runs
from tandem.benchmarks.hat.setting import CNNDM, DATASETS, SPECBENCH, Cell, setting
from tandem.deployments.modes.split import SplitSettings
from tandem.policies.split.chunking import FixedChunks, chunking


def test_all_systems_have_the_same_cells() -> None:
    once, thrice = runs(1), runs(3)
    assert (len(once), len(thrice)) == (6 * len(SYSTEMS), 18 * len(SYSTEMS))
    assert {(run.dataset, run.stages) for run in once} == {(d, p) for d in DATASETS for p in (1, 4, 8)}


def test_a_cloud_has_so_many_stages() -> None:
    system = next(iter(SYSTEMS.values()))
    assert [setting(SPECBENCH, system, 1.0, stages=p).targets[0].stages for p in (1, 8)] == [1, 8]


def test_the_default_is_the_modes() -> None:
    chosen = SplitSettings().chunking.create()
    fixed = chunking.create("fixed", **FIXED[DEFAULT].chunking["parameters"])
    assert isinstance(chosen, FixedChunks)
    assert vars(chosen) == vars(fixed)


def test_the_better_equation_is_compared_with_the_default() -> None:
    def cell(run: Run) -> Cell:
        ttft_s = 1.0 if run.system in FIXED else 0.9 if run.dataset == CNNDM.name else 1.2
        slow = run.seed == 2 or run.system == "equation"  # an outlier, which the median leaves out
        return Cell(ttft_s + 5 * slow, 0.1 if run.system in FIXED else 0.101, 9.0, 2.0, 1.0, 0, 0.5)

    found = figures({run: cell(run) for run in runs(3)})
    assert found == {
        "equation_cut_min": -0.2,
        "equation_cut_mean": -0.05,
        "equation_cut_max": 0.1,
        "equation_tbt_mean": 1.01,
    }
