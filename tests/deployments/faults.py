"""Engines that fail on purpose, windows as scripted, and a world of endpoints in this process for executor tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.access.accounts import Accounts
from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.learning.report import Report
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.executor import Executor, Reconsider
from tandem.deployments.modes.race.settings import RaceSettings
from tandem.deployments.modes.speculative.settings import SpeculativeSettings
from tandem.deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from tandem.deployments.request.bill import Bill, Charge
from tandem.deployments.request.pools import POOLS
from tandem.deployments.request.session import Reach
from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.engine.base import (
    Engine,
    EngineStats,
    EngineStopped,
    Operation,
    R,
    Sampling,
    Session,
    Tokens,
)
from tandem.engine.config import Given, Strict
from tandem.engine.null.engine import NullEngine
from tandem.policies.race.dispatch import DispatchPolicy
from tandem.policies.race.migration import MigrationPolicy
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tandem.policies.speculation.window import WindowPolicy, WindowState

PROMPT = (5, 17, 400)


class Failing:
    """An engine whose `operation` fails from its `after`-th call (token, for generate) on, in whichever session.

    fired: how often it has failed, so that a test can insist that the fault took place.
    """

    def __init__(
        self, engine: Engine, operation: str, after: int = 0, error: Callable[[], Exception] | None = None
    ) -> None:
        self.engine, self.info = engine, engine.info
        self.fired = 0
        self._operation, self._left = operation, after
        self._error = error or (lambda: EngineStopped("pulled the plug"))

    def step(self, operation: str) -> None:
        if operation != self._operation:
            return
        if self._left == 0:
            self.fired += 1
            raise self._error()
        self._left -= 1

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:
        self.step("open")
        return _FailingSession(self, await self.engine.open(prompt, sampling, log))

    async def stats(self) -> EngineStats:
        self.step("stats")
        return await self.engine.stats()

    async def close(self) -> None:
        await self.engine.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)


class _FailingSession(Session):
    def __init__(self, engine: Failing, session: Session) -> None:
        self.engine, self.session = engine, session

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        async for tokens in self.session.generate():
            self.engine.step("generate")
            yield tokens

    async def call(self, operation: Operation[R]) -> R:
        self.engine.step(operation.name)
        return await self.session.call(operation)

    async def cancel(self) -> None:
        self.engine.step("cancel")
        await self.session.cancel()

    def __getattr__(self, name: str) -> object:
        return getattr(self.session, name)


class Script:
    """A window policy that chooses as written down, again and again; 1 is fused."""

    def __init__(self, windows: Sequence[int]) -> None:
        self.windows, self.at = windows, 0

    def choose(self, state: WindowState) -> int:
        self.at += 1
        return self.windows[(self.at - 1) % len(self.windows)]


def with_window(window: Callable[[], WindowPolicy]) -> SpeculativeSettings:
    """Settings whose window policies have no name."""
    return SpeculativeSettings().model_copy(update={"window": Given(window)})


def with_race(
    dispatch: Callable[[], DispatchPolicy], migration: Callable[[], MigrationPolicy]
) -> RaceSettings:
    """Settings whose dispatch and migration policies have no name."""
    return RaceSettings().model_copy(update={"dispatch": Given(dispatch), "migration": Given(migration)})


class World:
    """Endpoints by pool and device in this process, and an executor that is assigned to them.

    Engines are looked up when they are dialled, so that a test may replace one.
    """

    def __init__(
        self,
        verifiers: Sequence[Engine] = (),
        drafters: Sequence[Engine] = (),
        devices: dict[str, Engine] | None = None,
        windows: Sequence[int] = (4,),
        limits: Limits | None = None,
        middles: Sequence[Engine] = (),
        accounts: AccountSettings | None = None,
        services: Services | None = None,
        reconsider: Reconsider | None = None,
        **modes: Strict,
    ) -> None:
        """services: what the executor's process offers beside the router; reconsider: as in Executor; modes: their
        settings, by name."""
        self.reconsider = reconsider
        self.engines: dict[str, Engine] = {}
        self.gone: list[EndpointInfo] = []  # as reported
        self.wanted: list[RoutingRequest] = []  # as the router was asked
        pools = {
            "verifier": tuple(self.add("verifier", n, e) for n, e in enumerate(verifiers)),
            "drafter": tuple(self.add("drafter", n, e) for n, e in enumerate(drafters)),
            "middle": tuple(self.add("middle", n, e) for n, e in enumerate(middles)),
        }
        records = [self._register(name, engine) for name, engine in (devices or {}).items()]
        self.snapshot = Snapshot(1, pools, {record.name: record for record in records})
        self._modes = {"speculative": with_window(lambda: Script(windows)), **modes}
        self._accounts, self._services = accounts, services or Services()
        self.router, self.books = self.new_router(), Accounts()
        self._limits = limits or Limits(timeouts=Timeouts(connect_s=1, open_s=1, first_s=1, step_s=1))
        self.executor = self.new_executor()

    def new_router(self) -> Routing:
        """One that knows nothing but what is up."""
        assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("round_robin"), 8)
        router = Routing(assigner, accounts=self._accounts, modes=self._modes)
        router.see(self.snapshot)
        return router

    def new_executor(self, **modes: Strict) -> Executor:
        """Make one more, which knows nothing of earlier requests. modes: settings in place of the world's, by name."""
        services = replace(
            self._services,
            ask=lambda mode, question: self.router.ask(mode, question),
            tell=lambda mode, said: self.router.tell(mode, said),
        )
        return Executor(
            self._assign,
            Reach(self._dial, self.gone.append, replaces=self._replaces),
            {**self._modes, **modes},
            services,
            self._limits,
            self._report,
            reconsider=self.reconsider,
        )

    async def _replaces(self, endpoint: EndpointInfo) -> bool:
        return self.snapshot.replaces(endpoint)

    def bill(self, account: str) -> Bill:
        """Return the cost of all requests of that account."""
        return self.books.statement(account, 0.0).total

    def _report(self, report: Report) -> None:
        self.router.learn(report)
        self.books.of(report.account).charge(Charge(report.account, report.device, report.bill))

    def list_pool(self, pool: str, *endpoints: EndpointInfo) -> None:
        """Set all of the pool's replicas."""
        self.snapshot = replace(self.snapshot, pools={**self.snapshot.pools, pool: endpoints})
        self.router.see(self.snapshot)

    def add(self, engine_name: str, number: int, engine: Engine) -> EndpointInfo:
        """The endpoint of an engine, which may then be dialled; `list_pool` makes it known."""
        address = f"{engine_name}:{number}"
        endpoint = EndpointInfo(
            name=engine_name if engine_name not in POOLS else address,
            address=address,
            engine=engine_name,
            model=engine.info.model,
            vocabulary=engine.info.vocabulary,
            split=engine.info.split,
            continuation=engine.info.continuation,
        )
        self.engines[endpoint.key] = engine
        return endpoint

    def _register(self, name: str, engine: Engine) -> DeviceRecord:
        """A device that takes 1 J to take a token in and 2 J to give one out."""
        endpoint = self.add(name, 0, engine)
        return DeviceRecord(
            name=name,
            address=endpoint.address,
            profile="native",
            model=endpoint.model,
            vocabulary=endpoint.vocabulary,
            capacity=4,
            prefill_j=1.0,
            decode_j=2.0,
            continuation=engine.info.continuation,
        )

    async def _assign(self, wanted: RoutingRequest) -> Assignment:
        self.wanted.append(wanted)
        return self.router.assign_now(wanted)

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        return self.engines[endpoint.key]


def reference(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Return a null engine's tokens after `prompt`."""
    engine, output = NullEngine(), list[int]()
    for _ in range(max_tokens):
        output.append(engine.next_token(prompt, output))
    return output
