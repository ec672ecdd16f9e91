"""Backend of the API at a device: the cloud's executor, with the device's own engine beside it.

Modes `device` and `split` keep the prompt here; in others its tokens go to the cloud, and so they are only used where a
request names them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from typing import Any

import msgspec

from tandem.app.api.http.backend import ModelCard
from tandem.app.api.http.errors import NotReady
from tandem.app.api.http.settings import ApiSettings
from tandem.app.device.race_planner import Races
from tandem.app.device.settings import DeviceProgram
from tandem.cluster.devices.device import Device
from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.access.accounts import ANONYMOUS, Statement, Terms
from tandem.deployments.access.keys import Caller, KeyRefused, Role
from tandem.deployments.admission.controller import Entry, Passage
from tandem.deployments.control.metrics import Metrics, Observation
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.gateway.messages import Over
from tandem.deployments.learning.report import Report
from tandem.deployments.modes import MODES
from tandem.deployments.modes.base import Tools
from tandem.deployments.modes.device import DeviceMode
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.race import RaceMode
from tandem.deployments.modes.split import SplitMode
from tandem.deployments.request.assignment import Assignment, EndpointInfo, NoEndpoint, RoutingRequest
from tandem.deployments.request.job import Delta, Job, UnknownMode
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.base import Engine, EngineError, EngineStopped, InvalidRequest
from tandem.engine.split.base import OuterEngine
from tandem.engine.tokenizer import Tokenizer
from tandem.engine.translate import Translated
from tandem.policies.cost import MAINS_USD_PER_J

DRIVEN = tuple(name for name, mode in MODES.items() if mode.afar or mode is RaceMode)
"""Modes that a device's program drives itself."""
NEED_CLOUD = tuple(name for name in DRIVEN if name not in (DeviceMode.name, RaceMode.name))
"""Modes that need the cloud."""
SOON_S = 2.0
"""A request that names no mode waits so long for the cloud's assignment."""


class DeviceBackend:
    """An `app.api.http.backend.ServingBackend`.

    device: its own engine; speaks: the tokenizer of that.
    record: what is known of it, but for its name and its link.
    outer: the two ends of a split model; None: there is none.
    tokenizer: of the model's text: the split model's, where there is one.
    """

    def __init__(
        self,
        settings: DeviceProgram,
        device: Device,
        record: Callable[[], DeviceRecord],
        speaks: Tokenizer,
        outer: OuterEngine | None,
        tokenizer: Tokenizer,
        uplink: Uplink,
    ) -> None:
        self._settings, self._device, self._uplink, self._known = settings, device, uplink, record
        self._races = Races(settings.racing(), uplink)
        self._outer, self._tokenizer = outer, tokenizer
        self._own: Engine = device
        if speaks.vocabulary != tokenizer.vocabulary:
            self._own = Translated(device, tokenizer, speaks)
        contexts = [device.info.context] if outer is None else [device.info.context, outer.info.context]
        self._card = ModelCard(settings.model, min(contexts), tokenizer.vocabulary)
        self._metrics = Metrics(settings.model, lambda: Snapshot(devices={"": self._record()}), lambda: 0)
        self._executor = Executor(
            self._assign,
            self._dial,
            self._tools(),
            settings.limits.limits(),
            self._report,
            away=lambda: uplink.away,
        )

    def _record(self) -> DeviceRecord:
        """Return the device's record, as known here."""
        name = self._uplink.registered.name if self._uplink.registered else "device"
        return msgspec.structs.replace(self._known(), name=name, rtt_s=self._uplink.rtt_s)

    async def close(self) -> None:
        """Return when nothing is on its way any more."""
        await self._executor.settled()

    def _tools(self) -> Tools:
        settings, split = self._settings, self._settings.split
        return Tools(
            window=settings.window.create,
            fused_window=settings.fused_window,
            outer=self._outer,
            chunking=split.chunking.create,
            drafting=split.drafting.create,
            parallel_drafting=split.parallel_drafting.create,
        )

    # -- what the executor asks for -----------------------------------------------------------------------

    async def _assign(self, wanted: RoutingRequest) -> Assignment:
        here = replace(EndpointInfo.of(self._record()), rtt_s=0.0)
        if wanted.mode == RaceMode.name:
            return await self._races.assign(wanted, here)
        if wanted.mode is None and self._uplink.up:
            with suppress(EngineStopped, TimeoutError):
                async with asyncio.timeout(SOON_S):
                    return await self._uplink.assign(replace(wanted, mode=SplitMode.name))
        elif wanted.mode not in (None, DeviceMode.name):
            return await self._uplink.assign(wanted)
        if here.key in wanted.lost:
            raise NoEndpoint("the device's own engine does not answer")
        return Assignment(DeviceMode.name, {"device": here}, here.name)

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        if endpoint.device:
            return self._own
        if endpoint.vocabulary != self._tokenizer.vocabulary:
            raise InvalidRequest(
                f"the cloud's {endpoint.model!r} has another vocabulary than this device's model"
            )
        return await self._uplink.dial(endpoint)

    def _report(self, report: Report) -> None:
        self._races.take_in(report)
        self._uplink.over(Over(report.request, report.bill.used, report.bill.joules))

    # -- what the API asks for ----------------------------------------------------------------------------

    @property
    def api(self) -> ApiSettings:
        return self._settings.api

    @property
    def default_reader_rate(self) -> float:
        return self._settings.default_reader_rate

    @property
    def behind_proxy(self) -> bool:
        return False

    def models(self) -> Sequence[ModelCard]:
        return (self._card,)

    def tokenizer(self, model: str) -> Tokenizer:
        return self._tokenizer

    def check(self, mode: str) -> None:
        if mode not in DRIVEN:
            here = ", ".join(DRIVEN)
            raise UnknownMode(f"a device does not drive mode {mode!r}, but {here}; the cloud's API does")
        if mode == SplitMode.name and self._outer is None:
            raise UnknownMode("this device has no part of a split model: start it with --model")
        self._executor.check(mode)

    async def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        """Run a job. A prompt without a mode must not leave the device: it is split while the cloud answers;
        otherwise, also after half an answer, the device's own model gives the rest."""
        if job.mode is None and not (self._outer is not None and self._uplink.up):
            job = replace(job, mode=DeviceMode.name)
        async with AsyncExitStack() as stack:
            deltas = await stack.enter_async_context(aclosing(self._executor.run(job)))
            if job.mode is None or job.mode in NEED_CLOUD:
                try:
                    first = await self._uplink.while_there(anext(deltas))
                except EngineStopped:
                    if job.mode is not None:
                        raise
                    alone = replace(job, mode=DeviceMode.name)
                    deltas = await stack.enter_async_context(aclosing(self._executor.run(alone)))
                else:
                    yield first
            async for delta in deltas:
                yield delta

    async def enter(self, caller: Caller, entry: Entry) -> Passage:
        return Passage()  # what goes to the cloud passes the gate there

    def leave(self, caller: Caller, entry: Entry, finished: bool) -> None:
        pass

    async def caller(self, hashed: str | None) -> Caller | None:
        return Caller(self._account, Role.OPERATOR, Terms(0.5, MAINS_USD_PER_J), keyed=False)

    @property
    def _account(self) -> str:
        """The device's own in the cloud, whoever asks; nobody's while the cloud has never answered."""
        return self._uplink.registered.account if self._uplink.registered else ANONYMOUS

    async def account(self, key: str) -> Statement:
        if key != self._account:
            raise KeyRefused("accounts but the device's own are kept in the cloud")
        try:
            return await self._uplink.account()
        except EngineError as error:
            raise NotReady([str(error)]) from None

    async def devices(self) -> list[dict[str, Any]]:
        shown: dict[str, Any] = msgspec.to_builtins(self._record())
        del shown["address"]
        return [shown]

    async def ready(self) -> dict[str, Any]:
        """Whether the cloud answers; the device itself does."""
        self._device.check()
        name = self._uplink.registered.name if self._uplink.registered else None
        return {"device": name, "cloud": self._uplink.up, "split": self._outer is not None}

    def observe(self, seen: Observation) -> None:
        self._metrics.observe(seen)

    async def metrics(self, openmetrics: bool) -> tuple[bytes, str]:
        return self._metrics.exposition(openmetrics)
