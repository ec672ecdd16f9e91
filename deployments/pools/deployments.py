"""The pools as Serve deployments: replicas of an engine each."""

from __future__ import annotations

from ray import serve

from tandem.deployments.pools.replica import EngineEndpoint


@serve.deployment
class Verifier(EngineEndpoint):
    """The target model: decodes by itself, and verifies drafts."""


@serve.deployment
class Drafter(EngineEndpoint):
    """A small model that drafts where no device does."""


@serve.deployment
class Expander(EngineEndpoint):
    """A small model, for work that needs no large one."""


@serve.deployment
class Middle(EngineEndpoint):
    """The layers of a split model between those of devices: sees hidden states, and no token."""
