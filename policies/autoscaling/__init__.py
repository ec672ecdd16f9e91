"""Autoscaling: how many replicas a pool should have.

Ray Serve starts and stops them. Its own policy counts ongoing requests, of which there are none here, as tokens bypass
it. So replicas report their work themselves, and a policy of this family decides.
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
