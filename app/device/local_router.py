"""Router of a device's own program: assigns the cloud's endpoints, its own, or both to the requests of its owner.

Modes that the cloud does not plan for devices are planned here, with times measured here, the link's included. The
cloud takes such a request for one in the mode that continues without the device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from tandem.deployments.config.settings import AccountSettings, RouterSettings
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.learning.report import Report
from tandem.deployments.modes import AT_DEVICES, MODES
from tandem.deployments.modes.base import Mode, Surroundings
from tandem.deployments.request.assignment import Assignment, EndpointInfo, NoEndpoint, RoutingRequest
from tandem.deployments.request.pools import DEVICE
from tandem.deployments.routing.assigner import Assigner
from tandem.engine.base import EngineStopped
from tandem.engine.config import Strict

ALONE = next(mode for mode in MODES.values() if all(role.pool == DEVICE for role in mode.roles))
"""Mode that needs only the device."""
PRIVATE = next(mode for mode in MODES.values() if mode.private)
"""The mode in which the cloud helps with a prompt that does not leave the device."""
NEED_CLOUD = frozenset(name for name, mode in AT_DEVICES.items() if mode.afar and mode is not ALONE)
"""Modes that get nowhere without the cloud."""
AT_HOME = None, PRIVATE.name
"""Modes, as requests name them, whose prompts stay here: the device alone answers them where the cloud is silent."""
SOON_S = 1.0
"""Longest that a request without a mode waits for the cloud's assignment."""


class LocalRouter:
    """settings: of the modes, by name, where they are not the defaults.
    here: the device's own engine.
    """

    def __init__(
        self, settings: Mapping[str, Strict], uplink: Uplink, here: Callable[[], EndpointInfo]
    ) -> None:
        self._uplink, self._here = uplink, here
        policies = RouterSettings()
        alone = Assigner(policies.collaboration.create(), policies.routing.create, 1)
        around = Surroundings(alone, lambda: self.budget)
        self._shared = around.shared
        self._parts = {
            name: mode.router(settings.get(name) or mode.settings(), around)
            for name, mode in AT_DEVICES.items()
            if not mode.afar
        }

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Mode and endpoints for a request; where it names no mode, one in which its prompt stays here. Raises what the
        cloud refuses, and NoEndpoint where the device's own engine is lost."""
        mode, here = PRIVATE if wanted.mode is None else MODES[wanted.mode], self._here()
        if not mode.afar:
            return await self._planned(mode, wanted, here)
        if wanted.mode is None and await self._uplink.back():
            with suppress(EngineStopped, TimeoutError):
                async with asyncio.timeout(SOON_S):
                    return await self._uplink.assign(replace(wanted, mode=mode.name))
        elif mode is not ALONE and wanted.mode is not None:
            return await self._uplink.assign(wanted)
        if here.key in wanted.lost:
            raise NoEndpoint("the device's own engine does not answer")
        return _alone(here)

    def learn(self, report: Report) -> None:
        """Take in what an answer has taught."""
        self._shared.learn(report)
        for name, part in self._parts.items():
            part.learn(report, report.taught.get(name))

    async def _planned(self, mode: type[Mode], wanted: RoutingRequest, here: EndpointInfo) -> Assignment:
        """Assign device and cloud, with a plan; or one alone, where the other has failed the request or is silent."""
        role = mode.device_role()
        assert role is not None
        lost = here.key in wanted.lost
        if not lost and not self._uplink.up:
            return _alone(here)
        try:
            made = await self._uplink.assign(replace(wanted, mode=role.if_lost))
        except EngineStopped:
            if lost:
                raise
            return _alone(here)
        if lost:
            return made
        by_pool = {each.pool: made.endpoints[each.name] for each in MODES[made.mode].roles} | {DEVICE: here}
        endpoints = {each.name: by_pool[each.pool] for each in mode.roles}
        return replace(
            made,
            mode=mode.name,
            endpoints=endpoints,
            device=here.name,
            briefing=self._parts[mode.name].brief(wanted, endpoints, made.prices),
            replaceable=frozenset(endpoints),  # either could go on alone
        )

    @property
    def budget(self) -> float:
        """The budget of the device's key, as far as the cloud has told it."""
        told = self._uplink.registered
        return AccountSettings().budget if told is None or told.budget is None else told.budget


def _alone(here: EndpointInfo) -> Assignment:
    return Assignment(ALONE.name, {role.name: here for role in ALONE.roles}, here.name)
