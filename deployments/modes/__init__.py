"""The modes, one file each. This is the only list of them: everything else asks here."""

from __future__ import annotations

from deployments.modes.base import Mode
from deployments.modes.cloud import CloudMode
from deployments.modes.device import DeviceMode
from deployments.modes.race import RaceMode
from deployments.modes.speculative import SpeculativeMode

MODES: dict[str, type[Mode]] = {
    mode.name: mode for mode in (CloudMode, DeviceMode, SpeculativeMode, RaceMode)
}
"""By the names that clients ask for."""
