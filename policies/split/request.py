"""Decisions for one request to a split model (HAT): its chunks, its drafts, and what is drafted ahead.

The algorithm without its messages, tokens and tensors. It has no clock: callers pass durations, in seconds. Prefill:

    while size := split.next_chunk():
        send `size` tokens' hidden states up
        whenever one is answered (before the next one is sent, unless split.overlap): split.answered(…),
            split.crossed(…)

A round, after an answer of `sent` tokens:

    split.begin(sent)
    while split.draft_on(): draft a token; split.drafted(confidence)
    split.computed(…); send the draft's hidden states up
    branches, steps = split.ahead(): draft them; split.drafted_ahead(…) each step
    the deep hidden states come down: split.answered(…), split.crossed(…), split.judged(…)

Callers that can time the ways up and down separately call `uploaded` and `downloaded` in place of `crossed`.
`draft_on` and `drafted` touch nothing that requests share: they may be called on another thread.

The part of a branch that is still right after the verdict is `ready` in the next round: if the model chose the
branch's first token at the draft's last place, all that follows it; if that was the draft's own and the model agrees
with the token after it, too, what follows that.
"""

from __future__ import annotations

from typing import NamedTuple

from tandem.policies.split.chunking import ChunkingPolicy, ChunkState
from tandem.policies.split.drafting import DraftingPolicy, DraftRound, DraftState
from tandem.policies.split.monitor import CloudMonitor, DeviceMonitor
from tandem.policies.split.parallel_drafting import NOTHING, Ahead, ParallelDraftingPolicy, WaitState


class SplitPolicies(NamedTuple):
    """Policies of a device. The drafting policy is the device's own and learns from each round."""

    chunking: ChunkingPolicy
    drafting: DraftingPolicy
    parallel_drafting: ParallelDraftingPolicy


class TokenBytes(NamedTuple):
    """A: size of a token's hidden state on its way up, and back."""

    up: float
    down: float


class Split:
    """Decides for a request with `prompt_tokens` tokens to prefill and an answer of at most `max_tokens`.

    token_bytes: A, sizes of a token's hidden state.
    prompt_left: prompt tokens in no chunk yet.
    cloud, device: monitors, which record all measurements.
    pipeline: P, stages of the cloud's pipeline.
    overlap: whether a chunk is sent before the previous one is answered.
    """

    __slots__ = (
        "_cloud",
        "_confidences",
        "_device",
        "_draft_s",
        "_max_tokens",
        "_pipeline",
        "_policies",
        "_sent",
        "_token_bytes",
        "overlap",
        "prompt_left",
    )

    def __init__(
        self,
        prompt_tokens: int,
        max_tokens: int,
        token_bytes: TokenBytes,
        *,
        cloud: CloudMonitor,
        device: DeviceMonitor,
        policies: SplitPolicies,
        pipeline: int = 1,
    ) -> None:
        self.prompt_left, self._max_tokens, self._token_bytes = prompt_tokens, max_tokens, token_bytes
        self._cloud, self._device, self._policies, self._pipeline = cloud, device, policies, pipeline
        self.overlap = policies.chunking.overlap
        self._confidences: list[float] = []
        self._draft_s = 0.0
        self._sent = 0

    # Decisions.

    def next_chunk(self) -> int:
        """Return the prompt tokens to send now; 0 if all have been sent."""
        if not self.prompt_left:
            return 0
        size = self._policies.chunking.choose(
            ChunkState(
                left=self.prompt_left,
                token_bytes=self._token_bytes.up,
                up_bytes_s=self._device.up_bytes_s,
                mu=self._cloud.mu,
                delay_s=self._cloud.g.line,
                pipeline=self._pipeline,
            )
        )
        self.prompt_left -= size
        return size

    def begin(self, sent: int) -> None:
        """Begin a round after an answer of `sent` tokens."""
        self._sent, self._draft_s = sent, 0.0
        self._confidences.clear()

    def draft_on(self, ready: bool = False) -> bool:
        """Return whether to add one more token to the draft. ready: it was drafted ahead already."""
        left = self._left
        return left > 0 and self._policies.drafting.go_on(
            DraftState(
                confidences=tuple(self._confidences),
                left=left,
                draft_s=0.0 if ready else self._device.draft_s(1),
                token_s=self._link_token_s + self._cloud.g.line.token_s,
                round_s=self._verification_s(1) + self._cloud.overhead_s,
            )
        )

    def ahead(self, passed_s: float = 0.0) -> Ahead:
        """Return what to draft until the verdict comes; nothing without a draft, as no last token is uncertain.

        passed_s: since the draft was sent.
        """
        left = self._left
        if not self._confidences or left < 1:
            return NOTHING
        return self._policies.parallel_drafting.choose(
            WaitState(
                tokens=len(self._confidences) + 1,
                left=left,
                link_token_s=self._link_token_s,
                delay_s=self._cloud.g(self._cloud.mu),
                draft_s=self._device.draft_s.line,
                rtt_s=self._device.rtt_s,
                passed_s=passed_s,
            )
        )

    # Events.

    def uploaded(self, tokens: int, seconds: float) -> None:
        """Record an upload of hidden states, without the link's latency."""
        self._device.note_up(tokens * self._token_bytes.up, seconds)

    def downloaded(self, tokens: int, seconds: float) -> None:
        """Record a download of hidden states, likewise."""
        self._device.note_down(tokens * self._token_bytes.down, seconds)

    def crossed(self, up: int, down: int, seconds: float) -> None:
        """Record a round trip of hidden states: tokens up and down, and seconds on the link, latency included."""
        self._device.note_crossing(up * self._token_bytes.up, down * self._token_bytes.down, seconds)

    def answered(self, batch_tokens: int, seconds: float) -> None:
        """Record that a chunk or draft was computed, in a batch of `batch_tokens` that took `seconds`."""
        self._cloud.note_batch(batch_tokens, seconds)

    def drafted(self, confidence: float) -> None:
        self._confidences.append(confidence)

    def computed(self, drafted: int, seconds: float) -> None:
        """Record the device's part of a round: drafting `drafted` tokens, without those drafted ahead, and then the
        last one's hidden states; a step each."""
        step_s = seconds / (drafted + 1)
        self._draft_s = drafted * step_s
        self._device.note_draft(1, step_s)

    @property
    def under_way(self) -> int:
        """Most chunks under way, P + 2 if they overlap: each stage computes one, one travels, and one follows at once,
        not a round trip later. With fewer, a stage would wait for the link, whatever the chunks' size."""
        return self._pipeline + 2 if self.overlap else 1

    @property
    def draft(self) -> int:
        return len(self._confidences)

    def drafted_ahead(self, branches: int, seconds: float) -> None:
        """Record a step of `branches` branches, drafted while waiting for the verdict."""
        self._device.note_draft(branches, seconds)

    def judged(self, accepted: int, wait_s: float) -> None:
        """Record the verdict: the number of accepted tokens of the draft. wait_s: since the draft was sent."""
        tokens = len(self._confidences) + 1
        self._cloud.note_overhead(wait_s - self._verification_s(tokens))
        self._policies.drafting.learn(
            DraftRound(tuple(self._confidences), accepted, self._draft_s, self._draft_s + wait_s)
        )

    @property
    def _left(self) -> int:
        """Tokens that the draft may still get: the model adds one of its own."""
        return self._max_tokens - self._sent - len(self._confidences) - 1

    @property
    def _link_token_s(self) -> float:
        """Seconds of a token's hidden state, up and down."""
        up, down = self._token_bytes
        return up / self._device.up_bytes_s + down / self._device.down_bytes_s

    def _verification_s(self, tokens: int) -> float:
        """Return the seconds to verify `tokens` tokens: link, and a batch that begins at once."""
        return self._device.rtt_s + tokens * self._link_token_s + self._cloud.g(self._cloud.mu)
