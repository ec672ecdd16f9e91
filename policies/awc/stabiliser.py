"""Keeps predictions from making the window jump (DSD, section 4.3); one per draft–target pair."""

from __future__ import annotations

from policies.speculation import MAX_WINDOW

NEAR_FUSED = 1.5


class Stabiliser:
    """Clamp to [1, 12], exponential moving average, hysteresis towards fused, quantise to the nearest integer.

    start: the window before the first prediction; ema: weight of the newest prediction; patience: consecutive
    smoothed predictions near 1 before the mode changes to fused, until when the window stays as it was.
    Leaving fused needs no patience: one smoothed prediction that is not near 1.
    """

    def __init__(self, start: int = 4, ema: float = 0.4, patience: int = 2) -> None:
        if not 0 < ema <= 1 or patience < 1:
            raise ValueError(f"needs 0 < ema ≤ 1 and patience ≥ 1, not {ema} and {patience}")
        self._ema, self._patience = ema, patience
        self._smoothed: float | None = None
        self._near = 0
        self._window = start

    def settle(self, prediction: float) -> int:
        """γ for a prediction: 1 (fused) … 12."""
        clamped = min(float(MAX_WINDOW), max(1.0, prediction))
        if self._smoothed is None:
            self._smoothed = clamped
        else:
            self._smoothed += self._ema * (clamped - self._smoothed)
        if self._smoothed > NEAR_FUSED:
            self._near = 0
            self._window = int(self._smoothed + 0.5)
        else:
            self._near += 1
            if self._near >= self._patience:
                self._window = 1
        return self._window
