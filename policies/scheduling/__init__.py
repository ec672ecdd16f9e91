"""Scheduling: which requests hold the engine's memory and take part in its steps.

Batching then shares one step among the requests that run; scheduling decides now and then which these are.
"""

from tandem.policies.scheduling.base import EngineLoad, SchedulingPolicy, fit, scheduling

__all__ = ["EngineLoad", "SchedulingPolicy", "fit", "scheduling"]
