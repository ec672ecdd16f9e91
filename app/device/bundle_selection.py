"""Selection: which of several splits of its model a device holds.

It is chosen at the program's start, by the measured speed of the device and its link, the splits whose middle the
cloud has, and the leakage that its owner accepts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.app.device.settings import DeviceProgram
from tandem.app.device.speed import EndsSpeed, measure_ends
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.modes.sections import section
from tandem.deployments.modes.split import SplitSettings
from tandem.engine.base import EngineError, SplitInfo
from tandem.engine.split.base import DESCRIPTION, OuterEngine, misfit
from tandem.engine.split.hidden_states import row_bytes
from tandem.engine.split.leakage import recovery
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.bundle import BadBundle, Bundle
from tandem.engine.torch.split.runner import load_outer
from tandem.policies.split import (
    CloudMonitor,
    DeviceMonitor,
    Refusal,
    SplitDevice,
    SplitPoint,
    Workload,
    choose_split_point,
)

ALPHA = 0.6
"""Acceptance of an adapter without a report: HAT's (section 4.2), whose drafts of 2.06 tokens a round imply it."""
WITHIN_S = 5.0
"""The cloud may answer, before the choice goes without it."""
TYPICAL_PROMPT = 256
"""Tokens of the prompts that the choice is made for."""
ECHOES, ECHO_BYTES = 3, 128 * 1024


@dataclass(frozen=True, slots=True)
class BundleCandidate:
    """A bundle, and where it lies."""

    folder: Path
    bundle: Bundle

    @property
    def split(self) -> SplitInfo:
        return self.bundle.split

    @property
    def point(self) -> SplitPoint:
        """Return the split point for the policy."""
        drafts = bundle.ADAPTER in self.bundle.shapes
        alpha = (ALPHA if self.bundle.acceptance is None else self.bundle.acceptance) if drafts else 0.0
        return SplitPoint(self.split.first, recovery(self.split), alpha)

    def load(self, settings: DeviceProgram) -> OuterEngine:
        """Raises BadBundle, UnsupportedModel."""
        return load_outer(
            self.folder, settings.outer, kind=section(settings, SplitSettings).kind, threads=settings.threads
        )


def candidates(folder: Path) -> list[BundleCandidate]:
    """A bundle, or all that lie in a folder, the fewest layers first. Raises BadBundle."""
    folders = [folder]
    if folder.is_dir() and not (folder / DESCRIPTION).exists():
        folders = sorted(file.parent for file in folder.glob(f"*/{DESCRIPTION}")) or [folder]
    found = [BundleCandidate(each, bundle.read(each)) for each in folders]
    if len({each.split.checksum for each in found}) > 1:
        raise BadBundle(f"{folder} has bundles of several models")
    return sorted(found, key=lambda each: each.split.first)


async def choose(
    found: Sequence[BundleCandidate], settings: DeviceProgram, uplink: Uplink
) -> BundleCandidate:
    """One of these bundles of one model. Raises ValueError where all give away more than the owner accepts, and as
    `Candidate.load`."""
    accepted = settings.most_recovery
    private = [each for each in found if each.point.recovery <= accepted]
    if not private:
        least = min(each.point.recovery for each in found)
        raise ValueError(
            f"{Refusal.LEAKAGE}: {accepted:.0%} of a prompt's tokens, and at best it is {least:.0%}"
        )
    if len(private) > 1:
        private = await _served(private, uplink)
    if len(private) == 1:
        return private[0]
    choice = choose_split_point(
        [each.point for each in private],
        await _speed(private, settings, uplink),
        _work(private[0].split, settings),
        accepted,
    )
    assert not isinstance(choice, Refusal)
    return next(each for each in private if each.split.first == choice.m)


async def _served(found: list[BundleCandidate], uplink: Uplink) -> list[BundleCandidate]:
    """Return the candidates whose middle the cloud has; all if the cloud does not answer, or has none."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await uplink.connected()
            middles = await uplink.middles()
    except (TimeoutError, EngineError):
        return found
    return [each for each in found if not all(misfit(each.split, middle) for middle in middles)] or found


def _work(split: SplitInfo, settings: DeviceProgram) -> Workload:
    """Return the workload assumed of the cloud before its first answer."""
    cloud = CloudMonitor()
    return Workload(
        layers=split.layers,
        token_bytes=row_bytes(split.hidden, section(settings, SplitSettings).kind),
        prompt_tokens=TYPICAL_PROMPT,
        mu=cloud.mu,
        delay_s=cloud.g,
    )


async def _speed(found: Sequence[BundleCandidate], settings: DeviceProgram, uplink: Uplink) -> SplitDevice:
    """A layer's share is what the largest part takes longer than the smallest."""
    small, large = [await _measured(each, settings) for each in (found[0], found[-1])]
    layers = found[-1].split.first - found[0].split.first
    layer_s = _share(large.token_s, small.token_s, layers, found[-1].split.first)
    link = await _link(uplink)
    return SplitDevice(
        layer_s=layer_s,
        prefill_layer_s=_share(large.prefill_token_s, small.prefill_token_s, layers, found[-1].split.first),
        adapter_s=max(0.0, small.token_s - found[0].split.first * layer_s),
        head_s=small.head_s,
        up_bytes_s=link.up_bytes_s,
        down_bytes_s=link.down_bytes_s,
        rtt_s=link.rtt_s,
    )


def _share(large_s: float, small_s: float, more: int, layers: int) -> float:
    """A layer's: of the difference, unless chance has hidden it."""
    return (large_s - small_s) / more if more and large_s > small_s else large_s / layers


async def _measured(candidate: BundleCandidate, settings: DeviceProgram) -> EndsSpeed:
    outer = await asyncio.to_thread(candidate.load, settings)
    try:
        return await measure_ends(outer)
    finally:
        await outer.close()


async def _link(uplink: Uplink) -> DeviceMonitor:
    """Return the link as measured, or as assumed if the cloud does not answer."""
    link = DeviceMonitor()
    try:
        async with asyncio.timeout(WITHIN_S):
            for _ in range(ECHOES):
                link.note_rtt(uplink.rtt_s)
                link.note_crossing(ECHO_BYTES, ECHO_BYTES, await uplink.echo_s(ECHO_BYTES))
    except (TimeoutError, EngineError):
        pass
    return link
