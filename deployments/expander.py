"""The expander: a pool of small models in the cloud."""

from __future__ import annotations

from ray import serve

from tandem.deployments.pools.replica import EngineEndpoint


@serve.deployment
class Expander(EngineEndpoint):
    """A pool of replicas of a small model, for work that needs no large one."""
