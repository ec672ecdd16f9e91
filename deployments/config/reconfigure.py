"""Settings that a deployment takes over while it runs: Serve's `user_config`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError, model_validator

from tandem.deployments.config.explain import explain
from tandem.engine.config import Strict

logger = logging.getLogger("ray.serve")


class Live(Strict):
    """Settings that a deployment takes over while it runs; null is as if nothing was said."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_unsaid(cls, raw: Any) -> Any:
        return {k: v for k, v in raw.items() if v is not None} if isinstance(raw, dict) else raw


L = TypeVar("L", bound=Live)


def in_place(started: L, config: Mapping[str, Any]) -> L | None:
    """Return the settings that a deployment was started with, changed as `config` says.

    None, and an error in the log, if `config` is invalid: the settings stay. (Serve would end a replica that raises,
    and its successors.)
    """
    try:
        said = type(started).model_validate(config)
    except ValidationError as error:
        logger.error("user_config is not taken over: %s", explain(error, type(started)))
        return None
    return started.model_copy(update={key: getattr(said, key) for key in said.model_fields_set})
