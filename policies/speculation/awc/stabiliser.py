"""Stabiliser: keeps the window from jumping (DSD, section 4.3); one per draft–target pair."""

from __future__ import annotations

from tandem.policies.speculation.arithmetic import MAX_WINDOW


class Stabiliser:
    """Clamp to [2, 12], exponential moving average, rounding; hysteresis towards fused.

    DSD's paper treats fused as a window of 1 and averages it with the others. But there is nothing in between: on a
    slow link a wide window may be good and fused even better, while the narrow windows between them are worse than
    both. So windows are averaged with windows, in fused mode too, and fused predictions are counted.

    start: window before the first prediction.
    ema: weight of the newest prediction.
    patience: consecutive predictions of fused before the mode changes, until when the window stays; leaving fused
        needs no patience.
    """

    def __init__(self, start: int = 4, ema: float = 0.4, patience: int = 2) -> None:
        if not 0 < ema <= 1 or patience < 1:
            raise ValueError(f"needs 0 < ema ≤ 1 and patience ≥ 1, not {ema} and {patience}")
        self._ema, self._patience = ema, patience
        self._smoothed: float | None = None
        self._fused = 0
        self._window = start

    @property
    def memory(self) -> tuple[float, float, float]:
        """Mean of the predictions (0 before the first), predictions of fused in a row, and the window."""
        return self._smoothed or 0.0, self._fused, self._window

    @memory.setter
    def memory(self, memory: tuple[float, float, float]) -> None:
        smoothed, fused, window = memory
        self._smoothed, self._fused, self._window = smoothed or None, int(fused), int(window)

    def stabilise(self, prediction: float, fused: bool) -> int:
        """Return γ, 1 (fused) … 12.

        prediction: the best of the windows from 2 on.
        fused: whether fused is predicted to be better.
        """
        clamped = min(float(MAX_WINDOW), max(2.0, prediction))
        if self._smoothed is None:
            self._smoothed = clamped
        else:
            self._smoothed += self._ema * (clamped - self._smoothed)
        self._fused = self._fused + 1 if fused else 0
        if self._fused >= self._patience:
            self._window = 1
        elif not fused:
            self._window = int(self._smoothed + 0.5)
        return self._window
