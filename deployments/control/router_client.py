"""Asking the router, and the scheduler: what they refuse is raised here as it was there."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.handle import DeploymentHandle

logger = logging.getLogger("ray.serve")

AGAIN_S = 0.1


async def ask(deployment: DeploymentHandle, method: str, *args: object) -> Any:
    """Call the one replica; what it raises arrives without Ray's wrapping. If it dies over it, its successor
    is asked."""
    while True:
        try:
            answer = await getattr(deployment, method).remote(*args)
        except RayTaskError as error:
            raise error.cause from None
        except RayActorError as error:
            logger.warning("%s: the replica died: %s", method, type(error).__name__)
            await asyncio.sleep(AGAIN_S)
            continue
        if isinstance(answer, Exception):  # a refusal, see `deployments.control.router.told`
            raise answer
        return answer
