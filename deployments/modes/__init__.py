"""The modes, one file each. This is the only list of them: everything else asks here."""

from __future__ import annotations

from deployments.modes.base import Mode
from deployments.modes.cloud import CloudMode
from deployments.modes.device import DeviceMode
from deployments.modes.race import RaceMode
from deployments.modes.sketch import SketchMode
from deployments.modes.speculative import SpeculativeMode
from deployments.modes.split import SplitMode

MODES: dict[str, type[Mode]] = {
    mode.name: mode for mode in (CloudMode, DeviceMode, SpeculativeMode, RaceMode, SplitMode, SketchMode)
}
"""By the names that clients ask for."""
AT_FRONT_DOORS: dict[str, type[Mode]] = {name: mode for name, mode in MODES.items() if not mode.private}
"""Those whose requests somebody else than the device can drive that they come from."""
