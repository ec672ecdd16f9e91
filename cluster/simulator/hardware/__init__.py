"""How long hardware takes: profiled tables where there are some, a roofline estimate where there are none."""

from __future__ import annotations

from cluster.simulator.hardware.catalog import UnknownHardware, kv_bytes, kv_tokens, timer
from cluster.simulator.hardware.predict import predict
from cluster.simulator.hardware.timer import MeasuredTimer, OperatorTimer, RateTimer, StepTimer

__all__ = [
    "MeasuredTimer",
    "OperatorTimer",
    "RateTimer",
    "StepTimer",
    "UnknownHardware",
    "kv_bytes",
    "kv_tokens",
    "predict",
    "timer",
]
