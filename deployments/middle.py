"""The middle: the layers of a split model between those of devices. It sees hidden states, and no token."""

from __future__ import annotations

from ray import serve

from tandem.deployments.pools.replica import EngineEndpoint


@serve.deployment
class Middle(EngineEndpoint):
    """A pool of replicas of a model's middle. A device whose replica goes sends its hidden states to another."""
