"""Asking the router: what it refuses is raised here as it was there."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.handle import DeploymentHandle

logger = logging.getLogger("ray.serve")

AGAIN_S = 0.1


async def ask(router: DeploymentHandle, method: str, *args: object) -> Any:
    """Call the router; what it raises arrives without Ray's wrapping. If it dies over it, its successor is asked."""
    while True:
        try:
            answer = await getattr(router, method).remote(*args)
        except RayTaskError as error:
            raise error.cause from None
        except RayActorError as error:
            logger.warning("the router died: %s", type(error).__name__)
            await asyncio.sleep(AGAIN_S)
            continue
        if isinstance(answer, Exception):  # a refusal, see `deployments.control.router.told`
            raise answer
        return answer
