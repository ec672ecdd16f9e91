"""Backend of the API at a device: the cloud's executor, with the device's own engine beside it.

Modes `device` and `split` keep the prompt here; in others its tokens go to the cloud, and so they are only used where a
request names them.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

import msgspec
from opentelemetry.trace import Tracer

from tandem.app.api.http.backend import ModelCard, ResponseStore
from tandem.app.api.http.errors import NotReady
from tandem.app.api.http.settings import ApiSettings
from tandem.app.device.local_router import ALONE, AT_HOME, NEED_CLOUD, LocalRouter
from tandem.app.device.settings import DeviceProgram
from tandem.app.parts import part
from tandem.cluster.devices.device import Device
from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.access.accounts import ANONYMOUS, Statement, Terms
from tandem.deployments.access.kept.responses import KeptResponses
from tandem.deployments.access.keys import Caller, KeyRefused, Role
from tandem.deployments.admission.entry import Entry, Passage
from tandem.deployments.control.metrics import Metrics
from tandem.deployments.control.observation import Observation
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.gateway.messages import Over
from tandem.deployments.learning.report import Report
from tandem.deployments.modes import AT_DEVICES, MODES
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.sections import of_modes
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Delta, Job, UnknownMode
from tandem.deployments.request.session import Reach
from tandem.deployments.request.under_way import UnderWay
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.base import Engine, EngineError, EngineStopped, InvalidRequest
from tandem.engine.split.base import OuterEngine
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.translated.engine import Translated
from tandem.policies.cost import MAINS_USD_PER_J


class DeviceBackend:
    """An `app.api.http.backend.ServingBackend`.

    device: its own engine; speaks: the tokenizer of that.
    record: returns its record, without name and link.
    outer: the two ends of a split model, or None.
    tokenizer: of the API's text: the split model's, if there is one.
    tracer: of requests to its API; None: nothing is traced.
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
        modes = of_modes(settings)
        self._router = LocalRouter(modes, uplink, self._endpoint)
        self._outer, self._tokenizer = outer, tokenizer
        self._own: Engine = device
        if speaks.vocabulary != tokenizer.vocabulary:
            self._own = Translated(device, tokenizer, speaks)
        contexts = [device.info.context] if outer is None else [device.info.context, outer.info.context]
        self._card = ModelCard(
            id=settings.model,
            context=min(contexts),
            vocabulary=tokenizer.vocabulary,
            parts=(part("device", settings.engine),),
        )
        self._responses = KeptResponses(settings.api.responses)
        self._metrics = Metrics({settings.model: lambda: Snapshot(devices={"": self._record()})})
        self._executor = Executor(
            self._router.assign,
            Reach(self._dial, reached_s=lambda: uplink.reached_s),
            modes,
            Services(outer=outer),
            settings.limits.limits(),
            self._report,
        )
        self.tracer: Tracer | None = None

    def _record(self) -> DeviceRecord:
        """Return the device's record, as known here; with this machine's name until the cloud has told the device's."""
        name = self._uplink.registered.name if self._uplink.registered else socket.gethostname()
        return msgspec.structs.replace(self._known(), name=name, rtt_s=self._uplink.rtt_s)

    async def close(self) -> None:
        """Return when nothing is on its way any more."""
        await self._executor.settled()

    # -- what the executor asks for -----------------------------------------------------------------------

    def _endpoint(self) -> EndpointInfo:
        """The device's own engine, for requests that are driven here."""
        return replace(EndpointInfo.of(self._record()), rtt_s=0.0)

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        if endpoint.device:
            return self._own
        if endpoint.vocabulary != self._tokenizer.vocabulary:
            raise InvalidRequest(
                f"the cloud's {endpoint.model!r} has another vocabulary than this device's model"
            )
        return await self._uplink.dial(endpoint)

    def _report(self, report: Report) -> None:
        self._router.learn(report)
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

    @property
    def streams(self) -> None:
        return None

    @property
    def responses(self) -> ResponseStore:
        return self._responses

    def models(self) -> Sequence[ModelCard]:
        return (self._card,)

    def tokenizer(self, model: str) -> Tokenizer:
        return self._tokenizer

    def objectives(self) -> Sequence[str]:
        return ()

    def check(self, mode: str) -> None:
        if mode not in AT_DEVICES:
            here = ", ".join(AT_DEVICES)
            raise UnknownMode(f"a device does not drive mode {mode!r}, but {here}; the cloud's API does")
        if MODES[mode].private and self._outer is None:
            raise UnknownMode("this device has no part of a split model: start it with --model")
        self._executor.check(mode)

    def stays(self, mode: str | None) -> bool:
        return mode == ALONE.name or (mode is None and self._outer is None)

    async def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        """Run a job. A prompt without a mode must not leave the device: it is split while the cloud answers;
        otherwise, also after half an answer, the device's own model gives the rest. One in mode split that has no token
        yet is answered by that model, too, where the cloud is silent; the answer's stats have its mode."""
        if job.mode in AT_HOME and not (self._outer is not None and await self._uplink.back()):
            job = replace(job, mode=ALONE.name)
        async with AsyncExitStack() as stack:
            deltas = await stack.enter_async_context(aclosing(self._executor.run(job)))
            if job.mode is None or job.mode in NEED_CLOUD:
                try:
                    first = await self._uplink.while_there(anext(deltas))
                except EngineStopped:
                    if job.mode not in AT_HOME:
                        raise
                    alone = replace(job, mode=ALONE.name)
                    deltas = await stack.enter_async_context(aclosing(self._executor.run(alone)))
                else:
                    yield first
            async for delta in deltas:
                yield delta

    async def enter(self, caller: Caller, entry: Entry, jobs: Sequence[Job]) -> Passage:
        return Passage()  # what goes to the cloud passes the gate there

    def leave(self, caller: Caller, entry: Entry, finished: bool) -> None:
        pass

    async def booked(self) -> None:
        pass  # the gateway books what the cloud has done

    async def caller(self, hashed: str | None) -> Caller | None:
        return Caller(self._account, Role.OPERATOR, Terms(self._router.budget, MAINS_USD_PER_J), keyed=False)

    @property
    def _account(self) -> str:
        """Return the device's account in the cloud, for every user of it; anonymous until the cloud has answered."""
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

    async def fleet(self) -> Snapshot:
        record = self._record()
        return Snapshot(devices={record.name: record})

    def under_way(self) -> list[UnderWay]:
        return self._executor.under_way()

    async def ready(self) -> dict[str, Any]:
        """Whether the cloud answers; the device itself does."""
        self._device.check()
        name = self._uplink.registered.name if self._uplink.registered else None
        return {"device": name, "cloud": self._uplink.up, "split": self._outer is not None}

    def observe(self, seen: Observation) -> None:
        self._metrics.observe(seen)

    async def metrics(self, openmetrics: bool) -> tuple[bytes, str]:
        return self._metrics.exposition(openmetrics)
