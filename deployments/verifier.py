"""The verifier: the cloud's model. It decodes for mode cloud and verifies drafts for mode speculative."""

from __future__ import annotations

from ray import serve

from tandem.deployments.pools.replica import EngineEndpoint


@serve.deployment
class Verifier(EngineEndpoint):
    """A pool of replicas of the target model."""
