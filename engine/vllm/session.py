"""A session at a vLLM engine.

vLLM decodes a request forwards only. So a session keeps its own log, and the tokens that vLLM has made beyond it lie
**ahead**: unconfirmed drafts, or tokens after a stream was left. As long as the log goes along
with them the request goes on; where it turns elsewhere, the request is given up for another one, which finds the
common part in the prefix cache.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from tandem.engine.base import (
    Draft,
    DraftProbs,
    Drafts,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Extend,
    InvalidRequest,
    Operation,
    TokenLogprob,
    Tokens,
    Verdict,
    Verify,
)
from tandem.engine.core.sequence import Sequence as Log
from tandem.engine.sessions.session import BaseSession
from tandem.engine.validation import check_ids, check_window, checked_probs
from tandem.engine.vllm.outputs import RequestOutputs
from tandem.engine.vllm.views import CHOSEN_BY, FOREVER, GRAMMAR, REPLAYED

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput


NO_DRAFTS = Drafts([])
STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of a session's requests: vLLM's randomness knows no position, and none shall repeat another's."""


class VllmRequest:
    """vLLM's request of a session.

    outputs: as they come.
    tokens: of prompt and output so far.
    scores: log-probabilities of its tokens, if requested.
    until: number of output tokens after which it is parked.
    """

    def __init__(self, outputs: RequestOutputs, tokens: list[int], logprobs: int, forced: int) -> None:
        """tokens: initial ones, `forced` of them to be scored."""
        self.outputs, self.tokens = outputs, tokens
        self.scores: list[TokenLogprob] = []
        self.until = 1
        self._begun, self._logprobs, self._forced = len(tokens), logprobs, forced

    @property
    def id(self) -> str:
        return self.outputs.request_id

    @property
    def received(self) -> int:
        """Output tokens that it has made."""
        return len(self.tokens) - self._begun

    def take(self, output: EngineCoreOutput) -> None:
        """The next tokens."""
        prompt = output.new_prompt_logprobs_tensors
        if self._logprobs >= 0 and self._forced and prompt is not None:
            ids, logprobs = prompt.logprob_token_ids, prompt.logprobs
            self._score(ids[-self._forced :].tolist(), logprobs[-self._forced :].tolist())
        self.tokens += output.new_token_ids
        if self._logprobs >= 0 and output.new_logprobs is not None:
            self._score(output.new_logprobs.logprob_token_ids.tolist(), output.new_logprobs.logprobs.tolist())

    def _score(self, ids: list[list[int]], logprobs: list[list[float]]) -> None:
        """Keep the scores of tokens, a row each: the token's own, then the likeliest tokens' in their order."""
        best = slice(1, 1 + self._logprobs)
        for tokens, scores in zip(ids, logprobs, strict=True):
            top = list(zip(tokens[best], scores[best], strict=True))
            self.scores.append(TokenLogprob(scores[0], top))

    def scores_of(self, start: int, count: int) -> list[TokenLogprob] | None:
        """Return the scores of `count` tokens from position `start` on; None if not requested."""
        start -= self._begun - self._forced
        return self.scores[start : start + count] if self._logprobs >= 0 else None


class VllmHost(Protocol):
    """The engine, as its sessions need it.

    counters: of all sessions.
    died: what vLLM raises when its process is gone.
    """

    info: EngineInfo
    counters: EngineStats
    died: type[Exception]

    async def start(self, log: Log, forced: Sequence[int] = ()) -> VllmRequest:
        """Have vLLM go on after a session's log and `forced` tokens, which it scores. Raises EngineStopped."""
        ...

    def ask(self, request: VllmRequest, drafts: Drafts = NO_DRAFTS) -> None:
        """Let a request continue to its `until`, with drafts after its tokens."""
        ...

    def abort(self, request: VllmRequest) -> None:
        """A request is not needed any more."""
        ...

    def forget(self, session: VllmSession) -> None:
        """A session has ended."""
        ...


class VllmSession(BaseSession):
    """log: prompt and output as the client knows them."""

    def __init__(self, engine: VllmHost, log: Log) -> None:
        super().__init__(engine.info)
        self.log = log
        self._engine = engine
        self._request: VllmRequest | None = None

    async def start(self, forced: Sequence[int] = ()) -> None:
        """Have vLLM begin with what there is, and `forced` tokens after it, up to its first own token. Raise
        InvalidRequest if that does not follow the session's grammar."""
        if self.log.matcher is not None and not self.log.matcher.follow(self.log.output):
            raise InvalidRequest("the output does not follow its grammar")
        self._request = await self._engine.start(self.log, forced)

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        log = self.log
        try:
            tokens = Tokens([], log.finish)
            while tokens.finish is None:
                tokens = self._keep(self._ahead or await self._more(FOREVER))
                if tokens.finish is None:
                    yield tokens
        finally:
            self._finish()
        yield tokens  # free already, whether or not the consumer asks on

    async def _run(self, operation: Operation[Any]) -> Any:
        match operation:
            case Verify(ids, probs):
                check_ids(ids, self._info.vocab_size)
                if probs is not None:
                    probs = supported(ids, *checked_probs(probs, len(ids), self._info.vocab_size))
                return await self._verify(Drafts(list(ids), probs if self._info.takes_probs else None))
            case Draft(position, ids, window):
                check_window(window)
                self._set(position, ids)
                return await self._draft(window)
            case Extend(position, ids):
                self._set(position, ids)
                return None
        raise self._lacks(operation.name)

    async def _verify(self, drafts: Drafts) -> Verdict:
        """Verify drafts; those that meet tokens which vLLM has made already stand where they are equal."""
        log, before, accepted, own, asked = self.log, len(self.log.tokens), 0, False, False
        drafts = drafts.first(max(0, log.longest - log.output_len - 1))  # its own token needs a place
        ids = drafts.ids
        if log.sampling.forced and log.finish is None:
            return await self._force(ids)
        while log.finish is None and not own:
            if not (ahead := self._ahead):
                ahead, asked = await self._more(1, drafts.rest(accepted)), True
            token = ahead[0]
            self._keep([token])
            own = accepted == len(ids) or token != ids[accepted]
            accepted += not own
        if asked and log.finish is None and self._ahead:  # drafts of vLLM's side, which stand
            self._keep(self._ahead)
        counters = self._engine.counters
        counters.tokens_verified += len(ids)
        counters.tokens_accepted += accepted
        return Verdict(accepted, log.tokens[before:], log.finish, self._scores(before))

    async def _draft(self, window: int) -> Drafts:
        log = self.log
        if log.finish is not None:
            return Drafts([])
        window = min(window, log.longest - log.output_len)
        ids: list[int] = []
        while len(ids) < window and not (ids and log.ends_draft(ids[-1])):
            ahead = self._ahead
            if len(ahead) == len(ids):
                ahead = await self._more(window - len(ids))
            ids.append(ahead[len(ids)])
        self._engine.counters.tokens_drafted += len(ids)
        return Drafts(ids)

    async def cancel(self) -> None:
        if self._end():
            self._engine.forget(self)
            self._give_up()

    def fail(self, error: EngineError) -> None:
        """End the session because the engine has failed."""
        if self._end(error) and self._request is not None:
            self._request.outputs.fail(error)  # nothing else will come

    @property
    def reads(self) -> bool:
        """Whether vLLM may be taking in its prompt."""
        return self._request is not None and not self._request.received

    # -- what vLLM makes --------------------------------------------------------------------------------

    @property
    def _ahead(self) -> list[int]:
        """Tokens that vLLM has made beyond the log."""
        return self._request.tokens[len(self.log.tokens) :] if self._request is not None else []

    async def _more(self, tokens: int, drafts: Drafts = NO_DRAFTS) -> list[int]:
        """Return the tokens ahead once there are new ones; vLLM is asked for `tokens`, and given drafts to begin
        with."""
        self._check()
        if self._request is None:
            await self.start()
        request = self._request
        assert request is not None
        until = min(request.received + tokens, FOREVER)
        if request.until < until:
            request.until = until
            self._engine.ask(request, drafts)
        return await self._next(request)

    async def _next(self, request: VllmRequest) -> list[int]:
        """Return the tokens ahead once there are new ones."""
        while True:
            try:
                outputs = await request.outputs.get()
            except self._engine.died as error:
                raise EngineStopped(f"vLLM has stopped: {error}") from None
            self._check()
            for output in outputs:
                request.take(output)
            if ahead := self._ahead:
                return ahead
            if outputs[-1].finished:
                raise EngineStopped(f"vLLM gave a request up: {outputs[-1].finish_reason}")

    async def _force(self, drafts: Sequence[int]) -> Verdict:
        """Drafts that stand whatever the model thinks of them are a prompt to vLLM, which it scores."""
        self._give_up()
        await self.start(drafts)
        assert self._request is not None
        tokens = self._keep(await self._next(self._request))
        return Verdict(min(len(drafts), len(tokens.ids)), tokens.ids, tokens.finish, tokens.logprobs)

    def _keep(self, ahead: list[int]) -> Tokens:
        """Append the tokens ahead to the output, up to its end, and return them."""
        before = len(self.log.tokens)
        kept = self.log.append(ahead)
        self.log.confirmed = len(self.log.tokens)
        self._engine.counters.tokens_generated += kept
        return Tokens(ahead[:kept], self.log.finish, self._scores(before))

    def _scores(self, start: int) -> list[TokenLogprob] | None:
        return None if self._request is None else self._request.scores_of(start, len(self.log.tokens) - start)

    def _set(self, position: int, tokens: Sequence[int]) -> None:
        """Set the output from `position` on. Raise InvalidRequest for tokens or a position that it cannot have."""
        check_ids(tokens, self._info.vocab_size)
        log = self.log
        log.check_place(position, len(tokens))
        same = log.replace(position, list(tokens))
        request = self._request
        if request is not None and request.tokens[same : len(log.tokens)] != log.tokens[same:]:
            self._give_up()

    def _finish(self) -> None:
        """End an operation: vLLM need not go on."""
        super()._finish()
        request = self._request
        if request is not None and self._ended is None and request.until == FOREVER:
            request.until = 0
            self._engine.ask(request)

    def _give_up(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._engine.abort(request)


def supported(drafts: Sequence[int], ids: np.ndarray, probs: np.ndarray) -> DraftProbs:
    """Return the distributions of drafts, [drafts, width], with a point mass for a draft that its own rules out."""
    drawn = np.asarray(drafts, "<i4")
    outside = ~((ids == drawn[:, None]) & (probs > 0.0)).any(axis=1)
    if outside.any():
        ids, probs = ids.copy(), probs.copy()
        ids[outside, 0] = drawn[outside]
        probs[outside] = np.eye(1, probs.shape[1], dtype=probs.dtype)
    return DraftProbs.of(ids, probs)


def sampling_params(log: Log, label: tuple[Any, ...], scored: bool = False) -> Any:
    """Return vLLM's parameters for a session that continues `log`; stop strings are found on this side. scored:
    whether to score the log, too.

    Raises InvalidRequest if vLLM's limits are narrower than ours.
    """
    from vllm.exceptions import VLLMClientError
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    sampling = log.sampling
    best = None if sampling.logprobs < 0 else sampling.logprobs
    extra: dict[str, Any] = {"tandem": label}
    if sampling.presence_penalty or sampling.frequency_penalty:
        extra[REPLAYED] = log.output
    if (grammar := sampling.grammar) is not None:
        extra[GRAMMAR] = msgspec.structs.astuple(grammar), sorted(log.ends)
    if sampling.logit_bias or sampling.min_p:
        extra[CHOSEN_BY] = {
            "logit_bias": {token: float(bias) for token, bias in sampling.logit_bias} or None,
            "min_p": 0.0 if sampling.greedy else sampling.min_p,
        }
    make = partial(
        SamplingParams,
        max_tokens=log.longest - log.output_len,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_tokens=max(0, min(sampling.min_tokens, log.longest) - log.output_len),
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=None if sampling.greedy else (sampling.seed + log.output_len * STRIDE) % 2**63,
        stop_token_ids=sorted(log.ends),
        ignore_eos=True,
        logprobs=best,
        prompt_logprobs=best if scored else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra,
    )
    try:
        return make()
    except VLLMClientError as error:
        raise InvalidRequest(f"vLLM does not take this: {error}") from None
