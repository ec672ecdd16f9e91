"""Workload of the simulated system: requests with their lengths, arrivals and acceptance."""

from __future__ import annotations

from tandem.simulator.workload.build import build
from tandem.simulator.workload.request import Outline, Request
from tandem.simulator.workload.settings import WorkloadSettings
from tandem.simulator.workload.traces import TraceError, read_trace

__all__ = ["Outline", "Request", "TraceError", "WorkloadSettings", "build", "read_trace"]
