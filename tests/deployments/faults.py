"""Engines that fail on purpose, windows as scripted, and a world of endpoints in this process for executor tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from cluster.registry import DeviceRecord
from deployments.assigner import Assigner
from deployments.assignment import Assignment, EndpointInfo, Wishes
from deployments.executor import Executor, Limits
from deployments.racing import Racing
from deployments.roster import Snapshot
from deployments.seat import Patience
from engine.base import Draft, DraftProbs, Engine, EngineStats, EngineStopped, Sampling, Tokens, Verdict
from engine.null_engine import NullEngine
from policies.collaboration import collaboration
from policies.routing import routing
from policies.window import WindowState

PROMPT = (5, 17, 400)


class Failing:
    """An engine whose `operation` fails from its `after`-th call (token, for generate) on.

    fired: how often it has failed, so that a test can insist that the fault took place.
    """

    def __init__(
        self, engine: Engine, operation: str, after: int = 0, error: Callable[[], Exception] | None = None
    ) -> None:
        self.engine, self.info = engine, engine.info
        self.fired = 0
        self._operation, self._left = operation, after
        self._error = error or (lambda: EngineStopped("pulled the plug"))

    def _step(self, operation: str) -> None:
        if operation != self._operation:
            return
        if self._left == 0:
            self.fired += 1
            raise self._error()
        self._left -= 1

    async def open(
        self, session: int, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> None:
        self._step("open")
        await self.engine.open(session, prompt, sampling, log)

    async def generate(self, session: int) -> AsyncIterator[Tokens]:
        async for tokens in self.engine.generate(session):
            self._step("generate")
            yield tokens

    async def verify(self, session: int, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        self._step("verify")
        return await self.engine.verify(session, drafts, probs)

    async def draft(self, session: int, position: int, tokens: Sequence[int], window: int) -> Draft:
        self._step("draft")
        return await self.engine.draft(session, position, tokens, window)

    async def stats(self) -> EngineStats:
        self._step("stats")
        return await self.engine.stats()

    async def cancel(self, session: int) -> None:
        self._step("cancel")
        await self.engine.cancel(session)

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)


class Script:
    """A window policy that chooses as written down, again and again; 1 is fused."""

    def __init__(self, windows: Sequence[int]) -> None:
        self.windows, self.at = windows, 0

    def choose(self, state: WindowState) -> int:
        self.at += 1
        return self.windows[(self.at - 1) % len(self.windows)]


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
        racing: Racing | None = None,
    ) -> None:
        self.engines: dict[str, Engine] = {}
        self.gone: list[EndpointInfo] = []  # as reported
        pools = {
            "verifier": tuple(self._add("verifier", n, e) for n, e in enumerate(verifiers)),
            "drafter": tuple(self._add("drafter", n, e) for n, e in enumerate(drafters)),
        }
        records = [self._register(name, engine) for name, engine in (devices or {}).items()]
        self.snapshot = Snapshot(1, pools, {record.name: record for record in records})
        self.assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("round_robin"), 8)
        self.assigner.see(self.snapshot)
        self.executor = Executor(
            self._assign,
            self._dial,
            lambda: Script(windows),
            limits or Limits(seat=Patience(connect_s=1, open_s=1, first_s=1, step_s=1)),
            racing,
            self.gone.append,
        )

    def _add(self, engine_name: str, number: int, engine: Engine) -> EndpointInfo:
        address = f"{engine_name}:{number}"
        endpoint = EndpointInfo(
            name=engine_name if engine_name not in ("verifier", "drafter") else address,
            address=address,
            engine=engine_name,
            vocabulary=engine.info.vocabulary,
        )
        self.engines[endpoint.key] = engine
        return endpoint

    def _register(self, name: str, engine: Engine) -> DeviceRecord:
        """A device that takes 1 J to take a token in and 2 J to give one out."""
        endpoint = self._add(name, 0, engine)
        return DeviceRecord(
            name=name,
            address=endpoint.address,
            profile="native",
            model=endpoint.model,
            vocabulary=endpoint.vocabulary,
            prefill_j=1.0,
            decode_j=2.0,
        )

    async def _assign(self, wishes: Wishes) -> Assignment:
        return self.assigner.assign(wishes, retry_lost=False)

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        return self.engines[endpoint.key]


def reference(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What a null engine says after `prompt`."""
    engine, output = NullEngine(), list[int]()
    for _ in range(max_tokens):
        output.append(engine.next_token(prompt, output))
    return output
