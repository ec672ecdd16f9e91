"""Prompts that are scored before the answer: every token once, also where an endpoint is lost on the way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
import pytest

from tandem.deployments.modes.base import SCORED_AT_ONCE, Services
from tandem.deployments.modes.cloud import CloudMode
from tandem.deployments.request.assignment import Assignment, EndpointInfo, EndpointLost
from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.request.session import EndpointSessions, Reach, RequestContext
from tandem.deployments.request.tokenlog import TokenLog
from tandem.engine.base import (
    Engine,
    EngineStopped,
    Extend,
    Operation,
    Sampling,
    Session,
    TokenLogprob,
    Tokens,
    Verdict,
    Verify,
)
from tandem.engine.config import Strict
from tandem.engine.null.engine import NullEngine
from tests.deployments.faults import reference

pytestmark = pytest.mark.virtual_time

PROMPT = tuple(range(20, 20 + 2 * SCORED_AT_ONCE + 5))
JOB = Job(7, PROMPT, Sampling(max_tokens=6, logprobs=0, adapter="legal"), scored=True)


class Scoring(NullEngine):
    """Gives token t the log-probability −t. fails_after: chunks, and then it is gone."""

    def __init__(self, fails_after: int = 100) -> None:
        super().__init__()
        self.left = fails_after
        self.adapters: list[str] = []
        self.room: list[int] = []

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:  # type: ignore[override]
        if sampling.forced:
            self.adapters.append(sampling.adapter)
            self.room.append(len(prompt) + sampling.max_tokens)
            return Forced(self)
        return await super().open(prompt, msgspec.structs.replace(sampling, logprobs=-1, adapter=""), log)


class Forced(Session):
    """Session of given tokens."""

    def __init__(self, engine: Scoring) -> None:
        self._engine, self._given = engine, 0

    async def call(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Extend):
            assert operation == Extend(self._given, ()), "the token of its own is taken back"
            return None
        assert isinstance(operation, Verify)
        if not self._engine.left:
            raise EngineStopped("pulled the plug")
        self._engine.left -= 1
        drafts = operation.ids
        assert len(drafts) <= SCORED_AT_ONCE
        self._given += len(drafts)
        return Verdict(len(drafts), [*drafts, 3], None, [TokenLogprob(-float(t)) for t in (*drafts, 3)])

    async def cancel(self) -> None:
        """Do nothing."""

    def generate(self) -> AsyncGenerator[Tokens, None]:
        raise AssertionError("a forced session decodes nothing")


async def test_every_token_is_scored_once() -> None:
    run, stats = CloudMode(Strict(), Services()).start(JOB), JobStats()
    broken, whole = Scoring(fails_after=1), Scoring()
    scores: list[TokenLogprob] = []
    log = TokenLog()

    def sessions(engine: Engine) -> EndpointSessions:
        async def dial(_: EndpointInfo) -> Engine:
            return engine

        there = {"target": EndpointInfo("target", "target", VERIFIER)}
        return EndpointSessions(Assignment("cloud", there), RequestContext(Reach(dial), stats))

    async def answer(engine: Engine) -> None:
        async for delta in run.run(sessions(engine), log, None):
            scores.extend(delta.prompt_logprobs or [])
            log.append(delta.position, delta.ids, delta.origins)

    with pytest.raises(EndpointLost):
        await answer(broken)
    assert len(scores) == SCORED_AT_ONCE
    await answer(whole)
    assert broken.adapters == whole.adapters == ["legal"]
    assert broken.room == whole.room == [len(PROMPT) + 1], "and a token of the target's own"
    assert [score.logprob for score in scores] == [-float(token) for token in PROMPT[1:]]
    assert log.ids == reference(PROMPT, 6)
    assert stats.used.server_out == 6, "scored tokens were taken in, not given out"
    assert stats.used.server_in >= 2 * len(PROMPT), "once to be scored, once to be continued"
