"""Races of a device with the cloud that the device drives itself, for its owner.

They are planned here, and learnt from, as by the router those that the cloud drives: by times as they are seen from
here, the link's among them. To the cloud such a race is a request in mode `cloud`, which the gateway counts.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.deployments.config.settings import RacingSettings
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.learning.experience import Experience
from tandem.deployments.learning.report import Report
from tandem.deployments.modes.base import Situation
from tandem.deployments.modes.cloud import CloudMode
from tandem.deployments.modes.device import DeviceMode
from tandem.deployments.modes.race import RaceMode
from tandem.deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from tandem.engine.base import EngineStopped


class Races:
    """All races of one program. settings: prices are not theirs to say, but the cloud's."""

    def __init__(self, settings: RacingSettings, uplink: Uplink) -> None:
        self._experience, self._uplink = Experience(settings), uplink

    async def assign(self, wanted: RoutingRequest, here: EndpointInfo) -> Assignment:
        """Both sides, and a plan; or one alone, where the other has failed the request or does not answer. here: the
        device's own engine. Raises what the cloud refuses."""
        lost = here.key in wanted.lost
        if not lost and not self._uplink.up:
            return Assignment(DeviceMode.name, {"device": here}, here.name)
        try:
            made = await self._uplink.assign(replace(wanted, mode=CloudMode.name))
        except EngineStopped:
            if lost:
                raise
            return Assignment(DeviceMode.name, {"device": here}, here.name)
        if lost:
            return made
        endpoints = {"server": made.endpoints["target"], "device": here}
        self._follow(wanted.account)
        situation = Situation(self._experience, wanted, endpoints, made.prices)
        return Assignment(
            RaceMode.name,
            endpoints,
            here.name,
            made.prices,
            RaceMode.brief(situation),
            frozenset(endpoints),  # either could go on alone
        )

    def _follow(self, account: str) -> None:
        """The budget that the key's terms say, as far as the cloud has told it."""
        told = self._uplink.registered
        if told is not None and told.budget is not None:
            payer = self._experience.accounts.of(account)
            payer.terms = replace(payer.terms, budget=told.budget)

    def take_in(self, report: Report) -> None:
        """Learn from an answer, in whatever mode it was given."""
        self._experience.take_in(report)
        if (taught := report.taught.get(RaceMode.name)) is not None:
            RaceMode.learn(self._experience, taught, report.bill.used)
