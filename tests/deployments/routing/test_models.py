"""Several models behind one router: requests stay among their model's pools, and share the devices."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.learning.report import Report
from tandem.deployments.modes import AT_FRONT_DOORS
from tandem.deployments.request.assignment import EndpointInfo, NoEndpoint, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.job import NoSuchDevice
from tandem.deployments.request.pools import DRAFTER, EXPANDER, VERIFIER, pool_name
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.models import ModelRoutings, RoutedModel
from tandem.deployments.routing.routing import Routing
from tandem.policies.cost import PerToken, per_million
from tandem.policies.routing.collaboration import ANY_DEVICE, collaboration
from tandem.policies.routing.replica import routing

DEAR = PerToken(3e-6, 4e-6)
MODELS = (RoutedModel("a", "", 4, 8), RoutedModel("org/b", "org-b", 4, 8, DEAR), RoutedModel("c", "c", 4, 8))
NAMES = [model.name for model in MODELS]
PHONE = DeviceRecord(name="phone", address="p:1", profile="native", model="small", vocabulary="v")
LAPTOP = msgspec.structs.replace(PHONE, name="laptop", address="l:1", rtt_s=0.001)


def replica(pool: str, model: str, number: int = 0) -> EndpointInfo:
    """Return a replica whose address tells its model."""
    address = f"{model}:{pool}:{number}"
    return EndpointInfo(f"{pool} {address}", address, pool, model=model)


def snapshot(*devices: DeviceRecord, pools: tuple[str, ...] = (VERIFIER, DRAFTER, EXPANDER)) -> Snapshot:
    """Return what is up if each model has two replicas of each pool."""
    up = {
        pool_name(pool, model.suffix): tuple(replica(pool, model.name, number) for number in range(2))
        for model in MODELS
        for pool in pools
    }
    return Snapshot(1, up, {device.name: device for device in devices})


def routings(seen: Snapshot) -> ModelRoutings:
    def make(model: RoutedModel) -> Routing:
        policy = collaboration.create("explicit")
        new_routing = partial(routing.create, "cheapest")
        return Routing(Assigner(policy, new_routing, model.batch_limit, model.price))

    made = ModelRoutings(MODELS, make)
    made.see(seen)
    return made


requests = st.builds(
    RoutingRequest,
    model=st.sampled_from(["", *NAMES]),
    mode=st.sampled_from(["cloud", "device", "speculative", "race", "sketch"]),
    device=st.sampled_from([None, "phone", ANY_DEVICE]),
    sent=st.integers(0, 3),
    lost=st.lists(
        st.sampled_from([replica(VERIFIER, name).key for name in NAMES] + ["phone@p:1"]), max_size=2
    ).map(tuple),
)


@pytest.mark.virtual_time
@given(st.lists(requests, min_size=1, max_size=8))
async def test_a_request_never_reaches_another_models_pool(wanted: list[RoutingRequest]) -> None:
    assert set(AT_FRONT_DOORS) == {"cloud", "device", "speculative", "race", "sketch"}
    there = routings(snapshot(PHONE, LAPTOP))
    for each in wanted:
        made = await there.assign(each)
        assert made.endpoints
        for endpoint in made.endpoints.values():
            assert endpoint.device or endpoint.model == (each.model or "a")


@pytest.mark.virtual_time
async def test_a_request_waits_for_its_own_models_pool() -> None:
    seen = snapshot()
    there = routings(replace(seen, pools={**seen.pools, "verifier-org-b": ()}))
    assert (await there.assign(RoutingRequest("cloud", model="a"))).mode == "cloud"
    waiting = asyncio.create_task(there.assign(RoutingRequest("cloud", model="org/b")))
    await asyncio.sleep(1)
    assert there.take_waiting() == {"verifier-org-b": 1}
    there.see(seen)
    assert (await waiting).endpoints["target"].model == "org/b"


@pytest.mark.virtual_time
async def test_a_devices_load_counts_for_all_models() -> None:
    there = routings(snapshot(PHONE, LAPTOP))
    wanted = RoutingRequest("device", ANY_DEVICE)
    taken = [(await there.assign(replace(wanted, model=model))).device for model in ("a", "org/b", "c", "a")]
    assert sorted(taken) == ["laptop", "laptop", "phone", "phone"]
    assert taken[0] != taken[1], "the first model's request is known to the second"


@pytest.mark.virtual_time
async def test_a_device_may_be_for_some_models_only() -> None:
    own = msgspec.structs.replace(LAPTOP, serves=("org/b", "c"))
    there = routings(snapshot(PHONE, own))
    for model, devices in (("a", {"phone"}), ("org/b", {"phone", "laptop"})):
        assert set(there.of(model).assigner.devices) == devices
    with pytest.raises(NoSuchDevice):
        await there.assign(RoutingRequest("device", "laptop", model="a"))
    assert set((await there.snapshot()).devices) == {"phone", "laptop"}
    there.see(
        Snapshot(2, snapshot().pools, {"phone": msgspec.structs.replace(PHONE, serves=("a",))}, since=1)
    )
    assert set(there.of("a").assigner.devices) == {"phone"}
    assert set(there.of("c").assigner.devices) == {"laptop"}, "it has changed its mind"


@pytest.mark.virtual_time
async def test_a_request_has_its_own_models_prices() -> None:
    """In what it is billed, in a race's decisions and in the choice of a service, whose own prices go first."""
    there = routings(snapshot(PHONE))
    for model, price in (("a", per_million(0.15, 0.6)), ("org/b", DEAR), ("", per_million(0.15, 0.6))):
        assert (await there.assign(RoutingRequest("cloud", model=model))).prices.server == price
        raced = await there.assign(RoutingRequest("race", "phone", model=model))
        assert raced.prices.server == raced.briefing.costs.server == price  # type: ignore[attr-defined]
    for own, taken in ((PerToken(2e-6, 4e-6), 1), (PerToken(4e-6, 4e-6), 0)):
        up = replica(VERIFIER, "org/b"), replace(replica(VERIFIER, "org/b", 1), price=own)
        there.see(Snapshot(2, {**snapshot().pools, "verifier-org-b": up}, {}))
        made = await there.assign(RoutingRequest("cloud", prompt_tokens=9, max_tokens=9, model="org/b"))
        assert made.endpoints["target"] == up[taken]
        assert made.prices.server == (own if taken else DEAR)


@pytest.mark.virtual_time
async def test_the_whole_snapshot_is_all_models() -> None:
    seen = snapshot(PHONE)
    assert (await routings(seen).snapshot()) == seen


@pytest.mark.virtual_time
async def test_reports_teach_their_model() -> None:
    there = routings(snapshot(PHONE))
    for tokens, model in ((7, "org/b"), (9, ""), (11, "gone")):
        there.learn(Report("", "", tokens, whole=True, bill=Bill(), model=model))
    learnt = {name: there.of(name).modes["race"].rivals.outputs for name in NAMES}  # type: ignore[attr-defined]  # of the mode's part
    assert [learnt[name].snapshot().seen for name in NAMES] == [1, 1, 0]


async def test_a_model_that_the_router_does_not_know_is_no_first_one() -> None:
    with pytest.raises(NoEndpoint, match="does not know the model 'new'"):
        await routings(snapshot()).assign(RoutingRequest("cloud", model="new"))


async def test_what_can_be_assigned_at_once() -> None:
    made = routings(snapshot(PHONE))
    first = made.assign_at_once(RoutingRequest("speculative", "phone", model="a"))
    assert first is not None
    assert first.device == "phone"
    for wanted in (
        RoutingRequest("device", "laptop", model="a"),
        RoutingRequest("nonsense", model="a"),
        RoutingRequest("cloud", model="unknown"),
    ):
        assert made.assign_at_once(wanted) is None
    empty = routings(snapshot(pools=()))
    assert empty.assign_at_once(RoutingRequest("cloud", model="a")) is None
