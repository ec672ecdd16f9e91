"""What is asked of the simulated system: requests with their lengths, arrivals and acceptance."""

from __future__ import annotations

from simulator.workload.build import build
from simulator.workload.request import Outline, Request
from simulator.workload.settings import WorkloadSettings
from simulator.workload.traces import TraceError, read_trace

__all__ = ["Outline", "Request", "TraceError", "WorkloadSettings", "build", "read_trace"]
