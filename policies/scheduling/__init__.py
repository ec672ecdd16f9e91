"""Which requests run: who of all that want tokens holds the engine's memory and takes part in its steps.

Batching then shares one step among those that run; scheduling decides, every now and then, who they are.
"""

from tandem.policies.scheduling.base import EngineLoad, SchedulingPolicy, fit, scheduling

__all__ = ["EngineLoad", "SchedulingPolicy", "fit", "scheduling"]
