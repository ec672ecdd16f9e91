from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.profile import load_profile
from cluster.simulator.hardware import (
    MeasuredTimer,
    RateTimer,
    UnknownHardware,
    kv_tokens,
    predict,
    timer,
)
from cluster.simulator.hardware.catalog import data_folder
from cluster.simulator.hardware.predict import Shape
from cluster.simulator.hardware.validate import held_out
from tests.cluster.simulator.data import DATA, needs_data


@pytest.fixture
def without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.simulator.hardware.catalog.data_folder", lambda data: None)
    timer.cache_clear()
    yield
    timer.cache_clear()


@pytest.mark.usefixtures("without_data")
def test_without_tables_everything_is_an_estimate_and_says_so() -> None:
    steps = timer("4xA100", "Llama-2-70B")
    assert set(steps.sources) == {"dense", "head", "attention", "all-reduce", "host"}
    assert all("estimate" in source for source in steps.sources.values())
    weights_s = 140e9 / (4 * 2039e9)
    assert weights_s < steps.step_s(1, 1, 100) < 3 * weights_s  # bound by reading the weights


@pytest.mark.usefixtures("without_data")
@given(
    tokens=st.integers(1, 6000),
    sequences=st.integers(1, 128),
    context=st.integers(0, 2000),
    chunk=st.integers(1, 2000),
)
def test_more_work_never_takes_less_time(tokens: int, sequences: int, context: int, chunk: int) -> None:
    steps = timer("A40", "Llama-2-7B")
    total = context * sequences
    base_s = steps.step_s(tokens, sequences, total)
    assert 0 < base_s <= steps.step_s(tokens + 1, sequences, total) * (1 + 1e-9)
    assert base_s <= steps.step_s(tokens, sequences, total + 5000) * (1 + 1e-9)
    alone_s = steps.step_s(chunk, 0, 0, [(chunk, 0)])
    assert alone_s <= steps.step_s(chunk, 0, 0, [(chunk, 3000)]) * (1 + 1e-9)


def test_unknown_names_are_told_what_there_is() -> None:
    with pytest.raises(UnknownHardware, match="no hardware '4xB200'; there are .*A100, A30"):
        timer("4xB200", "Llama-2-7B")
    with pytest.raises(UnknownHardware, match="no model 'GPT-2'; there are: CodeLlama-34B"):
        timer("A40", "GPT-2")
    with pytest.raises(UnknownHardware, match="does not fit into A40"):
        kv_tokens("A40", "Llama-2-70B")
    with pytest.raises(ValueError, match="no operation 'dream'"):
        predict("dream", Shape("Llama-2-7B"), "A40")  # type: ignore[arg-type]


def test_a_measured_timer_is_linear() -> None:
    steps = MeasuredTimer(base_s=1.0, token_s=0.1, sequence_s=0.01, context_s=0.001)
    assert steps.step_s(10, 2, 100, [(5, 50)]) == pytest.approx(1 + 1 + 0.03 + 0.15)
    with pytest.raises(ValueError, match="at least 0"):
        MeasuredTimer(base_s=-1.0)


def test_a_device_has_two_rates() -> None:
    steps = RateTimer.of(load_profile("pixel7pro-bloom560m"))
    assert steps.step_s(1, 1, 99) == pytest.approx(1 / 20.14)
    assert steps.step_s(30, 0, 0, [(30, 0)]) == pytest.approx(30 / 51.8)
    with pytest.raises(ValueError, match="no rates"):
        RateTimer.of(load_profile("native"))


@needs_data
def test_a_table_of_the_same_name_is_preferred() -> None:
    sources = timer("4xA100", "Llama-2-70B").sources
    assert sources["dense"] == "table vidur_profiles/mlp/a100_Llama-2-70b-hf_mlp.csv"
    assert "Qwen-7B" in timer("A40", "Qwen-7B").sources["dense"]
    assert timer("A40", "Llama-2-7B").sources["attention"].startswith("scaled from")
    assert "estimate" in timer("V100", "Llama-3.1-8B").sources["dense"]


@needs_data
def test_layers_add_up_to_what_the_data_page_says() -> None:
    """DATA.md: A100, Llama-2-70B, four ways: 25.0 ms at 1 token, 335 ms at 2048, dense operators alone."""
    steps = timer("4xA100", "Llama-2-70B")
    assert 25e-3 < steps.step_s(1, 1, 32) < 36e-3
    assert 335e-3 < steps.step_s(2048, 0, 0, [(2048, 0)]) < 450e-3


@needs_data
def test_held_out_rows_are_met() -> None:
    assert DATA is not None
    by_operation: dict[str, list[tuple[float, int]]] = {"prefill": [], "decode": []}
    for found in held_out(DATA):
        by_operation[found.operation].append((found.error, found.rows))
    for operation, bar in (("prefill", 0.08), ("decode", 0.06)):
        found = by_operation[operation]
        assert len(found) > 5
        assert mean(error for error, _ in found) <= bar
        assert sum(error * rows for error, rows in found) / sum(rows for _, rows in found) <= bar


def test_the_data_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vidur_profiles").mkdir()
    assert data_folder(tmp_path) == tmp_path
    monkeypatch.setenv("TANDEM_DATA", str(tmp_path))
    assert data_folder() == tmp_path
