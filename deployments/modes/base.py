"""Interface of a mode: the endpoints it needs by role, how it answers with them, its exchange with the router."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import ClassVar

from tandem.deployments.learning.experience import Experience
from tandem.deployments.modes.expansion import Sketching
from tandem.deployments.request.assignment import EndpointInfo, Endpoints, Prices, RoutingRequest
from tandem.deployments.request.job import Delta, Figures, Job
from tandem.deployments.request.pools import DEVICE
from tandem.deployments.request.session import EndpointSession, EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.engine.base import Sampling, Verdict
from tandem.engine.split.base import OuterEngine
from tandem.policies.cost import Used
from tandem.policies.speculation.rounds import FUSED_WINDOW
from tandem.policies.speculation.window import StaticWindow, WindowPolicy
from tandem.policies.split.chunking import ChunkingPolicy, HatChunks
from tandem.policies.split.drafting import DraftingPolicy, Threshold
from tandem.policies.split.parallel_drafting import HatParallelDrafting, ParallelDraftingPolicy

SCORED_AT_ONCE = 64
"""Tokens of a prompt whose log-probabilities are computed in one step."""


@dataclass(frozen=True, slots=True)
class Role:
    """An endpoint's part in a mode.

    name: of the role.
    pool: that a replica is taken from, or DEVICE.
    needed: False: without one, the mode does without it.
    unless: another role; if that one is filled, this one is not needed.
    expendable: the request can do without it, so each of its refusals counts as a loss.
    translated: an endpoint with another vocabulary than the verifiers' will do.
    if_absent: the mode that serves the request where nobody is up; "": the request waits for somebody.
    if_lost: the mode that goes on after an endpoint with this part has failed; "": another endpoint does.
    """

    name: str
    pool: str
    needed: bool = True
    unless: str = ""
    expendable: bool = False
    translated: bool = False
    if_absent: str = ""
    if_lost: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """Dependencies that an executor gives its modes.

    window: makes a window policy for a new draft–target pair.
    fused_window: γ of the cloud's own drafter in fused rounds.
    outer: the outer part of a split model in this process; None: it is not where the prompts are.
    chunking, drafting, parallel_drafting: make the policies of a device with such a part.
    sketching: what makes and expands sketches; None: nothing does.
    """

    window: Callable[[], WindowPolicy] = StaticWindow
    fused_window: int = FUSED_WINDOW
    outer: OuterEngine | None = None
    chunking: Callable[[], ChunkingPolicy] = HatChunks
    drafting: Callable[[], DraftingPolicy] = Threshold
    parallel_drafting: Callable[[], ParallelDraftingPolicy] = HatParallelDrafting
    sketching: Sketching | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """The router's state when it briefs a mode.

    prices: of the request's tokens.
    queue: an endpoint's sessions in relation to `batch_limit`, the sessions that a verifier's step takes.
    """

    experience: Experience
    wanted: RoutingRequest
    endpoints: Endpoints
    prices: Prices
    queue: Callable[[EndpointInfo], float] = lambda _: 0.0
    batch_limit: int = 1


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
        """Return what can be learned from this request, for `Mode.learn`, or None."""
        return None

    def close(self) -> Coroutine[None, None, None] | None:
        """The request is over: what is left to do beside closing its sessions, in the background."""
        return None


class Mode(ABC):
    """A way to answer requests. One object for each executor: what it keeps, all its requests share.

    name: by which clients ask for it.
    roles: the endpoints it needs.
    figures: the kind of figures it adds to an answer's.
    local: a request of somebody who sits at the device is best driven from there: what the device does then crosses no
        link.
    private: nobody else can drive it: the prompt does not leave the device.
    afar: a device's own program can drive it as well.
    briefing: the type of what `brief` gives, plain data; None: it gives nothing.
    """

    name: ClassVar[str]
    roles: ClassVar[tuple[Role, ...]]
    figures: ClassVar[type[Figures]] = Figures
    local: ClassVar[bool] = False
    private: ClassVar[bool] = False
    afar: ClassVar[bool] = True
    briefing: ClassVar[type | None] = None

    def __init__(self, tools: Tools) -> None:  # noqa: B027 (most modes need none)
        """tools: what the executor gives all its modes."""

    def check(self) -> None:  # noqa: B027 (most modes have no reason)
        """Raises EngineError where the executor cannot drive such requests; asked before anything else happens."""

    @abstractmethod
    def start(self, job: Job) -> ModeRun:
        """Once for each request that comes to be served in this mode."""

    @classmethod
    def brief(cls, situation: Situation) -> object:
        """Return, at the router, what a request needs of the learned state. It is sent to the API's replica."""
        return None

    @classmethod
    def learn(cls, experience: Experience, taught: object, used: Used) -> None:
        """Learn, at the router, from a request's `ModeRun.report`.

        used: by the whole answer, other modes' parts of it included.
        """
        return

    @classmethod
    def device_role(cls) -> Role | None:
        """The part that a device has, if any."""
        return next((role for role in cls.roles if role.pool == DEVICE), None)


async def score(
    session: EndpointSession, prompt: Sequence[int], known: int, alternatives: int
) -> AsyncGenerator[Delta, None]:
    """Log-probabilities of the prompt's tokens after its first `known`, some at a time. alternatives: to each."""
    room = len(prompt) - known + 1  # for the rest, and a token of the target's own
    forced = Sampling(max_tokens=room, ignore_eos=True, logprobs=alternatives, forced=True)
    await session.open(prompt[:known], forced)
    for at in range(known, len(prompt), SCORED_AT_ONCE):
        scores = await session.score(at - known, prompt[at : at + SCORED_AT_ONCE])
        yield Delta([], [], prompt_logprobs=scores)
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
    """A verdict's tokens with their origins: accepted drafts first, then the target's own."""
    accepted = min(verdict.accepted, len(verdict.ids))
    own = Origin.CORRECTED if accepted < drafted else Origin.BONUS if drafted else Origin.CLOUD
    origins = [Origin.DRAFT] * accepted + [own] * (len(verdict.ids) - accepted)
    return Delta(verdict.ids, origins, verdict.finish, logprobs=verdict.logprobs, position=position)
