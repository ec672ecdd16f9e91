"""Calibration of mode split: the adapter's recorded drafts are those of the live answer."""

from __future__ import annotations

from pathlib import Path

from tandem.benchmarks.calibration.live import Live, Seen
from tandem.benchmarks.calibration.split import Adapter, link
from tandem.benchmarks.executor import local_executor
from tandem.deployments.modes.executor import Executor
from tandem.deployments.request.tokenlog import Origin
from tandem.policies.speculation.window import StaticWindow
from tandem.training.adapter.evaluate import Drafter
from tests.engine.torch.split_parts import RANDOM, Parts, model_folder

PROMPTS = [[20, 21, 22], [9, 10], [5, 6, 7, 8, 9, 10, 11, 12, 13]]


class Here(Live):
    """Both parts in this process."""

    def __init__(self, parts: Parts) -> None:
        super().__init__("split", parts.middle, PROMPTS)
        self._outer = parts.outer

    def executor(self, rtt_s: float) -> Executor:
        return local_executor(lambda _: self.target, StaticWindow, outer=self._outer)


async def test_drafts_that_stood_are_right_and_others_wrong(tmp_path: Path) -> None:
    parts = Parts.make(model_folder("llama-untied", tmp_path / "model"), 2, tmp_path, 0.3 * RANDOM)
    seen = await Here(parts).run(0.0, [0.0] * len(PROMPTS))
    adapter = Adapter(Drafter(parts.model, 2, tmp_path / "adapter.safetensors"))
    kinds = set[Origin]()
    for one in seen:
        right, sure = adapter.says(one.prompt, one.ids)
        assert len(right) == len(sure) == len(one.ids) == len(one.origins)
        assert all(0 < each <= 1 for each in sure)
        for origin, is_right in zip(one.origins, right, strict=True):
            if origin in (Origin.DRAFT, Origin.CORRECTED):
                assert bool(is_right) == (origin is Origin.DRAFT)
        kinds |= set(one.origins)
    assert {Origin.DRAFT, Origin.CORRECTED} <= kinds
    assert (await parts.outer.stats()).sessions == 0
    await parts.close()


def test_what_is_recorded_the_simulator_is_told() -> None:
    origins = [Origin.CLOUD, Origin.DRAFT, Origin.CORRECTED]
    said = Seen(1.5, 0, [1, 2], origins=origins)
    assert said.request.acceptance == bytes([1, 1, 0])
    said.acceptance, said.confidence = bytes([0, 1, 0]), (0.4, 0.9, 0.5)
    assert (said.request.acceptance, said.request.confidence) == (said.acceptance, said.confidence)
    assert (said.request.arrival_s, said.request.prompt_tokens, said.request.output_tokens) == (1.5, 2, 3)


def test_a_link_is_as_fast_up_and_down_as_it_is_said_to_be() -> None:
    profile = link(0.03).profile()
    assert profile.rtt_s == 0.03
    assert profile.up_bytes_per_s is not None
    assert profile.down_bytes_per_s is not None
    assert 5e6 < profile.up_bytes_per_s < 10e6 < profile.down_bytes_per_s < 15e6
