"""Calls from one deployment to the single replica of another.

Refusals are returned, and raised at the caller: Serve would log a raised one as a failure, with a stack trace.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from inspect import getmembers, iscoroutinefunction
from typing import Any, Concatenate, ParamSpec, TypeVar

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.handle import DeploymentHandle

from tandem.deployments.request.assignment import Unavailable

logger = logging.getLogger("ray.serve")

AGAIN_S = 0.1
"""Pause before a call is repeated whose replica died."""

C = TypeVar("C", bound=type)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """Result of a call that was refused; the caller raises `error`."""

    error: Exception


class Superseded:
    """Result of a call to a replica that another one has replaced; the caller asks that one."""


def refuses(*errors: type[Exception], superseded: tuple[type[Exception], ...] = ()) -> Callable[[C], C]:
    """Make the public coroutine methods of a deployment's class return these errors as `Refused` or `Superseded`."""

    def wrap(deployment: C) -> C:
        for name, method in getmembers(deployment, iscoroutinefunction):
            if not name.startswith("_"):
                setattr(deployment, name, _returning(method, errors, superseded))
        return deployment

    return wrap


def _returning(
    method: Callable[P, Coroutine[Any, Any, T]],
    errors: tuple[type[Exception], ...],
    superseded: tuple[type[Exception], ...],
) -> Callable[P, Coroutine[Any, Any, T | Refused | Superseded]]:
    @wraps(method)
    async def returning(*args: P.args, **kwargs: P.kwargs) -> T | Refused | Superseded:
        try:
            return await method(*args, **kwargs)
        except superseded:
            return Superseded()
        except errors as error:
            return Refused(error)

    return returning


class HandleClient:
    """Calls the methods of a deployment, each named as an attribute of its class: `Router.assign`."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def ask(
        self,
        within_s: float | None,
        method: Callable[Concatenate[Any, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return the answer, or raise the refusal. If the replica dies or is superseded meanwhile, its successor is
        asked.

        Raises Unavailable after `within_s` seconds; None for no limit.
        """
        try:
            async with asyncio.timeout(within_s):
                return await self._answer(method.__name__, args, kwargs)
        except TimeoutError:
            raise Unavailable(f"the {self._handle.deployment_name.lower()} does not answer") from None

    async def _answer(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        while True:
            try:
                answer = await getattr(self._handle, method).remote(*args, **kwargs)
            except RayTaskError as error:
                raise error.cause from None
            except RayActorError as error:
                logger.warning("%s: the replica died: %s", method, type(error).__name__)
                await asyncio.sleep(AGAIN_S)
                continue
            if isinstance(answer, Superseded):
                await asyncio.sleep(AGAIN_S)
                continue
            if isinstance(answer, Refused):
                raise answer.error
            return answer

    def tell(
        self, method: Callable[Concatenate[Any, P], Awaitable[object]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call the method without waiting for it."""
        getattr(self._handle, method.__name__).remote(*args, **kwargs)
