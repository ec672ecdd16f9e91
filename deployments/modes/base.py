"""Interface of a mode: the endpoints it needs by role, how it answers with them, and its part at the router."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.learning.report import Report
from tandem.deployments.learning.shared import Shared
from tandem.deployments.request.assignment import EndpointInfo, Endpoints, Prices, RoutingRequest
from tandem.deployments.request.job import Delta, Figures, Job
from tandem.deployments.request.pools import DEVICE
from tandem.deployments.request.session import EndpointSession, EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.engine.base import Sampling, TokenLogprob, Verdict
from tandem.engine.config import Strict
from tandem.engine.sketch.base import SketchFormat
from tandem.engine.split.base import OuterEngine
from tandem.policies.routing.objectives import Prediction

S = TypeVar("S", bound=Strict)

SCORED_AT_ONCE = 64
"""Tokens of a prompt whose log-probabilities are computed in one step."""


@dataclass(frozen=True, slots=True)
class EndpointRole:
    """An endpoint's part in a mode.

    name: of the role.
    pool: of its replicas, or DEVICE.
    needed: whether the mode needs it.
    unless: another role; if that one is filled, this one is not needed.
    expendable: whether the request can do without it, so that each of its refusals counts as a loss.
    if_absent: the mode that serves the request if no endpoint is up; "": the request waits for one.
    if_lost: the mode that continues after such an endpoint has failed; "": another endpoint does.
    """

    name: str
    pool: str
    needed: bool = True
    unless: str = ""
    expendable: bool = False
    if_absent: str = ""
    if_lost: str = ""


async def _no_router(mode: str, question: object) -> Any:
    raise RuntimeError(f"mode {mode} asks the router, and this executor has none")


@dataclass(frozen=True, slots=True)
class Services:
    """Dependencies that an executor gives its modes.

    ask: sends a mode's question to its part at the router.
    tell: sends it a message without an answer.
    outer: the two ends of a split model; None if they are not here.
    format: prompts and parser of sketches; None without them.
    """

    ask: Callable[[str, object], Awaitable[Any]] = _no_router
    tell: Callable[[str, object], object] = lambda mode, said: None
    outer: OuterEngine | None = None
    format: SketchFormat | None = None


class Fleet(Protocol):
    """Endpoints that are up, as the router knows them.

    batch_limit: sessions that a verifier's step takes.
    """

    batch_limit: int

    @property
    def devices(self) -> Mapping[str, DeviceRecord]:
        """Devices that are up, by name."""
        ...

    def replicas(self, pool: str) -> Sequence[EndpointInfo]: ...

    def load(self, endpoint: EndpointInfo) -> int:
        """Return the sessions of a replica or a device, with those just assigned."""
        ...

    def pending(self, target: EndpointInfo, token_s: float) -> float:
        """Return the prompt tokens that a replica has been assigned and not yet taken in, if one takes it `token_s`."""
        ...

    def queue(self, target: EndpointInfo) -> float:
        """Return a verifier's sessions, without the one just assigned, as a multiple of `batch_limit`."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Rest of the router, as a mode's part sees it.

    fleet: what is up.
    budget: of requests that bring none, the share of prompt tokens that the constrained endpoint of races may take in.
    random: for what policies decide by chance.
    suffix: of the model's pools (`pool_name`), and of files that each model has for itself.
    shared: what modes learn together.
    """

    fleet: Fleet
    budget: Callable[[], float]
    random: Random = field(default_factory=Random)
    suffix: str = ""
    shared: Shared = field(default_factory=Shared)


class RouterPart(Generic[S]):
    """A mode's part at the router: its learned state, and answers to its requests beside endpoints.

    The router has one for all replicas of the API. A simulation has one, and so has a device that plans for itself. It
    takes the time from the event loop.
    """

    def __init__(self, settings: S, router: Surroundings) -> None:
        self.settings, self.router = settings, router

    def follow(self, settings: S) -> None:
        """Take over other settings."""
        self.settings = settings

    def see(self) -> None:
        """Take in that something has come, gone or changed in the fleet."""

    @property
    def idle(self) -> bool:
        """Whether no request holds anything here, or waits for it."""
        return True

    def brief(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> object:
        """Return what a request needs of the learned state, as plain data; it is sent to the executor."""
        return None

    def predict(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> Prediction | None:
        """Return what an answer by these endpoints is expected to bring, from what is learnt and what devices tell.

        What other answers have shown of such predictions corrects them. None: the mode is only used where it is asked
        for. Nothing may change by it: it is asked of ways that are not taken.
        """
        return None

    def learn(self, report: Report, taught: object) -> None:
        """Learn from an answer, in whatever mode.

        taught: this mode's `ModeRun.report`; None if it did not serve the answer or has learned nothing.
        """

    async def ask(self, question: Any) -> Any:
        """Answer a question of a running request."""
        raise NotImplementedError(f"{type(self).__name__} answers no {type(question).__name__}")

    def tell(self, said: Any) -> None:
        """Take in what a running request says, without an answer."""
        raise NotImplementedError(f"{type(self).__name__} takes no {type(said).__name__}")

    def spent(self, account: str) -> Mapping[str, tuple[float, float]]:
        """Return, by limit of this mode, an account's tokens that count at present and those that were spent."""
        return {}

    async def recall(self) -> None:
        """Read what an earlier router wrote down."""

    async def keep(self) -> None:
        """Write down what a later router should know, if it has changed; called every now and then."""


class ModeRun(ABC):
    """One request in one mode, from its first assignment to its end.

    figures: what it counts.
    """

    def __init__(self) -> None:
        self.figures: Figures = Figures()

    @abstractmethod
    def run(self, sessions: EndpointSessions, log: TokenLog, briefing: object) -> AsyncGenerator[Delta, None]:
        """Continue the answer after `log` (which the executor appends to) until a delta has `finish`.

        Called anew with every assignment. Closing the sessions is the executor's part, and engine errors pass
        through to it.
        """

    def report(self) -> object:
        """Return what can be learned from this request, for `RouterPart.learn`, or None."""
        return None

    def close(self) -> Coroutine[None, None, None] | None:
        """Return background work to finish after the request, beside closing its sessions, or None."""
        return None


class Mode(ABC):
    """A way to answer requests. One object for each executor, whose state all its requests share.

    name: of the mode, for clients.
    roles: the endpoints it needs.
    settings: of both of its parts.
    options: fields that it adds to a request's `tandem` object, found in `Job.asked`.
    section: the key of `settings` in an application's settings; "" if they are at the top level.
    router: its part at the router.
    figures: the figures it adds to an answer's.
    briefing: type of its router part's briefing, or None.
    local: whether a device best drives the requests of its own user: its part of the work then crosses no link.
    private: whether only the device can drive it: the prompt does not leave it.
    afar: whether a device's own program can drive it as well.
    takes_over: whether an answer that another mode has begun may go on in it because it is better, and not only because
        the other one cannot.
    """

    name: ClassVar[str]
    roles: ClassVar[tuple[EndpointRole, ...]]
    settings: ClassVar[type[Strict]] = Strict
    options: ClassVar[type[Strict]] = Strict
    section: ClassVar[str] = ""
    router: ClassVar[type[RouterPart[Any]]] = RouterPart
    figures: ClassVar[type[Figures]] = Figures
    briefing: ClassVar[type | None] = None
    local: ClassVar[bool] = False
    private: ClassVar[bool] = False
    afar: ClassVar[bool] = True
    takes_over: ClassVar[bool] = True

    def __init__(self, settings: Any, services: Services) -> None:  # noqa: B027 (most modes need none)
        """settings: as `settings` has them."""

    def check(self) -> None:  # noqa: B027 (most modes have no reason)
        """Raises EngineError where the executor cannot drive such requests; asked before anything else happens."""

    def suits(self, job: Job) -> bool:
        """Return whether the mode would serve the job in its own way."""
        return True

    @abstractmethod
    def start(self, job: Job) -> ModeRun:
        """Return a new run; called once for each request in this mode."""

    @classmethod
    def device_role(cls) -> EndpointRole | None:
        """Return the role of a device; None if there is none."""
        return next((role for role in cls.roles if role.pool == DEVICE), None)


def forced(room: int, alternatives: int = 0, adapter: str = "") -> Sampling:
    """Return the sampling of a session that scores given tokens: `room` of them, each with its `alternatives`."""
    most = room + 1  # a token of the target's own
    return Sampling(max_tokens=most, ignore_eos=True, logprobs=alternatives, forced=True, adapter=adapter)


async def scores(
    session: EndpointSession, position: int, ids: Sequence[int]
) -> AsyncGenerator[list[TokenLogprob], None]:
    """Yield log-probabilities of these tokens, the next ones of a forced session, some at a time."""
    for at in range(0, len(ids), SCORED_AT_ONCE):
        yield await session.score(position + at, ids[at : at + SCORED_AT_ONCE])


async def score(
    session: EndpointSession, prompt: Sequence[int], known: int, sampling: Sampling
) -> AsyncGenerator[Delta, None]:
    """Yield log-probabilities of the prompt's tokens after its first `known`. sampling: of the answer."""
    room = len(prompt) - known
    await session.open(prompt[:known], forced(room, sampling.logprobs, sampling.adapter))
    async with aclosing(scores(session, 0, prompt[known:])) as parts:
        async for part in parts:
            yield Delta([], [], prompt_logprobs=part)
    await session.cancel()


async def decode(
    session: EndpointSession, origin: Origin, job: Job, log: TokenLog
) -> AsyncGenerator[Delta, None]:
    """Let one endpoint decode the rest of the answer by itself."""
    await session.open(job.prompt, job.sampling, log.ids)
    async with aclosing(session.generate()) as stream:
        async for tokens in stream:
            ids = tokens.ids
            yield Delta(ids, [origin] * len(ids), tokens.finish, logprobs=tokens.logprobs, position=len(log))


def judged(position: int, drafted: int, verdict: Verdict) -> Delta:
    """Return a verdict's tokens with their origins: accepted drafts first, then the target's own."""
    accepted = min(verdict.accepted, len(verdict.ids))
    own = Origin.CORRECTED if accepted < drafted else Origin.BONUS if drafted else Origin.CLOUD
    origins = [Origin.DRAFT] * accepted + [own] * (len(verdict.ids) - accepted)
    return Delta(verdict.ids, origins, verdict.finish, logprobs=verdict.logprobs, position=position)
