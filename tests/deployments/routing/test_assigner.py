"""The assigner: what it makes of requests, of what is up, and of what has failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.modes.speculative.mode import PairBriefing
from tandem.deployments.request.assignment import Assignment, EndpointInfo, NoEndpoint, RoutingRequest
from tandem.deployments.request.job import NoSuchDevice, UnknownMode
from tandem.deployments.routing.assigner import ASSIGNED_S, RETRY_LOST_S, Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.engine.base import EngineStopped, NoCapacity, SplitInfo
from tandem.engine.split.base import SplitMismatch
from tandem.policies.cost import PerToken, per_million
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing


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

CLOUD_PAIR = {"target": "verifier", "drafter": "drafter"}


def assigner(snapshot: Snapshot = FULL, policy: str = "jsq", batch_limit: int = 4) -> Assigner:
    made = Assigner(collaboration.create("explicit"), lambda: routing.create(policy), batch_limit)
    made.see(snapshot)
    return made


@pytest.mark.parametrize(
    ("wanted", "mode", "roles", "device_name"),
    [
        (RoutingRequest(), "cloud", {"target": "verifier"}, None),
        (RoutingRequest("cloud"), "cloud", {"target": "verifier"}, None),
        (RoutingRequest("cloud", "near"), "cloud", {"target": "verifier"}, None),
        (RoutingRequest("device", "far"), "device", {"device": "far"}, "far"),
        (RoutingRequest("device"), "device", {"device": "near"}, "near"),
        (RoutingRequest("speculative", "far"), "speculative", {**CLOUD_PAIR, "device": "far"}, "far"),
        (RoutingRequest("speculative", "any"), "speculative", {**CLOUD_PAIR, "device": "near"}, "near"),
        (RoutingRequest("speculative"), "speculative", CLOUD_PAIR, None),
        (RoutingRequest(device="near"), "speculative", {**CLOUD_PAIR, "device": "near"}, "near"),
        (RoutingRequest(device=("gone", "far")), "speculative", {**CLOUD_PAIR, "device": "far"}, "far"),
        (RoutingRequest("race", "far"), "race", {"server": "verifier", "device": "far"}, "far"),
        (RoutingRequest("race"), "race", {"server": "verifier", "device": "near"}, "near"),
    ],
)
def test_wishes_are_followed(
    wanted: RoutingRequest, mode: str, roles: dict[str, str], device_name: str | None
) -> None:
    made = assigner().assign(wanted)
    assert (made.mode, made.device) == (mode, device_name)
    assert {role: e.engine for role, e in made.endpoints.items()} == roles


def test_a_burst_spreads_before_the_next_snapshot() -> None:
    router = assigner()
    addresses = [router.assign(RoutingRequest("cloud")).endpoints["target"].address for _ in range(6)]
    assert addresses.count("127.0.0.1:1") == addresses.count("127.0.0.1:2") == 3
    devices = [router.assign(RoutingRequest("device")).device for _ in range(4)]
    assert devices.count("near") == devices.count("far") == 2


def test_news_of_a_device_forgets_no_burst_at_the_replicas() -> None:
    router = assigner()
    first = router.assign(RoutingRequest("cloud")).endpoints["target"]
    router.see(Snapshot(2, FULL.pools, {"near": device("near", sessions=1)}, (), 1))
    assert router.assign(RoutingRequest("cloud")).endpoints["target"] != first


def test_what_was_assigned_but_never_opened_does_not_count_for_ever() -> None:
    router = assigner()
    for _ in range(5):
        assert router.assign(RoutingRequest("device", "near"), now_s=1.0).device == "near"
    assert router.assign(RoutingRequest("device"), now_s=1.0).device == "far"
    assert router.assign(RoutingRequest("device"), now_s=1.1 + ASSIGNED_S).device == "near"


@pytest.mark.parametrize("mode", ["device", "speculative", "race"])
def test_an_answer_under_way_does_without_a_device_that_was_forgotten(mode: str) -> None:
    router = assigner()
    wanted = RoutingRequest(mode, "gone", sent=3)
    assert router.assign(wanted).device is None
    with pytest.raises(NoSuchDevice):
        router.assign(RoutingRequest(mode, "gone"))


def only(*verifiers: EndpointInfo) -> Assigner:
    return assigner(Snapshot(1, {"verifier": verifiers}, {"near": NEAR}))


def test_a_begun_answer_goes_to_who_can_continue_it() -> None:
    service = replace(replica("verifier", 1), continuation="none")
    router = only(service, replica("verifier", 2))
    assert {router.assign(RoutingRequest("cloud")).endpoints["target"].address for _ in range(2)} == {
        "127.0.0.1:1",
        "127.0.0.1:2",
    }
    for _ in range(3):
        made = router.assign(RoutingRequest("cloud", sent=3))
        assert made.endpoints["target"].address == "127.0.0.1:2"
        assert made.replaceable == frozenset(), "the other one could not go on"


def test_a_begun_answer_that_nobody_can_continue_ends_at_once() -> None:
    router = only(replace(replica("verifier", 1), continuation="none"))
    assert router.assign(RoutingRequest("cloud")).mode == "cloud"
    with pytest.raises(EngineStopped, match="no verifier can continue") as caught:
        router.assign(RoutingRequest("cloud", sent=3))
    assert not isinstance(caught.value, NoEndpoint), "or the request would wait for one"
    assert router.assign(RoutingRequest("race", "near", sent=3)).mode == "device"


@pytest.mark.parametrize("resting", [{"verifier 1"}, {"verifier 1", "verifier 2"}])
def test_a_resting_replica_is_passed_over_while_there_are_others(resting: set[str]) -> None:
    up = tuple(replace(e, rests=e.name in resting) for e in FULL.pools["verifier"])
    routed = assigner(replace(FULL, pools={"verifier": up}), "round_robin")
    names = {routed.assign(RoutingRequest("cloud")).endpoints["target"].name for _ in range(4)}
    assert names == ({"verifier 2"} if len(resting) == 1 else resting)


def test_services_are_chosen_by_what_the_request_costs_there() -> None:
    prices = (PerToken(1e-6, 4e-6), PerToken(2e-6, 2e-6))  # the second for long answers
    up = tuple(replace(e, price=p) for e, p in zip(FULL.pools["verifier"], prices, strict=True))
    routed = assigner(replace(FULL, pools={"verifier": up}), "cheapest")
    for prompt, most, name in ((100, 10, "verifier 1"), (10, 100, "verifier 2")):
        wanted = RoutingRequest("cloud", prompt_tokens=prompt, max_tokens=most)
        assert {routed.assign(wanted).endpoints["target"].name for _ in range(3)} == {name}


def test_a_service_without_a_price_costs_what_its_model_costs() -> None:
    """Or what the application's models do, also once that has changed."""
    first, second = FULL.pools["verifier"]
    up = {"verifier": (replace(first, price=PerToken(2e-6, 2e-6)), second)}

    def chosen(router: Routing) -> str:
        made = router.assign_now(RoutingRequest("cloud", prompt_tokens=10, max_tokens=10))
        target = made.endpoints["target"]
        assert made.prices.server == (target.price or router.assigner.price or per_million(price, price))
        return target.name

    router = Routing(assigner(replace(FULL, pools=up), "cheapest"))
    for price, name in ((1.0, "verifier 2"), (3.0, "verifier 1"), (1.0, "verifier 2")):
        router.accounts = AccountSettings(price_in=price, price_out=price)
        assert chosen(router) == name
    router.assigner.price = per_million(4.0, 4.0)
    assert chosen(router) == "verifier 1"


def test_a_services_own_price_counts() -> None:
    price = PerToken(1e-6, 2e-6)
    router = Routing(only(replace(replica("verifier", 1), price=price)))
    assert router.assign_now(RoutingRequest("cloud")).prices.server == price
    assert router.assign_now(RoutingRequest("race", "near")).briefing.costs.server == price  # type: ignore[attr-defined]
    router = Routing(only(replica("verifier", 1)), accounts=AccountSettings(price_in=3, price_out=4))
    assert router.assign_now(RoutingRequest("cloud")).prices.server == per_million(3, 4)


DRAFTERS = (replica("drafter", 3), replica("drafter", 4))


@pytest.mark.parametrize("policy", list(routing))
@pytest.mark.parametrize("device_name", [None, "near"])
def test_all_replicas_of_both_pools_take_part(policy: str, device_name: str | None) -> None:
    """Also where a request takes one of each pool, and the pools are of one size."""
    router = assigner(Snapshot(1, {**FULL.pools, "drafter": DRAFTERS}, FULL.devices), policy)
    made = [router.assign(RoutingRequest("speculative", device_name)) for _ in range(24)]
    assert {a.endpoints["target"].address for a in made} == {"127.0.0.1:1", "127.0.0.1:2"}
    assert {a.endpoints["drafter"].address for a in made} == {"127.0.0.1:3", "127.0.0.1:4"}


def test_a_device_has_the_clouds_drafter_beside_it() -> None:
    made = Routing(assigner()).assign_now(RoutingRequest("speculative", "near"))
    assert (made.endpoints["device"], made.device) == (EndpointInfo.of(NEAR), "near")
    assert (made.endpoints["drafter"],) == FULL.pools["drafter"]
    assert briefing(made).batch_limit == 4
    alone = assigner(Snapshot(1, {"verifier": FULL.pools["verifier"]}, FULL.devices))
    assert "drafter" not in alone.assign(RoutingRequest("speculative", "near")).endpoints


def briefing(made: Assignment) -> PairBriefing:
    assert isinstance(made.briefing, PairBriefing)
    return made.briefing


def test_a_device_goes_on_without_the_clouds_drafter() -> None:
    router = assigner(Snapshot(1, {**FULL.pools, "drafter": DRAFTERS}, FULL.devices))
    for lost, left in ((("drafter@127.0.0.1:3",), DRAFTERS[1]), (tuple(d.key for d in DRAFTERS), None)):
        for waited_s in (0.0, RETRY_LOST_S):
            made = router.assign(RoutingRequest("speculative", "near", lost), waited_s)
            assert (made.mode, made.device, made.endpoints.get("drafter")) == ("speculative", "near", left)
    with_both_lost = RoutingRequest("speculative", "near", ("drafter@127.0.0.1:3", EndpointInfo.of(NEAR).key))
    assert router.assign(with_both_lost).mode == "cloud"


def test_the_snapshot_is_the_truth() -> None:
    router = assigner()
    for _ in range(5):
        router.assign(RoutingRequest("cloud"))
    router.see(Snapshot(2, {"verifier": (replica("verifier", 1, sessions=1), replica("verifier", 2))}))
    assert router.assign(RoutingRequest("cloud")).endpoints["target"].address == "127.0.0.1:2"


def test_the_queue_is_in_relation_to_the_batch_limit() -> None:
    router = Routing(assigner(batch_limit=4))
    queues = [briefing(router.assign_now(RoutingRequest("speculative"))).queue for _ in range(12)]
    assert queues[0] == 0.0
    assert queues[2] == 0.25
    assert max(queues) == queues[-1] == 1.25, "ten sessions before it at two targets"


def test_where_nobody_is_the_queue_is_empty() -> None:
    router = assigner()
    assert [router.queue(target) for target in router.replicas("verifier")] == [0.0, 0.0]


def test_a_lost_verifier_is_avoided_until_it_may_be_tried_again() -> None:
    router = assigner()
    first = router.assign(RoutingRequest("cloud")).endpoints["target"]
    other = router.assign(RoutingRequest("cloud", lost=(first.key,))).endpoints["target"]
    assert other.key != first.key
    both = RoutingRequest("cloud", lost=(first.key, other.key))
    with pytest.raises(NoEndpoint):
        router.assign(both)
    assert router.assign(both, waited_s=RETRY_LOST_S).endpoints["target"].key in (first.key, other.key)


def test_of_those_that_failed_it_whoever_did_least_often_is_tried() -> None:
    """An unreachable replica has the fewest sessions of all."""
    keys = [e.key for e in FULL.pools["verifier"]]
    assert len(keys) > 1
    for spared in keys:
        lost = tuple(keys) + tuple(key for key in keys if key != spared)
        made = assigner().assign(RoutingRequest("cloud", lost=lost), waited_s=RETRY_LOST_S)
        assert made.endpoints["target"].key == spared


@pytest.mark.parametrize("wishes", [RoutingRequest("device", "near"), RoutingRequest("speculative", "near")])
@pytest.mark.parametrize("snapshot", [FULL, Snapshot(1, FULL.pools, {})])
def test_without_its_helper_the_cloud_goes_on_alone(wishes: RoutingRequest, snapshot: Snapshot) -> None:
    lost = (EndpointInfo.of(NEAR).key,)
    made = assigner(snapshot).assign(RoutingRequest(wishes.mode, wishes.device, lost))
    assert (made.mode, made.device) == ("cloud", None)


def test_a_lost_drafter_means_cloud_too() -> None:
    assert assigner().assign(RoutingRequest("speculative", lost=("drafter@127.0.0.1:3",))).mode == "cloud"


def test_impossible_wishes_are_refused() -> None:
    router = assigner()
    with pytest.raises(UnknownMode, match="cloud, device, speculative"):
        router.assign(RoutingRequest("telepathy"))
    with pytest.raises(NoSuchDevice, match="'toaster'"):
        router.assign(RoutingRequest("device", "toaster"))
    nothing = assigner(Snapshot(1, FULL.pools, {}))
    for wishes in (RoutingRequest("device"), RoutingRequest("speculative", "any")):
        with pytest.raises(NoSuchDevice, match="no device is registered"):
            nothing.assign(wishes)
    with pytest.raises(NoEndpoint, match="no verifier"):
        assigner(Snapshot(1, {"drafter": FULL.pools["drafter"]})).assign(RoutingRequest("speculative"))


def test_the_target_goes_on_alone_while_no_drafter_is_up() -> None:
    """A killed drafter, whose successor takes seconds to start, holds nobody up; it is missed, as one to start."""
    router = assigner(Snapshot(1, {"verifier": FULL.pools["verifier"]}))
    made = router.assign(RoutingRequest("speculative"))
    assert (made.mode, list(made.endpoints)) == ("cloud", ["target"])
    assert router.missed == {"drafter": 1}


@pytest.mark.parametrize("wishes", [("device", "late"), ("speculative", "any"), ("race", None)])
def test_a_device_that_is_to_come_back_is_worth_waiting_for(wishes: tuple[str, str | None]) -> None:
    restarting = assigner(Snapshot(1, FULL.pools, {}, awaited=frozenset({"late"})))
    with pytest.raises(NoEndpoint, match="should be there"):
        restarting.assign(RoutingRequest(*wishes))
    with pytest.raises(NoSuchDevice, match="'toaster'"):
        restarting.assign(RoutingRequest("device", "toaster"))
    begun = restarting.assign(RoutingRequest("device", "late", sent=3))
    assert begun.mode == "cloud", "half an answer does without it"


def test_other_policies_hold_from_the_next_request_on() -> None:
    router = assigner()
    assert [_first_verifier(router) for _ in range(2)] == ["verifier 1", "verifier 2"], "the shortest queue"
    router.follow(collaboration.create("explicit"), _Last)
    assert [_first_verifier(router) for _ in range(3)] == ["verifier 2"] * 3
    assert router.assign(RoutingRequest("device")).device == "near", "it still knows the devices"


def _first_verifier(router: Assigner) -> str:
    return router.assign(RoutingRequest("cloud")).endpoints["target"].name


class _Last:
    """A routing policy."""

    def choose(self, loads: Sequence[int]) -> int:
        return len(loads) - 1


@pytest.mark.parametrize("mode", ["device", "race", "speculative"])
def test_a_device_may_have_another_vocabulary(mode: str) -> None:
    stranger = msgspec.structs.replace(NEAR, vocabulary="another")
    router = assigner(Snapshot(1, FULL.pools, {"near": stranger}))
    made = router.assign(RoutingRequest(mode, "near"))
    assert (made.mode, made.device) == (mode, "near")


def test_without_a_server_a_race_is_the_devices() -> None:
    made = assigner(Snapshot(1, {}, FULL.devices)).assign(RoutingRequest("race", "far"))
    assert (made.mode, made.device) == ("device", "far")


def test_begun_answers_go_before_new_ones_where_there_was_no_room() -> None:
    one = Snapshot(1, {"verifier": (replica("verifier", 1),)})
    (key,) = (e.key for e in one.pools["verifier"])
    router = assigner(one)
    half = RoutingRequest("cloud", sent=5, full=(key,))
    assert router.assign(half, now_s=10.0).endpoints["target"].key == key, "there is no other"
    with pytest.raises(NoCapacity, match="reserved"):
        router.assign(RoutingRequest("cloud"), now_s=11.0)
    router.assign(half, now_s=11.0)
    with pytest.raises(NoCapacity):
        router.assign(RoutingRequest("cloud"), now_s=12.9)
    router.assign(RoutingRequest("cloud", sent=1), now_s=12.9)
    router.assign(RoutingRequest("cloud"), now_s=13.1)


def test_a_full_endpoint_is_left_to_begun_answers_where_there_are_others() -> None:
    router = assigner()
    first, second = (e.key for e in FULL.pools["verifier"])
    half = RoutingRequest("cloud", sent=5, full=(first,))
    assert router.assign(half, now_s=1.0).endpoints["target"].key == second
    assert {router.assign(RoutingRequest("cloud"), now_s=2.0).endpoints["target"].key for _ in range(8)} == {
        second
    }


def test_a_silent_replica_is_taken_only_where_there_is_no_other() -> None:
    router = assigner()
    first, second = (e.key for e in FULL.pools["verifier"])
    wanted = RoutingRequest("cloud", silent=(first,))
    assert {router.assign(wanted).endpoints["target"].key for _ in range(8)} == {second}
    assert router.assign(RoutingRequest("cloud", silent=(first, second))).endpoints["target"].key in {
        first,
        second,
    }


def test_a_silent_drafter_is_done_without() -> None:
    router = assigner()
    drafters = tuple(e.key for e in FULL.pools["drafter"])
    made = router.assign(RoutingRequest("speculative", "near", silent=drafters))
    assert made.mode == "speculative"
    assert "drafter" not in made.endpoints


@pytest.mark.parametrize(
    ("wanted", "snapshot", "replaceable"),
    [
        (RoutingRequest("cloud"), FULL, {"target"}),
        (RoutingRequest("cloud"), Snapshot(1, {"verifier": (replica("verifier", 1),)}), set()),
        (RoutingRequest("cloud", lost=("verifier@127.0.0.1:1",)), FULL, set()),
        (RoutingRequest("device", "near"), FULL, {"device"}),
        (RoutingRequest("device", "near"), Snapshot(1, {}, {"near": NEAR}), set()),
        (RoutingRequest("speculative", "near"), FULL, {"target", "device", "drafter"}),
        (RoutingRequest("race", "near"), FULL, {"server", "device"}),
    ],
)
def test_it_is_known_who_could_be_done_without(
    wanted: RoutingRequest, snapshot: Snapshot, replaceable: set[str]
) -> None:
    assert assigner(snapshot).assign(wanted).replaceable == replaceable


names = st.sampled_from([f"d{i}" for i in range(8)])


@given(
    st.lists(
        st.tuples(st.just("put"), names, st.integers(0, 4))
        | st.tuples(st.just("gone"), names, st.just(0))
        | st.tuples(st.just("assign"), st.just(""), st.just(0)),
        max_size=60,
    )
)
def test_the_best_device_is_always_found(steps: list[tuple[str, str, int]]) -> None:
    """Difference snapshots suffice, whatever the order in which devices come, change, go and are assigned.
    What was assigned to a device counts until there is news of that device."""
    router, there, since = assigner(FULL), dict(FULL.devices), dict[str, int]()
    version = 1
    for what, name, sessions in steps:
        if what == "assign":
            if not there:
                continue
            best = min(there, key=lambda n: (there[n].sessions + since.get(n, 0), there[n].rtt_s, n))
            assert router.assign(RoutingRequest("device")).device == best
            since[best] = since.get(best, 0) + 1
            continue
        changed, gone = {}, ()
        if what == "put":
            changed = {name: device(name, sessions=sessions)}
        else:
            gone = (name,)
        there.update(changed)
        there = {n: d for n, d in there.items() if n not in gone}
        since = {n: k for n, k in since.items() if n not in changed and n not in gone}
        version += 1
        router.see(Snapshot(version, FULL.pools, changed, gone, version - 1))
    assert dict(router.snapshot.devices) == there


HERE = SplitInfo("a1", 2, 12, 512)
STAGED = SplitInfo("a1", 2, 12, 512, stages=3)
DEEPER, OTHER = SplitInfo("a1", 4, 12, 512), SplitInfo("b2", 2, 12, 512)


def middles(*splits: SplitInfo) -> Assigner:
    pool = tuple(replace(replica("middle", port), split=split) for port, split in enumerate(splits, 7))
    return assigner(Snapshot(1, {**FULL.pools, "middle": pool}))


@given(st.lists(st.sampled_from([HERE, STAGED, DEEPER, OTHER]), min_size=1), st.integers(0, 3))
def test_a_device_is_sent_to_a_middle_that_fits_its_part_or_refused_at_once(
    splits: list[SplitInfo], lost: int
) -> None:
    router = middles(*splits)
    fitting = {i for i, split in enumerate(splits) if (split.checksum, split.first) == ("a1", 2)}
    gone = tuple(f"middle@127.0.0.1:{port}" for port in range(7, 7 + lost))
    wanted = RoutingRequest("split", split=HERE, lost=gone)
    if fitting - set(range(lost)):
        made = router.assign(wanted)
        middle = made.endpoints["middle"]
        assert middle.split in (HERE, STAGED)
        assert middle.key not in gone
        assert ("middle" in made.replaceable) == (len(fitting - set(range(lost))) > 1)
    elif lost:
        with pytest.raises(NoEndpoint):  # one that fits may come
            router.assign(wanted)
    else:
        with pytest.raises(SplitMismatch, match="no middle fits this device"):
            router.assign(wanted)


def test_a_refusal_says_what_there_is() -> None:
    with pytest.raises(SplitMismatch) as refused:
        middles(DEEPER, OTHER).assign(RoutingRequest("split", split=HERE))
    assert "cut from the model a1, the middle from b2" in str(refused.value)
    assert "ends before layer 2 of 12 (512 wide), the middle begins at 4" in str(refused.value)


def test_where_there_is_no_middle_at_all_one_may_come() -> None:
    with pytest.raises(NoEndpoint) as missing:
        assigner().assign(RoutingRequest("split", split=HERE))
    assert missing.value.pool == "middle"
