"""The drafter: a small model in the cloud, which drafts where no device takes part (fused speculation)."""

from __future__ import annotations

from ray import serve

from tandem.deployments.pools.replica import EngineEndpoint


@serve.deployment
class Drafter(EngineEndpoint):
    """A pool of replicas of the draft model."""
