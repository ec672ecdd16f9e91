"""How many replicas a pool is to have.

Ray Serve starts and stops them; it counts ongoing requests, of which there are none here, as tokens go past it. So
replicas tell of their work themselves, and a policy of this family decides.
"""

from tandem.policies.autoscaling.base import (
    Autoscaler,
    AutoscalingPolicy,
    Bounds,
    PoolState,
    ReplicaState,
    autoscaling,
)

__all__ = ["Autoscaler", "AutoscalingPolicy", "Bounds", "PoolState", "ReplicaState", "autoscaling"]
