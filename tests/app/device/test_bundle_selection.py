"""Selection of a split that its owner accepts, that the cloud serves, and that suits the device's speed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tandem.app.device import bundle_selection as choice
from tandem.app.device.bundle_selection import ALPHA, BundleCandidate, candidates, choose
from tandem.app.device.settings import DeviceProgram
from tandem.app.device.speed import EndsSpeed
from tandem.deployments.gateway.client import Uplink
from tandem.engine.base import EngineStopped, SplitInfo
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.bundle import BadBundle
from tests.engine.torch.split_parts import RANDOM, model_folder, write_adapter

SLOW = EndsSpeed(prefill_token_s=0.01, token_s=0.05, head_s=0.01)
"""Slow layers and head."""


class Link:
    """An uplink to a cloud with these middles; None: it does not answer."""

    rtt_s = 0.02

    def __init__(self, middles: tuple[SplitInfo, ...] | None) -> None:
        self._middles = middles

    async def connected(self) -> None:
        if self._middles is None:
            await asyncio.Event().wait()

    async def middles(self) -> tuple[SplitInfo, ...]:
        assert self._middles is not None
        return self._middles

    async def echo_s(self, size_bytes: int) -> float:
        if self._middles is None:
            raise EngineStopped("nobody is there")
        return 0.02 + 2 * size_bytes / 1e6


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder("llama-untied", tmp_path / "model")


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """Bundles of one layer, and of two with an adapter that is nearly always right."""
    adapter = write_adapter(model, tmp_path / "adapter.safetensors", RANDOM)
    figures = {"facts": {"tokens": 100, "acceptance": 1.0}, "long": {"tokens": 300, "acceptance": 0.9}}
    adapter.with_suffix(".json").write_text(json.dumps({"figures": figures}))
    bundle.write(model, 1, tmp_path / "bundles" / "small")
    bundle.write(model, 2, tmp_path / "bundles" / "large", adapter)
    return tmp_path / "bundles"


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Callable[[EndsSpeed], None]:
    """Makes the device so fast, by layer."""

    def as_fast_as(layer: EndsSpeed) -> None:
        async def measured(candidate: BundleCandidate, settings: DeviceProgram) -> EndsSpeed:
            m = candidate.split.first
            return EndsSpeed(m * layer.prefill_token_s, m * layer.token_s, layer.head_s)

        monkeypatch.setattr(choice, "_measured", measured)

    return as_fast_as


def settings(folder: Path, **said: Any) -> DeviceProgram:
    return DeviceProgram.model_validate(
        {"connect": "localhost:1", "key": folder / "key", "bundle": folder} | said
    )


async def chosen(folder: Path, middles: tuple[SplitInfo, ...] | None, **said: Any) -> int:
    found = await choose(candidates(folder), settings(folder, **said), cast(Uplink, Link(middles)))
    return found.split.first


def test_a_folder_is_one_bundle_or_several(folder: Path) -> None:
    assert [each.split.first for each in candidates(folder)] == [1, 2]
    (alone,) = candidates(folder / "large")
    assert alone.folder == folder / "large"
    small, large = (each.point for each in candidates(folder))
    assert (small.alpha, large.alpha) == (0.0, pytest.approx(0.925))
    assert small.recovery == large.recovery == 1.0, "nobody has attacked this model"


def test_an_adapter_without_a_report_is_taken_for_an_average_one(model: Path, tmp_path: Path) -> None:
    bundle.write(model, 2, tmp_path / "cut", write_adapter(model, tmp_path / "adapter.safetensors", RANDOM))
    assert candidates(tmp_path / "cut")[0].point.alpha == ALPHA


def test_what_is_no_folder_of_bundles_of_one_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="is no bundle"):
        candidates(tmp_path / "nowhere")
    with pytest.raises(BadBundle, match="is no bundle"):
        candidates(tmp_path)
    bundle.write(model_folder("qwen3", tmp_path / "other"), 1, folder / "other")
    with pytest.raises(BadBundle, match="bundles of several models"):
        candidates(folder)


@pytest.mark.slow
async def test_what_the_owner_does_not_accept_is_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "recovery", lambda split: 1.0 / split.first)
    assert await chosen(folder, None, most_recovery=0.5) == 2
    with pytest.raises(ValueError, match=r"no split point leaks as little .* 40% .* at best it is 50%"):
        await chosen(folder, None, most_recovery=0.4)
    with pytest.raises(ValueError, match="at best it is 100%"):  # also where there is no choice
        await chosen(folder / "small", None, most_recovery=0.4)


@pytest.mark.parametrize("m", [1, 2])
async def test_one_whose_middle_the_cloud_has_is_taken(m: int, folder: Path) -> None:
    split = candidates(folder)[m - 1].split
    staged = SplitInfo(split.checksum, split.first, split.layers, split.hidden, stages=2)
    assert await chosen(folder, (SplitInfo("other", 3, 4, 5), staged)) == m


async def test_a_slow_device_holds_less_than_a_quick_one(
    folder: Path, speed: Callable[[EndsSpeed], None]
) -> None:
    both = tuple(each.split for each in candidates(folder))
    speed(SLOW)
    assert await chosen(folder, both) == 1
    speed(EndsSpeed(1e-5, 1e-4, 1e-5))
    assert await chosen(folder, both) == 2, "its adapter saves round trips"
    assert await chosen(folder, ()) == 2, "whatever the cloud will have"


async def test_without_the_cloud_it_is_chosen_all_the_same(
    folder: Path, speed: Callable[[EndsSpeed], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "WITHIN_S", 0.01)
    speed(SLOW)
    assert await chosen(folder, None) == 1


async def test_it_is_measured_what_is_there(folder: Path) -> None:
    """Both are loaded, and closed again."""
    found = candidates(folder)
    small = await choice._measured(found[0], settings(folder))
    assert small.token_s > 0
    assert await chosen(folder, tuple(each.split for each in found)) in (1, 2)
