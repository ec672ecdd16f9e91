"""What is asked of the simulated system: requests with their lengths, arrivals and acceptance."""

from __future__ import annotations

from cluster.simulator.workload.build import build
from cluster.simulator.workload.request import Request
from cluster.simulator.workload.settings import WorkloadSettings
from cluster.simulator.workload.traces import TraceError, read_trace, write_trace

__all__ = ["Request", "TraceError", "WorkloadSettings", "build", "read_trace", "write_trace"]
