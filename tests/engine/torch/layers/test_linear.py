"""Projections equal the definition, whichever layout serves the call, and a layout is chosen once a process."""

from __future__ import annotations

import pytest
import torch

from tandem.engine.torch.layers import linear
from tandem.engine.torch.layers.linear import NEVER, ROWS, Linear, crossover, packed_from


@pytest.mark.parametrize("first", [1, 8, NEVER], ids=["packed", "both layouts", "plain"])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 31, 33, 100, 130])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_the_definition(
    rows: int, with_bias: bool, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "packed_from", lambda inputs, outputs: first)
    g = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(48, 32, generator=g), torch.randn(48, generator=g)
    x, residual = torch.randn(rows, 32, generator=g), torch.randn(rows, 48, generator=g)
    before = residual.clone()
    with torch.inference_mode():
        projection = Linear(weight, bias if with_bias else None)
        expected = x @ weight.t() + (bias if with_bias else 0.0)
        torch.testing.assert_close(projection(x), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(projection(x, residual), expected + residual, atol=1e-4, rtol=1e-4)
    assert torch.equal(residual, before), "the residual is the caller's"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_sixteen_bits_equal_the_definition(dtype: torch.dtype, rows: int) -> None:
    g = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(48, 32, generator=g).to(dtype), torch.randn(48, generator=g).to(dtype)
    x, residual = torch.randn(rows, 32, generator=g).to(dtype), torch.randn(rows, 48, generator=g).to(dtype)
    with torch.inference_mode():
        found = Linear(weight, bias)(x, residual)
    expected = x.float() @ weight.float().t() + bias.float() + residual.float()
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=0.02)


# -- the choice -----------------------------------------------------------------------------------------


def seconds(*packed_gains: float) -> list[tuple[float, float]]:
    """Return times at each of ROWS, with these gains of the packed weight."""
    return [(1e-5 * gain, 1e-5) for gain in packed_gains]


def test_packing_begins_where_it_pays() -> None:
    assert crossover(seconds(0.5, 0.6, 0.8, 1.2, 1.5, 2.0), 2) == 8
    assert crossover(seconds(2.0, 2.0, 2.0, 2.0, 2.0, 2.0), 7) == 1
    assert crossover(seconds(0.5, 0.5, 0.5, 0.5, 0.5, 0.5), 7) == NEVER
    assert crossover(seconds(0.5, 1.1, 0.5, 0.5, 0.5, 2.0), 2) == 32, "one number of rows is not all"


def test_where_it_is_about_equal_the_estimate_holds() -> None:
    """Lest chance decide: it would do so otherwise in every process."""
    for estimate in (1, 2, 5, 32, 100):
        assert crossover(seconds(1.01, 0.99, 1.0, 1.02, 0.98, 1.0), estimate) == estimate


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget measurements, as in a new process."""
    monkeypatch.setattr(linear, "_measured", {})


def test_a_shape_is_measured_once(unmeasured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore later measurements: equal numbers of rows always go through the same kernel."""
    found = iter([seconds(2, 2, 2, 2, 2, 2), seconds(0.5, 0.5, 0.5, 0.5, 0.5, 0.5)])
    monkeypatch.setattr(linear, "_measure", lambda inputs, outputs: next(found))
    assert packed_from(200, 400) == packed_from(200, 400) == 1
    assert packed_from(400, 200) == NEVER


def test_a_busy_machine_is_not_measured(unmeasured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_MOST_S", 0.0)
    assert packed_from(200, 500) == linear.WORTH_A_CALL // 100_000 == packed_from(500, 200)


def test_the_small_and_the_large_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_measure", None)
    assert packed_from(16, 24) > 1000
    assert packed_from(4096, 4096) == 1


def test_a_measurement_times_every_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_MOST_S", 60.0)
    times = linear._measure(200, 200)
    assert times is not None
    assert len(times) == len(ROWS)
    assert all(0 < t < 60 for pair in times for t in pair)
