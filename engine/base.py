"""The engine protocol: an engine opens sessions, which generate tokens and carry out operations.

Implementations: the batched torch engine, vLLM, the timed engine of simulations, the null engine of tests and
benchmarks, a device slowed to its profile, and an engine in another process, reached over the wire. Modes are written
against this protocol, and do not know which engine they drive.

An operation is data with a type of result. A session that wraps another one (a link, a meter, a time limit) passes on
any operation by one method, `call`. A new operation is a class here, its execution in an engine, and its frames in
`cluster.wire.frames`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

import msgspec
import numpy as np

from tandem.engine.served import Served
from tandem.policies.scheduling.outstanding import Outstanding


class EngineError(Exception):
    """Base of the errors of engines; `code` names the error on the wire and in the API."""

    code = "engine_error"


class InvalidRequest(EngineError):
    """The request's values make no sense to this engine. Nothing was changed."""

    code = "invalid_request"


class ContextOverflow(InvalidRequest):
    """Prompt and requested output do not fit into the model's context or its KV cache."""

    code = "context_length_exceeded"


class NoCapacity(EngineError):
    """The engine has no room for another session now; try again in `retry_after_s` seconds."""

    code = "overloaded"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HandedOver(NoCapacity):
    """The session had nothing but waited for a place, and others have room: it may begin there at once."""

    code = "handed_over"


class UnknownSession(EngineError):
    """No session with this id is open: it was never opened, has ended, or was cancelled."""

    code = "unknown_session"


class SessionCancelled(EngineError):
    """The session was cancelled while this operation ran."""

    code = "cancelled"


class EngineStopped(EngineError):
    """The engine is closed or its process is gone. The work may go on elsewhere."""

    code = "engine_stopped"


class ServiceRefused(EngineError):
    """A service does not answer, and asking it again does not help; another endpoint may answer. Mostly it serves
    nothing to this application: its key, the model's name or its credit is at fault."""

    code = "service_refused"


class FormBroken(ServiceRefused):
    """A service's text does not have the form that it was asked for."""

    code = "form_broken"


class ContentFiltered(InvalidRequest):
    """A service's content filter refuses the prompt."""

    code = "content_filter"


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """Form that an output has to have.

    kind: "json_object" for any JSON object, "json_schema", "regex", "choice" for one of several texts, or "grammar" in
        the notation of Lark or GBNF.
    source: the schema, the expression, the texts as a JSON list, or the grammar; nothing for "json_object".
    strict: whether a schema with a keyword that cannot be enforced is refused; otherwise such keywords are ignored.
    end: mark at the end of a model's thoughts, behind which the form begins; empty where it begins at once.
    begin: mark at the beginning of thoughts, in place of which the form may come; empty if the prompt has begun them.
    tokens: names of special tokens that the rules of a grammar call token_0, token_1 and so on; a vocabulary that lacks
        one refuses the grammar.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    source: str = ""
    strict: bool = True
    end: str = ""
    begin: str = ""
    tokens: tuple[str, ...] = ()


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """Choice of output tokens. A session's randomness depends only on (seed, output position), so that a
    preempted, moved or retried session repeats its tokens.

    max_tokens: most output tokens, including those of a log that the session was opened with.
    temperature: 0 is greedy.
    top_k: number of likeliest tokens to sample from; 0 for all.
    top_p: share of the probability to sample from; 1 for all of it.
    stop: strings that end the output with finish "stop".
    stop_tokens: token ids that end the output with finish "stop".
    logprobs: n ≥ 0 for log-probabilities of the chosen token and the n best alternatives, of the model's own
        distribution (before temperature and filters); -1 for none.
    reader_rate: tokens/s at which the client reads the output, for scheduling; 0 if it does not read along.
    forced: whether all drafts stand; with logprobs, this scores a given text.
    waited_s: seconds that the request has spent in an earlier session, which count for its place among waiting
        sessions.
    grammar: form of the output, which ends only where that is complete; None for any.
    min_tokens: least output tokens: before, no token or string of the output ends it.
    min_p: least probability of a token, relative to the likeliest one's; 0 for any.
    logit_bias: (id, number) pairs that are added to the model's logits.
    adapter: name of the adapter (LoRA) with which the model answers; "": none.
    trace: the request's span, as W3C's `traceparent` names it, below which an engine's own may be; "": none.
    kept: handle under which a middle keeps the session's states at its end, and has those with which it begins; "": it
        keeps none.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int = -1
    reader_rate: float = 0.0
    forced: bool = False
    waited_s: float = 0.0
    grammar: Grammar | None = None
    min_tokens: int = 0
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    adapter: str = ""
    trace: str = ""
    kept: str = ""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1.0 or bool(self.presence_penalty or self.frequency_penalty)

    @property
    def changes_logits(self) -> bool:
        """Whether tokens are chosen by other logits than the model's."""
        return self.penalised or bool(self.min_tokens or self.logit_bias)

    def check(self) -> None:
        """Raise InvalidRequest naming the first field whose value is out of range."""
        allowed = [
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0.0 <= self.temperature <= 10.0, "between 0 and 10"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 10.0, "above 0 and at most 10"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "between -2 and 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "between -2 and 2"),
            ("seed", 0 <= self.seed < 2**63, "between 0 and 2^63 - 1"),
            ("stop", len(self.stop) <= 16 and all(self.stop), "at most 16 strings, none empty"),
            ("stop_tokens", all(t >= 0 for t in self.stop_tokens), "token ids"),
            ("logprobs", -1 <= self.logprobs <= 20, "between -1 (none) and 20"),
            ("reader_rate", 0.0 <= self.reader_rate <= 1e6, "between 0 and 1,000,000 tokens/s"),
            ("waited_s", 0.0 <= self.waited_s <= 1e6, "between 0 and 1,000,000 s"),
            (
                "ignore_eos",
                self.grammar is None or not self.ignore_eos,
                "false where a grammar tells the end",
            ),
            (
                "min_tokens",
                self.min_tokens >= 0 and (self.grammar is None or not self.min_tokens),
                "0 or more, and 0 where a grammar tells the end",
            ),
            ("kept", len(self.kept) <= 400, "at most 400 characters"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            (
                "logit_bias",
                all(-100.0 <= b <= 100.0 for _, b in self.logit_bias),
                "between -100 and 100 each",
            ),
        ]
        for name, fine, range_ in allowed:
            if not fine:
                raise InvalidRequest(f"{name} must be {range_}, not {getattr(self, name)!r}")


class TokenLogprob(msgspec.Struct, array_like=True):
    """Natural-log probability of an output token, and the best alternatives as (id, logprob) pairs."""

    logprob: float
    top: list[tuple[int, float]] = []


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that a service asks money for, by its own count.

    tokens_in: of the prompt.
    tokens_out: of the output.
    """

    tokens_in: int
    tokens_out: int


class Tokens(msgspec.Struct, array_like=True):
    """Output tokens in order.

    finish: "stop" or "length" at the output's end, "content_filter" if a service broke it off; None before.
    usage: with finish, what a service bills for this stream; None if it does not say.
    """

    ids: list[int]
    finish: str | None = None
    logprobs: list[TokenLogprob] | None = None
    usage: Usage | None = None


class DraftProbs(msgspec.Struct, array_like=True):
    """The distributions that drafts were sampled from, sparse: `width` (id, probability) pairs a token.

    ids: little-endian int32, [drafted, width] row by row.
    probs: little-endian float32, [drafted, width] row by row. A row sums to 1; unused pairs have probability 0. The
        draft must have been drawn from exactly these numbers.
    """

    width: int
    ids: bytes
    probs: bytes

    @classmethod
    def of(cls, ids: np.ndarray, probs: np.ndarray) -> DraftProbs:
        """Pack arrays of [drafted, width]."""
        return cls(ids.shape[1], ids.astype("<i4").tobytes(), probs.astype("<f4").tobytes())

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, probs) as [drafted, width] arrays."""
        ids = np.frombuffer(self.ids, "<i4").reshape(-1, self.width)
        return ids, np.frombuffer(self.probs, "<f4").reshape(-1, self.width)

    def first(self, count: int) -> DraftProbs:
        """Return the distributions of the first `count` drafts."""
        used = 4 * count * self.width
        return DraftProbs(self.width, self.ids[:used], self.probs[:used])

    def rest(self, count: int) -> DraftProbs:
        """Return the distributions of the drafts after the first `count`."""
        used = 4 * count * self.width
        return DraftProbs(self.width, self.ids[used:], self.probs[used:])


class Tensor(msgspec.Struct, array_like=True):
    """An array as its shape, dtype name ("float32", "bfloat16" ...) and little-endian bytes, row by row."""

    shape: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)], ...]
    dtype: str
    data: memoryview

    @classmethod
    def of(cls, array_: np.ndarray) -> Tensor:
        """Wrap a numpy array, sharing its memory if that is contiguous."""
        return cls(
            array_.shape, array_.dtype.name, np.ascontiguousarray(array_).reshape(-1).view(np.uint8).data
        )

    def numpy(self) -> np.ndarray:
        """Return a read-only view as a numpy array. Raise InvalidRequest if bytes, shape and dtype disagree."""
        try:
            return np.frombuffer(self.data, self.dtype).reshape(self.shape)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"not a tensor of {self.shape} {self.dtype}: {error}") from None


class Drafts(msgspec.Struct, array_like=True):
    """Proposed tokens.

    probs: distributions they were drawn from; None for a greedy draft, whose tokens count as point masses.
    took_s: seconds that drafting took at the drafter, waiting for other sessions included; 0 if unknown. The rest of
        the caller's wait is the link's.
    """

    ids: list[int]
    probs: DraftProbs | None = None
    took_s: float = 0.0

    def first(self, count: int) -> Drafts:
        """Return the first `count` of them."""
        probs = self.probs.first(count) if self.probs is not None and count else None
        return Drafts(self.ids[:count], probs, self.took_s)

    def rest(self, count: int) -> Drafts:
        """Return those after the first `count`."""
        probs = self.probs.rest(count) if self.probs is not None and count < len(self.ids) else None
        return Drafts(self.ids[count:], probs, self.took_s)


class Verdict(msgspec.Struct, array_like=True):
    """Result of verifying drafts: the first `accepted` drafts stand, and the target adds at least a token of its own.

    ids: the accepted drafts and the target's token (a correction, or a bonus after a full accept), further ones if the
        engine looks up drafts itself; fewer if the output ended before, which sets `finish`.
    """

    accepted: int
    ids: list[int]
    finish: str | None = None
    logprobs: list[TokenLogprob] | None = None


class Forwarded(msgspec.Struct, array_like=True):
    """Hidden states that a part of a model returns, and the batch that they were computed in.

    batch_tokens: positions of the batch, of all sessions; of the last batch if there were several; 0 if nothing was
        computed.
    batch_s: seconds that the batch took.
    took_s: as in Drafts.
    """

    hidden: Tensor
    batch_tokens: int = 0
    batch_s: float = 0.0
    took_s: float = 0.0


class EngineStats(msgspec.Struct):
    """Gauges of this moment and counters since the start. Times in seconds.

    sessions: open sessions.
    running: sessions with an operation under way.
    waiting: sessions without a place in the KV cache.
    blocks_free: KV blocks that can be allocated, cached prefixes included.
    blocks_total: KV blocks.
    block_size: tokens of a block.
    outstanding: work that sessions still want.
    base_s: constant part of a step's time, see `policies.estimators.step_time`.
    token_s: part of a step's time for each position.
    steps: steps taken.
    step_s: time that they took, with the time between two that follow each other.
    opened: sessions opened.
    cancelled: sessions that ended before their output did.
    finished: sessions that ended after their output.
    preempted: preemptions.
    tokens_prefilled: positions computed without need of their logits, recomputed ones included.
    tokens_generated: output tokens, accepted drafts included.
    tokens_drafted: tokens that `draft` proposed.
    tokens_verified: drafts that `verify` checked.
    tokens_accepted: drafts that `verify` accepted.
    tokens_looked_up: drafts that the engine looked up in sessions' own texts and checked.
    tokens_found: accepted ones of these.
    tokens_queried: tokens of admitted sessions, which the KV cache was searched for.
    tokens_from_prefix: of these, tokens found there.
    emulated: whether times are those of other hardware.
    energy_j: joules that a device has spent.
    tokens_loaded: tokens that returning sessions loaded from host memory.
    tokens_recomputed: tokens in host memory that returning sessions recomputed, because that was faster.
    blocks_written: blocks copied to host memory.
    decisions: decisions of the scheduling policy.
    decision_s: CPU time that they took.
    served: times and sizes of sessions and steps.
    refusal: why the service behind the engine serves nothing to this application; nothing if it does, None if there is
        no service.
    first_token_s: usual time to a session's first token, 0 where the engine does not tell.
    rest_s: seconds for which new sessions had better go elsewhere, as the service has refused one or asks for a pause.
    overdue_s: seconds by which the step under way takes longer than any should: the engine hangs.
    """

    sessions: int = 0
    running: int = 0
    waiting: int = 0
    blocks_free: int = 0
    blocks_total: int = 0
    block_size: int = 1
    outstanding: Outstanding = Outstanding()
    base_s: float = 0.0
    token_s: float = 0.0
    steps: int = 0
    step_s: float = 0.0
    opened: int = 0
    cancelled: int = 0
    finished: int = 0
    preempted: int = 0
    tokens_prefilled: int = 0
    tokens_generated: int = 0
    tokens_drafted: int = 0
    tokens_verified: int = 0
    tokens_accepted: int = 0
    tokens_looked_up: int = 0
    tokens_found: int = 0
    tokens_queried: int = 0
    tokens_from_prefix: int = 0
    emulated: bool = False
    energy_j: float = 0.0
    tokens_loaded: int = 0
    tokens_recomputed: int = 0
    blocks_written: int = 0
    decisions: int = 0
    decision_s: float = 0.0
    served: Served = msgspec.field(default_factory=Served)
    refusal: str | None = None
    rest_s: float = 0.0
    first_token_s: float = 0.0
    overdue_s: float = 0.0


class SplitInfo(msgspec.Struct, frozen=True):
    """The part of a split model that an engine has. The two parts of one model have equal infos.

    checksum: of all the model's weights, in hexadecimal.
    first: first layer of the middle; the layers before it are the outer part's.
    layers: layers of the whole model.
    hidden: width of a token's hidden states.
    stages: P, stages of the middle's pipeline, which compute P batches at once.
    takes: kinds of hidden states that the middle takes, see `engine.split.hidden_states`; those of old ones are the
        default.
    """

    checksum: str
    first: int
    layers: int
    hidden: int
    stages: int = 1
    takes: tuple[str, ...] = ("float32", "float16", "bfloat16", "int8")


Continuation = Literal["kept", "anew", "none"]


class EngineInfo(msgspec.Struct, frozen=True):
    """The model behind an engine, as its callers need to know it.

    vocabulary: id of the tokenizer; equal ids mean equal token ids.
    vocab_size: number of token ids; rows of the model's matrices that are padding do not count, so that models of one
        vocabulary can draft for each other.
    context: most tokens of prompt and output together.
    capabilities: operations of its sessions, of CAPABILITIES.
    split: the part of a split model that the engine has; None for a whole model.
    draft_probs: whether drafts come with the distributions that they were drawn from.
    continuation: how its sessions go on after an output that they have not just made: "kept", from what they keep of
        prompt and output; "anew", by taking in both once more; "none", not at all.
    takes_probs: whether drafts are verified with the distributions that they were drawn from.
    """

    model: str
    vocabulary: str
    vocab_size: int
    context: int
    eos: int
    capabilities: tuple[str, ...] = ("generate", "verify", "draft")
    split: SplitInfo | None = None
    draft_probs: bool = True
    continuation: Continuation = "kept"
    takes_probs: bool = True


CAPABILITIES = ("generate", "verify", "draft", "forward")


R = TypeVar("R")


class Operation(msgspec.Struct, Generic[R]):
    """A request to a session, with a result of type R. Output positions count from 0 at the first token after the
    prompt.

    name: of the operation, in capabilities, stages and errors.
    """

    name: ClassVar[str]

    @property
    def taken_in(self) -> int:
        """Tokens or positions that the session reads for it."""
        return 0

    @staticmethod
    def given_out(result: R) -> int:
        """Return the number of tokens that the engine made for it."""
        return len(getattr(result, "ids", ()))

    def counts(self, result: R) -> dict[str, int]:
        """Return what a trace counts of it, by name."""
        return {"tokens": self.given_out(result)}


class Verify(Operation[Verdict]):
    """One speculative round of the target: verify drafts, keep the accepted prefix, add one token. Without drafts, this
    is plain decoding.

    Greedy sessions accept by exact match; others by rejection sampling (Leviathan et al. 2023).

    ids: the drafts.
    probs: distributions that they were drawn from; None for point masses.
    """

    name = "verify"
    ids: Sequence[int]
    probs: DraftProbs | None = None

    def counts(self, result: Verdict) -> dict[str, int]:
        return {"tokens": len(result.ids), "drafted": len(self.ids), "accepted": result.accepted}


class Extend(Operation[None]):
    """Set the output from `position` on to `ids`; the common part is kept, the rest is rolled back."""

    name = "extend"
    position: int
    ids: Sequence[int]

    def counts(self, result: None) -> dict[str, int]:
        return {"tokens": len(self.ids)}

    @property
    def taken_in(self) -> int:
        return len(self.ids)


class Draft(Operation[Drafts]):
    """Extend the output, then propose up to `window` tokens (fewer if the output would end).

    The proposals are tentative: the next extend or draft replaces what it does not confirm.
    """

    name = "draft"
    position: int
    ids: Sequence[int]
    window: int

    @property
    def taken_in(self) -> int:
        return len(self.ids)

    def counts(self, result: Drafts) -> dict[str, int]:
        return {"drafted": len(result.ids)}


class Forward(Operation[Forwarded]):
    """Run hidden states of the positions from `position` on through the engine's part of a model.

    wanted: number of last rows to return.

    Positions count from the prompt's first token, and rows that were there from `position` on are dropped. Further
    forwards may follow before one has ended, so that their states travel meanwhile; they run in order.

    Such a session is opened with an empty prompt and a sampling of only `max_tokens`, which covers prompt and output,
    and `reader_rate`: it never sees a token.
    """

    name = "forward"
    position: int
    hidden: Tensor
    wanted: int

    @property
    def taken_in(self) -> int:
        return self.hidden.shape[0] if self.hidden.shape else 0


class Session(ABC):
    """One sequence at one engine: a prompt and the output tokens that follow it.

    One operation runs at a time; a second one raises InvalidRequest, except a Forward behind another. So does an
    operation that the engine lacks (see EngineInfo.capabilities).
    """

    __slots__ = ()

    @abstractmethod
    def generate(self) -> AsyncGenerator[Tokens, None]:
        """Decode until the output ends; the last item has `finish` set. The session stays open."""

    @abstractmethod
    async def call(self, operation: Operation[R]) -> R:
        """Carry out an operation and return its result."""

    @abstractmethod
    async def cancel(self) -> None:
        """End the session and free what it holds; a second call does nothing. Its running operation raises
        SessionCancelled, a later one UnknownSession."""

    def verify(self, drafts: Sequence[int], probs: DraftProbs | None = None) -> Coroutine[Any, Any, Verdict]:
        """Call Verify."""
        return self.call(Verify(drafts, probs))

    def draft(self, position: int, tokens: Sequence[int], window: int) -> Coroutine[Any, Any, Drafts]:
        """Call Draft."""
        return self.call(Draft(position, tokens, window))

    def extend(self, position: int, tokens: Sequence[int]) -> Coroutine[Any, Any, None]:
        """Call Extend."""
        return self.call(Extend(position, tokens))

    def forward(self, position: int, hidden: Tensor, wanted: int) -> Coroutine[Any, Any, Forwarded]:
        """Call Forward."""
        return self.call(Forward(position, hidden, wanted))


@runtime_checkable
class HandsOver(Protocol):
    """An engine that can give waiting sessions up."""

    def hand_over(self, count: int) -> None:
        """End `count` sessions that have only waited for a place, the oldest first, with HandedOver."""
        ...


class Engine(Protocol):
    """Sessions of one model. All methods are called on one event loop, and block it for no longer than a queue
    operation."""

    @property
    def info(self) -> EngineInfo: ...

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:
        """Open a session for the prompt and the output `log` so far. Prefill starts at once.

        Return when the session is accepted, not when it is prefilled. If the call is cancelled, so is the session.
        Raise InvalidRequest, ContextOverflow, NoCapacity or EngineStopped.
        """
        ...

    async def stats(self) -> EngineStats: ...

    async def close(self) -> None:
        """Stop working; open sessions fail with EngineStopped. A closed engine is freed when its caller drops it."""
        ...
