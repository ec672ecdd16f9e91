from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.devices.profile import load_profile
from tandem.simulator.hardware import (
    MeasuredTimer,
    RateTimer,
    UnknownHardware,
    data_folder,
    kv_bytes,
    kv_tokens,
    profiles,
    timer,
)
from tandem.simulator.hardware.catalog import parse
from tandem.simulator.hardware.profiles import public_folder
from tests.simulator.data import needs_data


@pytest.fixture
def without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.simulator.hardware.catalog.data_folder", lambda data: None)
    timer.cache_clear()
    yield
    timer.cache_clear()


@pytest.mark.usefixtures("without_data")
def test_without_tables_everything_is_an_estimate_and_says_so() -> None:
    steps = timer("4xA100", "Llama-2-70B")
    assert steps.sources == {
        "dense": "roofline (± 11%)",
        "head": "roofline (± 11%)",
        "decode attention": "roofline (± 16%)",
        "prefill attention": "roofline (± 40%)",
        "all-reduce": "roofline (± 30%)",
        "host": "assumed: 2 ms a step",
    }
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


def test_a_measured_timer_is_linear() -> None:
    steps = MeasuredTimer(base_s=1.0, token_s=0.1, sequence_s=0.01, context_s=0.001)
    assert steps.step_s(10, 2, 100, [(5, 50)]) == pytest.approx(1 + 1 + 0.03 + 0.15)
    with pytest.raises(ValueError, match="at least 0"):
        MeasuredTimer(base_s=-1.0)


def test_a_device_has_two_rates() -> None:
    steps = RateTimer.of(load_profile("pixel7pro-bloom560m"))
    assert steps.step_s(1, 1, 99) == steps.step_s(3, 3, 297) == pytest.approx(1 / 20.14)
    assert steps.step_s(30, 0, 0, [(30, 0)]) == pytest.approx(30 / 51.8)
    with pytest.raises(ValueError, match="no rates"):
        RateTimer.of(load_profile("native"))


@needs_data
def test_a_table_of_the_same_name_is_preferred() -> None:
    sources = timer("4xA100", "Llama-2-70B").sources
    assert sources["dense"] == "table vidur_profiles/mlp/a100_Llama-2-70b-hf_mlp.csv"
    assert "Qwen-7B" in timer("A40", "Qwen-7B").sources["dense"]
    assert timer("A40", "Llama-2-7B").sources["prefill attention"] == (
        "scaled from llmservingsim_profiles/A6000_Llama-3.1-8B_tp1/attention.csv, Llama-3.1-8B on 1xA6000 (± 40%)"
    )
    assert timer("V100", "Llama-3.1-8B").sources["dense"] == "roofline (± 11%)"


@needs_data
@pytest.mark.parametrize(
    ("hardware", "model"),
    [
        ("4xA100", "Llama-2-70B"),
        ("H100", "Llama-3.1-8B"),
        ("RTXPRO6000", "Qwen3-32B"),
        ("A6000", "Llama-3.1-8B"),
    ],
)
def test_beyond_their_tables_times_go_on_as_the_work_does(hardware: str, model: str) -> None:
    """A prompt of 32,768 tokens, and 512 sequences, of which the tables have none."""
    steps = timer(hardware, model)

    def prefill_s(chunk: int, before: int) -> float:
        return steps.step_s(chunk, 0, 0, [(chunk, before)])

    def decode_s(sequences: int, context: int) -> float:
        return steps.step_s(sequences, sequences, sequences * context)

    for chunk in (512, 2048, 8192):
        grown = [prefill_s(chunk, before) for before in (0, 8192, 16384, 32768)]
        assert grown == sorted(grown)
        assert grown[3] - grown[2] == pytest.approx(2 * (grown[2] - grown[1]), rel=0.25)
    attention_s = prefill_s(8192, 24576) - prefill_s(8192, 0)
    assert attention_s == pytest.approx(4 * (prefill_s(2048, 24576) - prefill_s(2048, 0)), rel=0.25)
    assert decode_s(512, 4096) - decode_s(512, 2048) == pytest.approx(
        4 * (decode_s(128, 4096) - decode_s(128, 2048)), rel=0.25
    )


@needs_data
@pytest.mark.parametrize(
    ("hardware", "model"),
    [("4xA100", "Llama-2-70B"), ("H100", "Llama-3.1-8B"), ("A6000", "Llama-3.1-8B"), ("A40", "Qwen-7B")],
)
def test_decoding_reads_the_cache_no_faster_than_memory_does(hardware: str, model: str) -> None:
    gpu, ways = parse(hardware)
    steps = timer(hardware, model)
    tokens = 64 * 2048
    read_s = steps.step_s(64, 64, 2 * tokens) - steps.step_s(64, 64, tokens)
    least_s = tokens * kv_bytes(model) / (ways * gpu.memory_bytes_per_s)
    assert least_s <= read_s < 2 * least_s


@needs_data
def test_layers_add_up_to_what_the_data_page_says() -> None:
    """DATA.md: A100, Llama-2-70B, four ways: 25.0 ms at 1 token, 335 ms at 2048, dense operators alone."""
    steps = timer("4xA100", "Llama-2-70B")
    assert 25e-3 < steps.step_s(1, 1, 32) < 36e-3
    assert 335e-3 < steps.step_s(2048, 0, 0, [(2048, 0)]) < 450e-3


def test_the_data_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vidur_profiles").mkdir()
    assert data_folder(tmp_path) == tmp_path
    monkeypatch.setenv("TANDEM_DATA", str(tmp_path))
    assert data_folder() == public_folder() == tmp_path
    with pytest.raises(UnknownHardware, match="nowhere: there are no profiled tables"):
        data_folder(tmp_path / "nowhere")


def test_an_installed_package_keeps_data_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TANDEM_DATA", raising=False)
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        profiles, "__file__", str(tmp_path / "tandem" / "simulator" / "hardware" / "profiles.py")
    )
    assert (public_folder(), data_folder()) == (tmp_path / "cache" / "data", None)
