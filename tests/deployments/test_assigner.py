"""The assigner: what it makes of wishes, of what is up, and of what has failed."""

from __future__ import annotations

import msgspec
import pytest

from cluster.registry import DeviceRecord
from deployments.assigner import Assigner
from deployments.assignment import EndpointInfo, NoEndpoint, Wishes
from deployments.job import NoSuchDevice, UnknownMode
from deployments.roster import Snapshot
from engine.base import InvalidRequest
from policies.collaboration import collaboration
from policies.routing import routing


def replica(pool: str, port: int, sessions: int = 0) -> EndpointInfo:
    return EndpointInfo(f"{pool} {port}", f"127.0.0.1:{port}", pool, "m", "v", sessions)


def device(name: str, rtt_s: float = 0.0, sessions: int = 0) -> DeviceRecord:
    return DeviceRecord(
        name=name, address="127.0.0.1:9", profile="native", model="s", vocabulary="v", rtt_s=rtt_s,
        sessions=sessions,
    )  # fmt: skip


NEAR, FAR = device("near", 0.005), device("far", 0.03)
FULL = Snapshot(
    1,
    {"verifier": (replica("verifier", 1), replica("verifier", 2)), "drafter": (replica("drafter", 3),)},
    {"near": NEAR, "far": FAR},
)


def assigner(snapshot: Snapshot = FULL, policy: str = "jsq", batch_limit: int = 4) -> Assigner:
    made = Assigner(collaboration.create("explicit"), lambda: routing.create(policy), batch_limit)
    made.see(snapshot)
    return made


@pytest.mark.parametrize(
    ("wishes", "mode", "target", "drafter", "device_name"),
    [
        (Wishes(), "cloud", "verifier", None, None),
        (Wishes("cloud"), "cloud", "verifier", None, None),
        (Wishes("device", "far"), "device", "far", None, "far"),
        (Wishes("device"), "device", "near", None, "near"),
        (Wishes("speculative", "far"), "speculative", "verifier", "far", "far"),
        (Wishes("speculative", "any"), "speculative", "verifier", "near", "near"),
        (Wishes("speculative"), "speculative", "verifier", "drafter", None),
        (Wishes(device="near"), "speculative", "verifier", "near", "near"),
    ],
)
def test_wishes_are_followed(
    wishes: Wishes, mode: str, target: str, drafter: str | None, device_name: str | None
) -> None:
    made = assigner().assign(wishes)
    assert (made.mode, made.target.engine, made.device) == (mode, target, device_name)
    assert (made.drafter.engine if made.drafter else None) == drafter


def test_a_burst_spreads_before_the_next_snapshot() -> None:
    router = assigner()
    addresses = [router.assign(Wishes("cloud")).target.address for _ in range(6)]
    assert addresses.count("127.0.0.1:1") == addresses.count("127.0.0.1:2") == 3
    devices = [router.assign(Wishes("device")).device for _ in range(4)]
    assert devices.count("near") == devices.count("far") == 2


DRAFTERS = (replica("drafter", 3), replica("drafter", 4))


@pytest.mark.parametrize("policy", list(routing))
@pytest.mark.parametrize("device_name", [None, "near"])
def test_all_replicas_of_both_pools_take_part(policy: str, device_name: str | None) -> None:
    """Also where a request takes one of each pool, and the pools are of one size."""
    router = assigner(Snapshot(1, {**FULL.pools, "drafter": DRAFTERS}, FULL.devices), policy)
    made = [router.assign(Wishes("speculative", device_name)) for _ in range(24)]
    assert {a.target.address for a in made} == {"127.0.0.1:1", "127.0.0.1:2"}
    assert {(a.fused or a.drafter).address for a in made} == {"127.0.0.1:3", "127.0.0.1:4"}  # type: ignore[union-attr]


def test_a_device_has_the_clouds_drafter_beside_it() -> None:
    made = assigner().assign(Wishes("speculative", "near"))
    assert (made.drafter, made.device) == (EndpointInfo.of(NEAR), "near")
    assert (made.fused, made.batch_limit) == (FULL.pools["drafter"][0], 4)
    alone = assigner(Snapshot(1, {"verifier": FULL.pools["verifier"]}, FULL.devices))
    assert alone.assign(Wishes("speculative", "near")).fused is None
    assert assigner().assign(Wishes("speculative")).fused is None


def test_a_device_goes_on_without_the_clouds_drafter() -> None:
    router = assigner(Snapshot(1, {**FULL.pools, "drafter": DRAFTERS}, FULL.devices))
    for lost, fused in ((("drafter@127.0.0.1:3",), DRAFTERS[1]), (tuple(d.key for d in DRAFTERS), None)):
        for retry_lost in (False, True):
            made = router.assign(Wishes("speculative", "near", lost), retry_lost)
            assert (made.mode, made.device, made.fused) == ("speculative", "near", fused)
    with_both_lost = Wishes("speculative", "near", ("drafter@127.0.0.1:3", EndpointInfo.of(NEAR).key))
    assert router.assign(with_both_lost).mode == "cloud"


def test_the_snapshot_is_the_truth() -> None:
    router = assigner()
    for _ in range(5):
        router.assign(Wishes("cloud"))
    router.see(Snapshot(2, {"verifier": (replica("verifier", 1, sessions=1), replica("verifier", 2))}))
    assert router.assign(Wishes("cloud")).target.address == "127.0.0.1:2"


def test_the_queue_is_in_relation_to_the_batch_limit() -> None:
    router = assigner(batch_limit=4)
    queues = [router.assign(Wishes("speculative")).queue for _ in range(12)]
    assert queues[0] == 0.0
    assert queues[2] == 0.25
    assert max(queues) == queues[-1] == 1.25, "ten sessions before it at two targets"


def test_a_lost_verifier_is_avoided_until_it_may_be_tried_again() -> None:
    router = assigner()
    first = router.assign(Wishes("cloud")).target
    other = router.assign(Wishes("cloud", lost=(first.key,))).target
    assert other.key != first.key
    both = Wishes("cloud", lost=(first.key, other.key))
    with pytest.raises(NoEndpoint):
        router.assign(both)
    assert router.assign(both, retry_lost=True).target.key in (first.key, other.key)


@pytest.mark.parametrize("wishes", [Wishes("device", "near"), Wishes("speculative", "near")])
@pytest.mark.parametrize("snapshot", [FULL, Snapshot(1, FULL.pools, {})])
def test_without_its_helper_the_cloud_goes_on_alone(wishes: Wishes, snapshot: Snapshot) -> None:
    lost = (EndpointInfo.of(NEAR).key,)
    made = assigner(snapshot).assign(Wishes(wishes.mode, wishes.device, lost))
    assert (made.mode, made.device) == ("cloud", None)


def test_a_lost_drafter_means_cloud_too() -> None:
    assert assigner().assign(Wishes("speculative", lost=("drafter@127.0.0.1:3",))).mode == "cloud"


def test_impossible_wishes_are_refused() -> None:
    router = assigner()
    with pytest.raises(UnknownMode, match="cloud, device, speculative"):
        router.assign(Wishes("telepathy"))
    with pytest.raises(NoSuchDevice, match="'toaster'"):
        router.assign(Wishes("device", "toaster"))
    nothing = assigner(Snapshot(1, FULL.pools, {}))
    for wishes in (Wishes("device"), Wishes("speculative", "any")):
        with pytest.raises(NoSuchDevice, match="no device is registered"):
            nothing.assign(wishes)
    with pytest.raises(NoEndpoint, match="no drafter"):
        assigner(Snapshot(1, {"verifier": FULL.pools["verifier"]})).assign(Wishes("speculative"))


def test_a_device_must_speak_the_models_vocabulary() -> None:
    stranger = msgspec.structs.replace(NEAR, vocabulary="another")
    router = assigner(Snapshot(1, FULL.pools, {"near": stranger}))
    with pytest.raises(InvalidRequest, match="another vocabulary"):
        router.assign(Wishes("speculative", "near"))
