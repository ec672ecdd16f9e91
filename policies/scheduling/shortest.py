"""Shortest remaining output first: the least mean time in the system, where lengths are known or predicted well."""

from __future__ import annotations

from tandem.policies.scheduling.base import EngineLoad, Ints, fit, scheduling


@scheduling.register("srpt")
class ShortestRemaining:
    """Runs the requests that are nearest to their limit of output tokens, which stands for a prediction of the length.

    interval_s: seconds between decisions.
    """

    def __init__(self, interval_s: float = 1.0) -> None:
        if interval_s <= 0:
            raise ValueError(f"interval_s must be above 0, not {interval_s}")
        self.interval_s = interval_s

    def choose(self, load: EngineLoad) -> Ints:
        left = load.missing * load.token_s + (load.longest - load.received) * load.base_s
        return fit(load, (left + 1e-9 * load.arrival).argsort())
