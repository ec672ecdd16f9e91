"""Client of the router, over a handle without Serve: how many calls a request takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandem.deployments.access.accounts import Terms
from tandem.deployments.admission.entry import Entry, Passage
from tandem.deployments.config.settings import GateSettings, LimitSettings
from tandem.deployments.control.router_client import RouterClient
from tandem.deployments.request.assignment import Assignment, RoutingRequest

FIRST, LATER = Assignment("cloud", {}), Assignment("device", {})
ENTRY = Entry(1, "a", 2, 10, Terms(0.5, 1e-7))


class Router:
    """full: whether an assignment has to wait. calls: of methods, by name."""

    def __init__(self, full: bool = False) -> None:
        self.full, self.calls = full, list[str]()

    async def enter(
        self, replica: str, entry: Entry, left: Sequence[int], wanted: Sequence[RoutingRequest]
    ) -> tuple[Passage, list[Assignment | None]]:
        return Passage(), [None if self.full else FIRST for _ in wanted]

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        return LATER


class Handle:
    deployment_name = "Router"

    def __init__(self, router: Router) -> None:
        self._router = router

    def __getattr__(self, name: str) -> Any:
        router = self._router

        class Method:
            async def remote(_, *args: Any) -> Any:
                router.calls.append(name)
                return await getattr(router, name)(*args)

        return Method()


def client(router: Router) -> RouterClient:
    return RouterClient(Handle(router), LimitSettings(), GateSettings())  # type: ignore[arg-type]


async def test_answers_are_assigned_in_the_call_that_admits_their_request() -> None:
    router = Router()
    asking, wanted = client(router), [RoutingRequest(request=number) for number in (1, 2)]
    await asking.enter("api", ENTRY, (), wanted)
    assert [await asking.assign(each) for each in wanted] == [FIRST, FIRST]
    assert router.calls == ["enter"]
    assert await asking.assign(RoutingRequest(request=1, lost=("verifier@a",))) == LATER
    assert router.calls == ["enter", "assign"]


async def test_what_could_not_be_assigned_at_once_is_asked_for() -> None:
    router = Router(full=True)
    asking, wanted = client(router), RoutingRequest(request=1)
    await asking.enter("api", ENTRY, (), [wanted])
    assert await asking.assign(wanted) == LATER
    assert router.calls == ["enter", "assign"]


async def test_a_request_without_admission_is_assigned_as_ever() -> None:
    router = Router()
    assert await client(router).assign(RoutingRequest(request=7)) == LATER
    assert router.calls == ["assign"]
