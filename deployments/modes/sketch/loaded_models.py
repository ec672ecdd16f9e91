"""Loaded models: which of its models a device has loaded, as the router knows it, and takes the next job with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tandem.cluster.devices.record import DeviceRecord, ModelRecord
from tandem.policies.sketch.selection import ModelSelection

TOLD_S = 2.0
"""Seconds within which a device tells that it has no session left: it registers every second."""


class DeviceModels:
    """Models of one device.

    names: those of its models that expand, the smallest first.
    loaded: the one that it has, or is about to have.
    freed_s: when its last expansion was over.
    """

    __slots__ = ("_record", "_selection", "freed_s", "loaded", "names")

    def __init__(self, record: DeviceRecord, models: Sequence[ModelRecord]) -> None:
        self.names = tuple(model.name for model in models)
        self.loaded, self._record = record.model, record
        self.freed_s = float("-inf")
        current = self.names.index(record.model) if record.model in self.names else 0
        self._selection = ModelSelection([model.load_s for model in models], current)

    def see(self, record: DeviceRecord, models: Sequence[ModelRecord]) -> None:
        """Update from the device's record. Another model than before may have been loaded for another request; an
        unchanged one may be older than the choice made here."""
        if record.model != self._record.model and record.model != self.loaded:
            self.loaded = record.model
            if record.model in self.names:
                self._selection.switch(self.names.index(record.model))
        self._record = record
        self._selection.load_s = tuple(model.load_s for model in models)

    def busy_otherwise(self, now_s: float) -> bool:
        """Whether it works for others than expansions, who want the model that is loaded."""
        return self._record.sessions > 0 and now_s - self.freed_s > TOLD_S

    def choose(
        self, able: Collection[str], remaining_s: Mapping[str, float], budget_s: float, full: bool
    ) -> str:
        """Return the model for the next job, which counts as loaded from then on. See ModelSelection; while a time is
        unknown (0), the loaded one is kept if it is able."""
        known = budget_s > 0 and all(remaining_s[name] > 0 for name in self.names)
        if known or self.loaded not in able:
            index = {name: n for n, name in enumerate(self.names)}
            times_s = [remaining_s[name] for name in self.names]
            chosen = self._selection.choose(times_s, budget_s, full, {index[name] for name in able})
            self.loaded = self.names[chosen]
        return self.loaded
