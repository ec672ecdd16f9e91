"""Hardware models: profiled tables if there are some, a roofline estimate otherwise; and step times measured live."""

from __future__ import annotations

from tandem.simulator.hardware.batching import Batching, derive_batching
from tandem.simulator.hardware.catalog import check, kv_bytes, kv_tokens, shape_of, timer
from tandem.simulator.hardware.measured import TableTimer, table
from tandem.simulator.hardware.profiles import UnknownHardware, data_folder
from tandem.simulator.hardware.split import DrafterKind, Ends, MeasuredEnds, ends, middle_timer
from tandem.simulator.hardware.timer import MeasuredTimer, OperatorTimer, RateTimer, StepTimer

__all__ = [
    "Batching",
    "DrafterKind",
    "Ends",
    "MeasuredEnds",
    "MeasuredTimer",
    "OperatorTimer",
    "RateTimer",
    "StepTimer",
    "TableTimer",
    "UnknownHardware",
    "check",
    "data_folder",
    "derive_batching",
    "ends",
    "kv_bytes",
    "kv_tokens",
    "middle_timer",
    "shape_of",
    "table",
    "timer",
]
