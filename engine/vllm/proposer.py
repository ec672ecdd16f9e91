"""A proposer that proposes nothing: with it vLLM verifies, and the drafts come from devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NullProposer:
    """Proposer without drafts, which vLLM loads for the method "custom_class"."""

    def __init__(self, vllm_config: Any) -> None:
        pass

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no model."""

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return no drafts."""
        return [[] for _ in sampled_token_ids]
