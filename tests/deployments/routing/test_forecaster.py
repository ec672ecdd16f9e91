"""Policy `auto` at the router: which ways it compares, what it expects of them, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.learning.report import Report
from tandem.deployments.modes.sketch.scheduler import Expansions
from tandem.deployments.request.assignment import Assignment, EndpointInfo, Load, NoEndpoint, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.job import LimitsNotKept
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.engine.base import NoCapacity, SplitInfo
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.objectives import NOTHING, OBJECTIVES, Leaves, Objective, Prediction
from tandem.policies.routing.replica import routing

VERIFIERS = tuple(EndpointInfo(f"verifier {n}", f"v:{n}", "verifier", "big", "v") for n in range(2))
DRAFTER = EndpointInfo("drafter 0", "d:0", "drafter", "small", "v")
OPEN = RoutingRequest(prompt_tokens=50, max_tokens=200)


def phone(name: str, **figures: float) -> DeviceRecord:
    """Return a phone with room for two."""
    speed = {"prefill_token_s": 1e-3, "decode_token_s": 0.02, "prefill_j": 0.01, "decode_j": 0.5}
    return DeviceRecord(
        name=name,
        address=f"{name}:1",
        profile="p",
        capacity=2,
        model="small",
        vocabulary="v",
        **{**speed, **figures},  # type: ignore[arg-type]
    )


def router(*devices: DeviceRecord, policy: str = "round_robin", **parameters: object) -> Routing:
    chosen = collaboration.create("auto", **{"explore": 0, **parameters})
    made = Routing(Assigner(chosen, lambda: routing.create(policy), 64))
    there = {each.name: each for each in devices}
    made.see(Snapshot(1, {"verifier": VERIFIERS, "drafter": (DRAFTER,)}, there))
    return made


def came(made: Assignment, ttft_s: float, tpot_s: float, tokens: int = 100) -> Report:
    return Report(
        "me", "", tokens, True, Bill(), mode=made.mode, ttft_s=ttft_s, tpot_s=tpot_s, forecast=made.forecast
    )


def test_an_assignment_says_what_is_expected_and_why() -> None:
    made = router(phone("a")).assign_now(OPEN)
    forecast = made.forecast
    assert forecast is not None
    assert (forecast.mode, forecast.device) == (made.mode, made.device)
    assert forecast.reason is not None
    assert forecast.reason.candidates == 5, "cloud, fused, and each mode with the device"
    assert forecast.reason.second is not None
    assert forecast.expected.ttft_s.value > 0


def test_explicit_wishes_stand() -> None:
    there = router(phone("a"), phone("b", decode_token_s=0.5))
    for mode in ("cloud", "device", "speculative", "race"):
        assert there.assign_now(replace(OPEN, mode=mode)).mode == mode
    for mode in ("device", "speculative", "race"):
        assert there.assign_now(replace(OPEN, mode=mode, device="b")).device == "b"
    assert there.assign_now(replace(OPEN, mode="cloud", device="b")).device is None
    assert there.assign_now(replace(OPEN, device="b")).device == "b", "who names a device, wants it"
    assert there.assign_now(replace(OPEN, modes=("device",), devices=("b",))).device == "b"


def test_what_came_corrects_what_is_expected() -> None:
    """The cloud turns out slow, and the device takes over; the cloud's kind is then known to be slow."""
    there = router(phone("a", decode_token_s=0.03), objective="fast")
    assert there.assign_now(OPEN).mode != "device"
    for _ in range(20):
        made = there.assign_now(replace(OPEN, mode="cloud"))
        there.learn(came(made, ttft_s=5.0, tpot_s=0.5))
    expected = there.assign_now(replace(OPEN, mode="cloud")).forecast
    assert expected is not None
    assert expected.expected.ttft_s.value == pytest.approx(5.0, rel=0.4)
    assert expected.expected.tpot_s.value == pytest.approx(0.5, rel=0.3)
    assert there.assign_now(OPEN).mode == "device"


def test_reports_of_what_went_another_way_teach_nothing() -> None:
    there = router()
    made = there.assign_now(replace(OPEN, mode="cloud"))
    before = made.forecast
    there.learn(replace(came(made, 9.0, 9.0), mode="device"))
    there.learn(replace(came(made, 9.0, 9.0), forecast=None))
    after = there.assign_now(replace(OPEN, mode="cloud")).forecast
    assert before is not None
    assert after is not None
    assert after.expected.tpot_s.doubt == before.expected.tpot_s.doubt
    assert after.expected.ttft_s == before.expected.ttft_s


def test_a_device_with_much_to_do_is_not_overloaded() -> None:
    there = router(phone("a"), phone("b"), objective="private")
    given = [there.assign_now(OPEN).device for _ in range(4)]
    assert sorted(filter(None, given)) == ["a", "a", "b", "b"]
    with pytest.raises(NoCapacity):
        there.assign_now(OPEN)


def test_limits_are_kept_or_the_request_is_refused() -> None:
    there = router(phone("a"))
    private = OBJECTIVES["private"]
    assert there.assign_now(replace(OPEN, objective=private)).mode == "device"
    with pytest.raises(LimitsNotKept):
        there.assign_now(replace(OPEN, objective=private, mode="cloud"))
    with pytest.raises(LimitsNotKept):
        router().assign_now(replace(OPEN, objective=Objective(privacy=Leaves.NOTHING)))
    empty = router()
    empty.see(Snapshot(2, {"verifier": ()}, {}))
    with pytest.raises(NoEndpoint, match="limits"):
        empty.assign_now(replace(OPEN, objective=Objective(usd=1.0)))


def test_a_policy_that_weighs_nothing_refuses_objectives() -> None:
    plain = Routing(Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8))
    plain.see(Snapshot(1, {"verifier": VERIFIERS}, {}))
    assert plain.assign_now(OPEN).forecast is None
    with pytest.raises(LimitsNotKept, match="auto"):
        plain.assign_now(replace(OPEN, objective=OBJECTIVES["fast"]))


def test_comparing_takes_no_replicas_turn() -> None:
    """And counts no pool as missed."""
    there = router(phone("a"), policy="round_robin")
    taken = [there.assign_now(replace(OPEN, mode="cloud")).endpoints["target"].name for _ in range(4)]
    assert taken == ["verifier 0", "verifier 1"] * 2
    there.see(Snapshot(2, {"verifier": VERIFIERS}, {}))
    there.assign_now(OPEN)
    assert not there.assigner.missed


def test_an_answer_whose_device_has_left_goes_on() -> None:
    there = router(phone("a"))
    there.see(Snapshot(2, {}, {}, ("a",), 1))
    there.see(Snapshot(3, {"verifier": VERIFIERS}, {}, (), 2))
    begun = replace(OPEN, sent=10, lost=("a@a:1",))
    assert there.assign_now(begun).mode == "cloud"


def test_prompts_that_were_just_assigned_are_waited_for() -> None:
    there = router()
    there.see(Snapshot(2, {"verifier": VERIFIERS[:1]}, {}))
    cloud = replace(OPEN, mode="cloud")

    def first_token_s(now_s: float, **changes: int) -> float:
        forecast = there.assign_now(replace(cloud, **changes), now_s=now_s).forecast
        assert forecast is not None
        return forecast.expected.ttft_s.value

    alone_s = first_token_s(1.0, prompt_tokens=50)
    first_token_s(100.0, prompt_tokens=4000)
    assert first_token_s(100.1, prompt_tokens=50) > alone_s + 1.0
    assert first_token_s(200.0, prompt_tokens=50) == pytest.approx(alone_s, rel=0.1)


def test_a_device_that_tells_no_speed_is_known_after_its_first_answer() -> None:
    """The error of the time that was assumed before hardly counts."""
    there = router(phone("a", decode_token_s=0.0, prefill_token_s=0.0))
    own = replace(OPEN, mode="device")
    made = there.assign_now(own)
    there.learn(came(made, ttft_s=0.1, tpot_s=0.005))
    there.assigner.see(replace(there.assigner.snapshot, version=2))
    forecast = there.assign_now(own).forecast
    assert forecast is not None
    assert forecast.expected.tpot_s.value == pytest.approx(0.005, rel=0.3)
    assert forecast.expected.ttft_s.value == pytest.approx(0.1, rel=0.3)


def test_answers_to_requests_of_one_kind_are_taken_to_be_alike() -> None:
    there, short = router(), replace(OPEN, mode="cloud", max_tokens=30)
    for tokens, asked in (*[(300, OPEN)] * 20, *[(12, short)] * 20):
        there.learn(came(there.assign_now(replace(asked, mode="cloud")), 0.1, 0.02, tokens))
    expected = [there.assign_now(each).forecast for each in (short, replace(OPEN, mode="cloud"))]
    few, many = (each.expected.tokens for each in expected if each is not None)
    assert few < 20
    assert many > 150


def test_a_small_model_may_be_good_at_some_contents() -> None:
    there = router(phone("a"))
    agreed = there.shared.agreement
    agreed("small", "code").note(200, 200)
    agreed("small", "").note(10, 100)
    lost = {}
    for content in ("code", "", "numbers"):
        there.see(Snapshot(2, {"verifier": VERIFIERS}, {"a": phone("a")}))
        forecast = there.assign_now(replace(OPEN, mode="device", content=content)).forecast
        assert forecast is not None
        lost[content] = forecast.expected.lost.value
    assert lost["code"] < 0.1 < lost[""]
    assert lost["numbers"] == pytest.approx(lost[""], abs=0.05), "as all of them, while none is known"


def test_dollars_and_joules_are_corrected_too() -> None:
    race = replace(OPEN, mode="race")
    there = router(phone("a", sessions=0))

    def made() -> Assignment:
        there.see(Snapshot(2, {"verifier": VERIFIERS}, {"a": phone("a")}))
        return there.assign_now(race)

    before = made().forecast
    assert before is not None
    bill = Bill(1, server_usd_out=3 * before.formula.usd.value, joules=3 * before.formula.joules.value)
    for _ in range(30):
        there.learn(replace(came(made(), 0.1, 0.02, 128), bill=bill))
    after = made().forecast
    assert after is not None
    for corrected, formula in (
        (after.expected.usd, after.formula.usd),
        (after.expected.joules, after.formula.joules),
    ):
        assert corrected.value == pytest.approx(3 * formula.value, rel=0.3)


def test_answers_are_sketched_where_small_models_are_quicker() -> None:
    """Mode sketch is no way of its own where they are not, or the answer is short."""
    there, long = router(*(phone(name, decode_token_s=0.01) for name in "abc")), replace(OPEN, max_tokens=400)
    there.see(Snapshot(2, {"verifier": VERIFIERS}, there.assigner.devices))
    for _ in range(10):
        there.learn(came(there.assign_now(replace(long, mode="cloud")), 0.3, 0.2, 300))
    sketch = replace(long, mode="sketch")
    forecast = there.assign_now(sketch).forecast
    cloud = there.assign_now(replace(long, mode="cloud")).forecast
    assert forecast is not None
    assert cloud is not None
    assert forecast.expected.tpot_s.value < cloud.expected.tpot_s.value
    assert forecast.expected.usd.value < cloud.expected.usd.value
    assert 0 < forecast.expected.lost.value < 0.2
    assert there.assign_now(replace(sketch, max_tokens=40)).forecast is None


def test_modes_that_do_not_suit_a_request_are_no_way() -> None:
    there = router(phone("a"))
    made = there.assign_now(replace(OPEN, unsuited=("speculative", "race", "device")))
    assert made.mode == "cloud"


def test_mode_split_is_a_way_of_the_device_that_drives_it() -> None:
    there, middle = router(), EndpointInfo("middle 0", "m:0", "middle", "big", "v")
    there.see(Snapshot(2, {"verifier": VERIFIERS, "middle": (middle,)}, {}))
    forecast = there.assign_now(replace(OPEN, mode="split", split=SplitInfo("sum", 1, 4, 8))).forecast
    assert forecast is not None
    assert forecast.expected.leaves is Leaves.HIDDEN_STATES


@pytest.mark.parametrize(("rate", "waits"), [(5.0, False), (100.0, True), (0.0, True)])
def test_others_wait_where_they_read_as_fast_as_they_are_answered(rate: float, waits: bool) -> None:
    there, cloud = router(), replace(OPEN, mode="cloud", reader_rate=rate)
    for prompt in (50, 500):
        made = there.assign_now(replace(cloud, prompt_tokens=prompt))
        there.learn(came(made, ttft_s=0.1 + 1e-3 * prompt, tpot_s=0.05))
    forecast = there.assign_now(cloud).forecast
    assert forecast is not None
    assert (forecast.expected.others_s > 0) is waits


def test_what_an_engine_says_of_its_queue_counts() -> None:
    """And the prompts that were assigned since."""
    there, cloud = router(), replace(OPEN, mode="cloud")

    def first_token_s(backlog: int, now_s: float) -> float:
        busy = replace(VERIFIERS[0], sessions=backlog // 1000, load=Load(backlog=backlog))
        there.see(Snapshot(there.assigner.version + 1, {"verifier": (busy,)}, {}))
        forecast = there.assign_now(cloud, now_s=now_s).forecast
        assert forecast is not None
        return forecast.expected.ttft_s.value

    alone_s = first_token_s(0, 1.0)
    assert first_token_s(8000, 2.0) > alone_s + 1.0
    assert first_token_s(0, 3.0) == pytest.approx(alone_s, rel=0.1)


def test_sketches_wait_for_devices_that_have_other_requests_and_much_to_read() -> None:
    there = router(*(phone(name, decode_token_s=0.01) for name in "abc"))
    for _ in range(10):
        there.learn(came(there.assign_now(replace(OPEN, mode="cloud")), 0.3, 0.4, 300))

    def first_token_s(**figures: float) -> float:
        phones = {name: phone(name, **{"decode_token_s": 0.01, **figures}) for name in "abc"}
        busy = tuple(replace(each, sessions=40) for each in VERIFIERS)
        there.see(Snapshot(there.assigner.version + 1, {"verifier": busy}, phones))
        forecast = there.assign_now(replace(OPEN, mode="sketch", max_tokens=400)).forecast
        assert forecast is not None
        return forecast.formula.ttft_s.value

    idle_s = first_token_s()
    assert first_token_s(sessions=1) > idle_s
    assert first_token_s(prefill_token_s=0.2) > idle_s + 5.0


def test_one_clients_reports_move_others_forecasts_only_so_far() -> None:
    """A flood of slow answers counts as much as the few of all others."""
    there, cloud = router(), replace(OPEN, mode="cloud")

    def learn(account: str, ttft_s: float, tokens: int = 100) -> float:
        """Return what was expected before."""
        there.see(Snapshot(there.assigner.version + 1, {"verifier": VERIFIERS}, {}))
        made = there.assign_now(cloud, now_s=100.0 * there.assigner.version)
        there.learn(replace(came(made, ttft_s, 0.02, tokens), account=account))
        assert made.forecast is not None
        return made.forecast.expected.ttft_s.value

    for n in range(30):
        learn(f"user {n}", 0.2)
    for n in range(300):
        learn("flood", 20.0, tokens=3)
        expected_s = learn(f"user {n % 7}", 0.2) if n % 10 == 0 else 0.0
        assert expected_s < (15.0 if n < 100 else 6.5)
    assert there.shared.remaining("", 0, 500) > 45


def test_what_was_known_of_a_target_is_forgotten_where_it_is_deployed_anew() -> None:
    there, cloud = router(), replace(OPEN, mode="cloud")
    for _ in range(30):
        there.learn(came(there.assign_now(cloud), ttft_s=30.0, tpot_s=2.0))

    def expected(*replicas: EndpointInfo) -> Prediction:
        there.see(Snapshot(there.assigner.version + 1, {"verifier": replicas}, {}))
        forecast = there.assign_now(cloud).forecast if replicas else None
        return Prediction(NOTHING, NOTHING) if forecast is None else forecast.expected

    slow, new = expected(*VERIFIERS), replace(VERIFIERS[1], name="verifier 2", address="v:2")
    assert slow.tpot_s.value == pytest.approx(2.0, rel=0.3)
    after = expected(VERIFIERS[1], new).tpot_s.value
    assert after == pytest.approx(2.0, rel=0.3), "one replica after the other is no new deployment"
    expected()
    fresh = expected(replace(new, name="verifier 3", address="v:3"))
    assert fresh.assumed
    assert fresh.tpot_s.value < 1.0


def test_what_is_seldom_sketched_is_expected_to_be_as_the_targets_own() -> None:
    """Answers of mode sketch that turn out to be short are given in full."""
    there = router(*(phone(name, decode_token_s=0.01) for name in "abc"))
    for _ in range(10):
        there.learn(came(there.assign_now(replace(OPEN, mode="cloud")), 0.3, 0.4, 300))

    def token_s(mode: str) -> float:
        there.see(Snapshot(there.assigner.version + 1, {"verifier": VERIFIERS}, there.assigner.devices))
        forecast = there.assign_now(replace(OPEN, mode=mode, max_tokens=400)).forecast
        assert forecast is not None
        return forecast.formula.tpot_s.value

    sketches = there.modes["sketch"]
    assert isinstance(sketches, Expansions)
    before_s = token_s("sketch")
    assert before_s < token_s("cloud")
    for _ in range(200):
        sketches._sketches.planned.note(0.0)
    assert before_s < token_s("sketch") == pytest.approx(token_s("cloud"), rel=0.05)


def test_further_devices_are_compared_where_the_first_comes_near() -> None:
    """A request that is best answered in the cloud is not worth it; one that has to stay with a device is."""
    slow = router(phone("a", decode_token_s=5.0), phone("b", decode_token_s=5.1))
    for objective, ways in ((None, 5), (OBJECTIVES["private"], 6)):
        forecast = slow.assign_now(replace(OPEN, objective=objective)).forecast
        assert forecast is not None
        assert forecast.reason is not None
        assert forecast.reason.candidates == ways


def test_intervals_grow_as_narrow_as_what_comes() -> None:
    there = router()
    first = there.assign_now(replace(OPEN, mode="cloud"))
    for _ in range(100):
        there.learn(came(there.assign_now(replace(OPEN, mode="cloud")), 0.3, 0.04))
    last = there.assign_now(replace(OPEN, mode="cloud"))
    assert first.forecast is not None
    assert last.forecast is not None
    assert first.forecast.expected.tpot_s.width == 1.0
    assert last.forecast.expected.tpot_s.width < 0.5


def test_a_mode_whose_tokens_come_unevenly_keeps_its_readers_waiting() -> None:
    """The mean time per token alone would be quick enough for them; one that is no reader waits for none of it."""
    there, read = router(), replace(OPEN, mode="cloud", reader_rate=10.0)
    for _ in range(20):
        there.learn(replace(came(there.assign_now(read), 0.3, 0.05), stall_s=0.4))
    even, uneven = there.assign_now(replace(read, reader_rate=0.0)), there.assign_now(read)
    assert even.forecast is not None
    assert uneven.forecast is not None
    assert even.forecast.expected.uneven_s == 0.0
    assert uneven.forecast.expected.stall_s.value == pytest.approx(0.33, abs=0.05)


def test_a_prompt_costs_others_what_its_positions_add_to_their_steps() -> None:
    """A prompt that is taken in by parts waits for many steps, of which others get their tokens all the same."""
    there = router(policy="jsq")
    for sessions in (1, 4):
        busy = tuple(replace(each, sessions=sessions) for each in VERIFIERS)
        there.see(Snapshot(2, {"verifier": busy}, {}))
        for tokens in (50, 500):
            made = there.assign_now(replace(OPEN, mode="cloud", prompt_tokens=tokens))
            there.learn(came(made, ttft_s=2e-3 * tokens, tpot_s=0.04 + 1e-4 * sessions))
    short, long = (
        there.assign_now(replace(OPEN, mode="cloud", prompt_tokens=n)).forecast for n in (100, 1100)
    )
    assert short is not None
    assert long is not None
    assert long.expected.others_s - short.expected.others_s < 0.5 * 1000 * 2e-3


def test_a_first_answer_that_was_late_because_all_was_cold_is_forgotten() -> None:
    """A program maps its weights with its first answer, and other answers are not expected to be as late."""
    made, expected_s = router(phone("a")), {30: 0.6, 90: 1.2}
    for turn in range(12):
        for mode in ("cloud", "speculative"):
            wanted = RoutingRequest(mode, prompt_tokens=30 + 60 * (turn % 2), max_tokens=200)
            asked = made.assign_now(wanted, now_s=10.0 * turn)
            cold = turn == 0 and mode == "cloud"
            made.learn(came(asked, 8.0 if cold else expected_s[wanted.prompt_tokens], 0.05))
    for turn, (mode, tokens) in enumerate(product(("cloud", "speculative"), expected_s), 100):
        wanted = RoutingRequest(mode, prompt_tokens=tokens, max_tokens=200)
        last = made.assign_now(wanted, now_s=10.0 * turn).forecast
        assert last is not None
        assert last.expected.ttft_s.value == pytest.approx(expected_s[tokens], rel=0.15)


def test_a_target_that_is_slow_is_known_from_its_first_answers() -> None:
    made = router()
    for turn in range(3):
        wanted = replace(OPEN, modes=("cloud",))
        made.learn(came(made.assign_now(wanted, now_s=10.0 * turn), 8.0, 0.5))
    last = made.assign_now(replace(OPEN, modes=("cloud",)), now_s=1e3).forecast
    assert last is not None
    assert last.expected.ttft_s.value == pytest.approx(8.0, rel=0.2)
