"""Calls between deployments, over a handle without Serve."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from tandem.deployments.control.calls import AGAIN_S, HandleClient, Refused, refuses
from tandem.deployments.request.assignment import Unavailable
from tandem.engine.base import EngineError
from tests.virtual import in_virtual_time, now_s


@refuses(EngineError, superseded=(KeyError,))
class Divider:
    """deaths: how many more replicas die over a call, or, where it is told so, are superseded."""

    def __init__(self, deaths: int = 0, death: type[Exception] = ActorDiedError) -> None:
        self.deaths, self._death = deaths, death

    async def divide(self, dividend: int, divisor: int) -> float:
        if self.deaths:
            self.deaths -= 1
            raise self._death
        if divisor < 0:
            raise EngineError("negative")
        return dividend / divisor

    async def hang(self) -> None:
        await asyncio.Event().wait()


class Handle:
    """Handle like Serve's: a replica's error arrives in a RayTaskError."""

    deployment_name = "Divider"

    def __init__(self, replica: Divider) -> None:
        self._replica = replica

    def __getattr__(self, method: str) -> Any:
        class Method:
            async def remote(_, *args: Any) -> Any:
                try:
                    return await getattr(self._replica, method)(*args)
                except ArithmeticError as error:
                    raise RayTaskError(method, "traceback", error) from None

        return Method()


def client(replica: Divider) -> HandleClient:
    return HandleClient(Handle(replica))  # type: ignore[arg-type]


async def test_a_refusal_is_returned_and_raised_at_the_caller() -> None:
    assert isinstance(await Divider().divide(1, -1), Refused)
    with pytest.raises(EngineError, match="negative"):
        await client(Divider()).ask(None, Divider.divide, 1, -1)


async def test_a_failure_is_raised_without_rays_wrapping() -> None:
    with pytest.raises(ZeroDivisionError):
        await client(Divider()).ask(None, Divider.divide, 1, 0)


@in_virtual_time
@pytest.mark.parametrize("death", [ActorDiedError, KeyError])
async def test_if_the_replica_dies_or_is_superseded_its_successor_is_asked(death: type[Exception]) -> None:
    replica = Divider(deaths=2, death=death)
    assert await client(replica).ask(1.0, Divider.divide, 1, 2) == 0.5
    assert (replica.deaths, now_s()) == (0, 2 * AGAIN_S)


@in_virtual_time
@pytest.mark.parametrize("replica", [Divider(), Divider(deaths=1000)])
async def test_no_answer_in_time(replica: Divider) -> None:
    method = Divider.divide if replica.deaths else Divider.hang
    with pytest.raises(Unavailable, match="the divider does not answer"):
        await client(replica).ask(5.0, method, *((1, 2) if replica.deaths else ()))
    assert now_s() == 5.0
