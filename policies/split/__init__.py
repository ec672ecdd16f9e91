"""Split models: one model split between a device and the cloud, HAT (Xie et al. 2025).

The device holds the first m layers and the head, so that tokens never leave it, and an adapter that makes a drafter of
them; the cloud holds the layers between. `Split` takes the decisions of a request, with a policy for each of
`chunking`, `drafting` and `parallel_drafting`; `choose_split_point` decides m.
"""

from tandem.policies.split.monitor import CloudMonitor, DeviceMonitor, LinearDelay, MovingDelay
from tandem.policies.split.point import Refusal, SplitDevice, SplitPoint, Workload, choose_split_point
from tandem.policies.split.request import Split, SplitPolicies, TokenBytes

__all__ = [
    "CloudMonitor",
    "DeviceMonitor",
    "LinearDelay",
    "MovingDelay",
    "Refusal",
    "Split",
    "SplitDevice",
    "SplitPoint",
    "SplitPolicies",
    "TokenBytes",
    "Workload",
    "choose_split_point",
]
