"""Window control: how many tokens to draft in the next speculative round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tandem.policies.base import Registry
from tandem.policies.speculation.spread import FIRST_WEIGHT


@dataclass(frozen=True, slots=True)
class WindowState:
    """Statistics of a draft–target pair at the start of a round.

    acceptance: share of drafted tokens accepted recently, in [0, 1].
    rtt_s: recent round-trip time of the link between drafter and target, seconds.
    tpot_s: recent time per output token at the target, seconds.
    queue: the target's open sessions relative to its batch limit; above 1, they wait for each other.
    previous: the previous window (γ), tokens; 0 before the first round.
    verify_s: recent duration of a verification at the target, queueing included, seconds; 0 if unknown.
    draft_s: recent seconds per drafted token; 0 if unknown.
    fused_s: time per output token of a fused round, seen or expected, seconds; 0 if unknown: then the target decodes
        alone, a token a verification.
    alpha: probability that a drafted token is accepted if those before it were, as seen recently: accepted tokens as a
        share of those the target judged, which ends with the first it rejects in a round. Unlike `acceptance` it does
        not depend on the windows.
    judged: number of tokens that alpha is averaged over.
    prior: alpha over all pairs of the target; 0 if unknown.
    prior_weight: judged tokens that it counts as, by how much less it tells of the next round than the recent ones.
    verify_least_s: lower bound of verify_s, as seen lately with the least load; 0 if unknown.
    fused_least_s: lower bound of fused_s, likewise.
    fused_share: present share of fused rounds among the target's, over all of its pairs; 0.5 without other pairs.
    mean_window: mean window of its other rounds; 0 without other pairs.
    alone_s: seconds per output token while the target decodes alone; 0 if unknown.
    drafted: mean drafts of the rounds that verify_s is of; 0 without any.
    behind: tokens that the drafter has missed, and has to read before it drafts.
    read_s: seconds per such token; 0 if unknown.
    own: mean tokens of recent rounds beyond accepted drafts: the target's own one, and what it looks up; 1 without any.
    helper: whether the cloud has a drafter of its own, which drafts in fused rounds.
    shared_verify_s: verify_s over the latest rounds of all pairs of the target; 0 until they have made some.
    shared_draft_s: least draft_s of the target's pairs lately; 0 if unknown.
    draft_growth: seconds of a further draft as a share of draft_s, over all pairs of the target; 1 if unknown.
    verify_growth: seconds of a verification for a further draft as a share of verify_s, likewise; 0 if unknown.
    widened: squared differences of windows that draft_growth and verify_growth are of.
    pairs: the target's that take part at present, this one included.
    base_s, position_s: seconds of a step of the target, and what a position adds, as the target says; 0 if unknown.
    """

    acceptance: float
    rtt_s: float
    tpot_s: float
    queue: float
    previous: int
    verify_s: float = 0.0
    draft_s: float = 0.0
    fused_s: float = 0.0
    alpha: float = 0.0
    judged: int = 0
    prior: float = 0.0
    verify_least_s: float = 0.0
    fused_least_s: float = 0.0
    fused_share: float = 0.5
    mean_window: float = 0.0
    alone_s: float = 0.0
    drafted: float = 0.0
    behind: int = 0
    read_s: float = 0.0
    own: float = 1.0
    helper: bool = False
    shared_verify_s: float = 0.0
    shared_draft_s: float = 0.0
    draft_growth: float = 1.0
    verify_growth: float = 0.0
    widened: float = 0.0
    prior_weight: float = FIRST_WEIGHT
    pairs: int = 1
    base_s: float = 0.0
    position_s: float = 0.0


class WindowPolicy(Protocol):
    """Window policy of one draft–target pair, called before each of its rounds."""

    def choose(self, state: WindowState) -> int:
        """Return γ, tokens to draft. γ = 1 is fused: the round stays in the cloud, without the device; 0: the target
        decodes alone for a while."""
        ...


@runtime_checkable
class Remembering(WindowPolicy, Protocol):
    """A window policy with state of its own.

    memory: the whole state between rounds; another object of the policy, given it, decides alike from then on.
    """

    memory: tuple[float, ...]


window: Registry[WindowPolicy] = Registry("window")


@window.register("static")
class StaticWindow:
    """Fixed window. size: γ, tokens."""

    def __init__(self, size: int = 4) -> None:
        if size < 1:
            raise ValueError(f"window size must be at least 1 token, not {size}")
        self.size = size

    def choose(self, state: WindowState) -> int:
        return self.size


@window.register("dynamic")
class DynamicWindow:
    """DSD's heuristic: one token more after high acceptance, one token less after low.

    start: the first window.
    low: acceptance below which the window shrinks.
    high: acceptance above which it grows.
    least, most: bounds of the window.
    """

    def __init__(
        self, start: int = 4, low: float = 0.25, high: float = 0.75, least: int = 2, most: int = 12
    ) -> None:
        if not 1 <= least <= start <= most or not 0 <= low <= high <= 1:
            raise ValueError(
                f"needs 1 ≤ least ≤ start ≤ most and 0 ≤ low ≤ high ≤ 1, not {least}, {start}, {most}, {low}, {high}"
            )
        self.low, self.high, self.least, self.most = low, high, least, most
        self._size = start

    @property
    def memory(self) -> tuple[float, ...]:
        return (self._size,)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        self._size = int(memory[0])

    def choose(self, state: WindowState) -> int:
        if state.previous > 0:  # something has been seen
            if state.acceptance > self.high:
                self._size = min(self.most, self._size + 1)
            elif state.acceptance < self.low:
                self._size = max(self.least, self._size - 1)
        return self._size
