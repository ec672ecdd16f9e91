"""Settings that a deployment takes over while it runs: Serve's `user_config`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from tandem.deployments.config.explain import explain
from tandem.deployments.config.settings import Strict

logger = logging.getLogger("ray.serve")

M = TypeVar("M", bound=Strict)


def in_place(model: type[M], config: Mapping[str, Any]) -> M | None:
    """The changes; None, and an error in the log, where they make no sense: what held then still holds. (Serve would
    end a replica that raises, and its successors as well.)"""
    try:
        return model.model_validate(config)
    except ValidationError as error:
        logger.error("user_config is not taken over: %s", explain(error, model))
        return None
