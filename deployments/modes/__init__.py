"""The modes, a file or a folder each. This is the only list of them: everything else asks here."""

from __future__ import annotations

from tandem.deployments.modes.base import Mode
from tandem.deployments.modes.cloud import CloudMode
from tandem.deployments.modes.device import DeviceMode
from tandem.deployments.modes.race.mode import RaceMode
from tandem.deployments.modes.sketch.mode import SketchMode
from tandem.deployments.modes.speculative.mode import SpeculativeMode
from tandem.deployments.modes.split import SplitMode

MODES: dict[str, type[Mode]] = {
    mode.name: mode for mode in (CloudMode, DeviceMode, SpeculativeMode, RaceMode, SplitMode, SketchMode)
}
"""Modes, by the names that clients ask for."""
AUTO = "auto"
"""Name for the mode that the server's collaboration policy chooses, as it does for requests that name none."""
AT_FRONT_DOORS: dict[str, type[Mode]] = {name: mode for name, mode in MODES.items() if not mode.private}
"""Modes that the API can drive, not only the device from which the request comes."""
AT_DEVICES: dict[str, type[Mode]] = {
    name: mode for name, mode in MODES.items() if mode.afar or mode.device_role() is not None
}
"""Modes that a device's own program can drive."""
