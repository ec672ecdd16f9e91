"""An Andes-like policy: quality of experience gained per token of KV cache, with preemption by recomputation.

Source: Liu et al., "Andes: Defining and Enhancing Quality-of-Experience in LLM-Based Text Streaming Services" (2024);
    TokenFlow's baseline. "Like": it packs greedily as in the paper, with its cap on preemptions. But there QoE is the
    share of the area under a reader's expected timeline (first token after `ttft_s`, then `rate` tokens/s) that the
    delivered one covers; here it is the share of the tokens expected by the end of the next interval that will have
    come.
"""

from __future__ import annotations

import numpy as np

from tandem.policies.scheduling.base import EngineLoad, Floats, Ints, fit, scheduling


@scheduling.register("andes")
class Andes:
    """Andes-like scheduling.

    interval_s: seconds between decisions.
    ttft_s: expected time of the first token.
    preemptions: share of the running requests that may be preempted at a time.
    """

    def __init__(self, interval_s: float = 0.5, ttft_s: float = 1.0, preemptions: float = 0.25) -> None:
        if interval_s <= 0 or ttft_s <= 0 or not 0 <= preemptions <= 1:
            raise ValueError(
                "needs interval_s > 0, ttft_s > 0 and 0 ≤ preemptions ≤ 1, not "
                f"{interval_s}, {ttft_s}, {preemptions}"
            )
        self.interval_s, self._ttft_s, self._preemptions = interval_s, ttft_s, preemptions

    def choose(self, load: EngineLoad) -> Ints:
        if load.running.all() and len(load) <= load.places and int(load.tokens.sum()) <= load.capacity:
            return load.arrival.argsort(kind="stable")
        density = self._gain(load) / load.tokens
        chosen = fit(load, np.lexsort((load.arrival, -density)))
        dropped = np.setdiff1d(np.flatnonzero(load.running), chosen)
        allowed = int(self._preemptions * np.count_nonzero(load.running))
        if len(dropped) <= allowed:
            return chosen
        # over the cap, the requests with the highest density stay
        stay = dropped[density[dropped].argsort()][allowed:]
        key = -density
        key[stay] = -np.inf
        key[np.setdiff1d(np.flatnonzero(load.running), dropped)] = -np.inf
        return fit(load, np.lexsort((load.arrival, key)))

    def _gain(self, load: EngineLoad) -> Floats:
        """Return QoE with the next interval's tokens less QoE without."""
        waits_s = np.where(load.running, 0.0, load.missing * load.token_s)
        served = np.maximum(load.interval_s - waits_s, 0.1 * load.interval_s) / (
            load.base_s + load.token_s * min(load.width, len(load))
        )
        later = load.age_s + load.interval_s - self._ttft_s
        expected = np.maximum(load.rate * later, 1.0)
        gain: Floats = np.minimum((load.received + served) / expected, 1.0) - np.minimum(
            load.received / expected, 1.0
        )
        return gain
