"""Places for expansions: in turn, to who is idle, good enough, and allowed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.devices.record import DeviceRecord, ModelRecord
from tandem.deployments.modes.base import Surroundings
from tandem.deployments.modes.sketch.loaded_models import TOLD_S
from tandem.deployments.modes.sketch.questions import Place, PlaceReport, PlaceRequest, PlanRequest
from tandem.deployments.modes.sketch.scheduler import FORGOTTEN_S, LATE_S, Expansions
from tandem.deployments.modes.sketch.settings import SketchSettings
from tandem.deployments.request.assignment import EndpointInfo, RoutingRequest
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tests.virtual import in_virtual_time, run

LONG = PlanRequest(request=1, expected=400, target_token_s=0.05)


def device(name: str, model: str = "small", token_s: float = 0.01, **more: Any) -> DeviceRecord:
    return DeviceRecord(
        name=name,
        address=name,
        profile="",
        model=model,
        vocabulary="v",
        capacity=4,
        decode_token_s=token_s,
        **more,
    )


def made(
    devices: Sequence[DeviceRecord] = (),
    expanders: int = 0,
    **settings: Any,
) -> tuple[Expansions, Assigner]:
    pool = tuple(EndpointInfo(f"e{n}", f"e{n}", "expander", model="small") for n in range(expanders))
    assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8)
    assigner.see(Snapshot(1, {"expander": pool}, {record.name: record for record in devices}))
    around = Surroundings(assigner, lambda: 0.5)
    return Expansions(SketchSettings(**settings), around), assigner


IDS = itertools.count(1)


class Placed(NamedTuple):
    """An expansion that has a place."""

    id: int
    place: Place

    @property
    def device(self) -> str:
        return self.place.endpoint.name


async def placed(expansions: Expansions, **wanted: Any) -> Placed:
    place = await expansions.place(PlaceRequest(number := next(IDS), wanted.pop("request", 0), 100, **wanted))
    assert place is not None
    return Placed(number, place)


async def waiting(expansions: Expansions, count: int) -> None:
    while expansions.waiting < count:  # noqa: ASYNC110 (it has no such event)
        await asyncio.sleep(0)


@in_virtual_time
async def test_an_idle_one_is_given_at_once_the_quickest_first() -> None:
    expansions, _ = made([device("slow", token_s=0.03), device("quick"), device("stranger", model="unknown")])
    assert [(await placed(expansions)).device for _ in range(2)] == ["quick", "slow"]


@in_virtual_time
async def test_a_plan_says_how_loaded_a_target_is() -> None:
    expansions, assigner = made([device("one")])
    assert (await expansions.plan(LONG)).load == inf, "there is no target"
    target = EndpointInfo("v", "v", "verifier", model="large")
    assigner.see(Snapshot(2, {"verifier": (target,)}, {"one": device("one")}))
    for others in range(3):
        assigner.assign(RoutingRequest(mode="cloud", request=others, prompt_tokens=1, max_tokens=10))
        assert (await expansions.plan(LONG)).load == others / assigner.batch_limit


@in_virtual_time
async def test_a_full_target_writes_shorter_sketches() -> None:
    expansions, assigner = made([device("one")], models={"small": {"capability": 0.7}})
    target = EndpointInfo("v", "v", "verifier", model="large")
    assigner.see(Snapshot(2, {"verifier": (target,)}, {"one": device("one")}))
    lengths = []
    for request in range(assigner.batch_limit + 1):
        assigner.assign(RoutingRequest(mode="cloud", request=request, prompt_tokens=1, max_tokens=10))
        lengths.append((await expansions.plan(LONG)).sketch)
    assert 0 < lengths[-1] < lengths[0] == lengths[4]


@in_virtual_time
async def test_who_waits_gets_the_place_that_is_given_back() -> None:
    expansions, _ = made([device("one")])
    first = await placed(expansions)
    second = asyncio.ensure_future(placed(expansions))
    await waiting(expansions, 1)
    expansions.free(PlaceReport(first.id, tokens=80, longest=40, seconds=2.0))
    place = await second
    assert place.device == "one"
    assert place.place.token_s == pytest.approx(2.0 / 40), "what was seen counts more than what it says"


@in_virtual_time
async def test_a_batch_shares_the_devices_sequences() -> None:
    expansions, _ = made([device("one")], batch=2)
    first = await placed(expansions)
    assert first.place.sequences == 4
    others = [asyncio.ensure_future(placed(expansions)) for _ in range(3)]
    await waiting(expansions, 3)
    expansions.free(PlaceReport(first.id))
    second, third = await others[0], await others[1]
    assert second.place.sequences == third.place.sequences == 2
    expansions.free(PlaceReport(second.id))
    await asyncio.sleep(0)
    assert not others[2].done(), "the batch ends together"
    expansions.free(PlaceReport(third.id))
    assert (await others[2]).place.sequences == 4


@in_virtual_time
async def test_nobody_waits_for_what_cannot_come() -> None:
    expansions, _ = made([device("a"), device("b", model="other")])
    for wanted in (
        {"lost": ("a@a", "b@b")},
        {"min_quality": 0.99},
        {"devices": ("c",)},
        {"model": "small", "lost": ("a@a",)},
    ):
        assert await expansions.place(PlaceRequest(next(IDS), 0, 100, **wanted)) is None
    assert (await placed(expansions, model="other")).device == "b"
    assert (await placed(expansions, devices=("a",))).device == "a"


@in_virtual_time
async def test_nobody_waits_for_ever_and_a_full_queue_takes_no_more() -> None:
    queue = {"name": "multi_list", "parameters": {"capacity": 1}}
    expansions, _ = made([device("one")], queue=queue, wait_s=7.0)
    await placed(expansions)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    second = asyncio.ensure_future(expansions.place(PlaceRequest(next(IDS), 0, 3000)))
    await waiting(expansions, 1)
    assert (await expansions.plan(LONG)).reason == "queue_full"
    assert await expansions.place(PlaceRequest(next(IDS), 0, 100)) is None
    assert await second is None
    assert loop.time() - began_s == pytest.approx(7.0)
    assert expansions.waiting == 0


@in_virtual_time
async def test_it_waits_as_long_as_the_target_would_need_for_the_answer() -> None:
    expansions, _ = made([device("one")], wait_s=7.0)
    await placed(expansions)
    began_s = asyncio.get_running_loop().time()
    assert await expansions.place(PlaceRequest(next(IDS), 0, 100, wait_s=30.0)) is None
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(30.0)


@in_virtual_time
async def test_sketches_that_are_being_written_count_for_those_after_them() -> None:
    expansions, _ = made([device("one")])
    plans = [await expansions.plan(replace(LONG, request=n)) for n in range(9)]
    planned = sum(bool(plan.sketch) for plan in plans)
    assert 1 < planned < 9, "else the last of them would be later than from the target"
    assert not plans[-1].sketch
    await asyncio.sleep(100.0)
    assert (await expansions.plan(replace(LONG, request=9))).sketch, (
        "nobody waits for sketches that do not come"
    )


@in_virtual_time
async def test_an_expansion_that_was_planned_finds_the_queue_open() -> None:
    queue = {"name": "multi_list", "parameters": {"capacity": 1}}
    expansions, _ = made([device("one", token_s=0.005)], queue=queue)
    for request in (1, 2, 3):
        await expansions.plan(replace(LONG, request=request))
    first = await placed(expansions, request=1)
    rest = [asyncio.ensure_future(placed(expansions, request=request)) for request in (2, 3)]
    await waiting(expansions, 2)
    expansions.free(PlaceReport(first.id))
    expansions.free(PlaceReport((await rest[0]).id))
    assert (await rest[1]).device == "one"


@in_virtual_time
async def test_a_device_is_as_quick_as_it_was_seen_to_be_with_several_sentences_at_once() -> None:
    expansions, _ = made([device("one", token_s=0.045)])
    assert (await expansions.plan(LONG)).reason == "slow"
    place = await placed(expansions)
    expansions.free(PlaceReport(place.id, tokens=400, longest=100, seconds=4.0))
    assert (await expansions.plan(LONG)).sketch, "four sentences in the time of one"
    assert (await placed(expansions)).place.token_s == pytest.approx(0.04), "of each"


@in_virtual_time
async def test_it_says_where_there_is_no_hope() -> None:
    expansions, _ = made([device("one", token_s=0.045)])
    assert not (await expansions.plan(replace(LONG, target_token_s=0.0))).hopeless, "nobody knows yet"
    assert (await expansions.plan(LONG)).hopeless, "a device that is hardly quicker than the target"
    expansions, _ = made([device("one")])
    assert not (await expansions.plan(replace(LONG, expected=30))).hopeless, "short"
    assert (await made()[0].plan(LONG)).hopeless


@in_virtual_time
async def test_who_goes_while_it_waits_or_as_it_is_placed_leaves_nothing_behind() -> None:
    expansions, _ = made([device("one")])
    first = await placed(expansions)
    second, third = (asyncio.ensure_future(placed(expansions)) for _ in range(2))
    await waiting(expansions, 2)
    second.cancel()
    await asyncio.sleep(0)
    assert expansions.waiting == 1
    expansions.free(PlaceReport(first.id))  # to the third, who leaves before it hears of it
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    assert not expansions.busy()
    assert (await placed(expansions)).device == "one"


@in_virtual_time
async def test_who_no_longer_wants_a_place_says_so() -> None:
    expansions, _ = made([device("one")])
    first = await placed(expansions)
    wanted = PlaceRequest(next(IDS), 0, 100)
    second, third = asyncio.ensure_future(expansions.place(wanted)), asyncio.ensure_future(placed(expansions))
    await waiting(expansions, 2)
    expansions.free(PlaceReport(wanted.id))
    assert await second is None
    expansions.free(PlaceReport(first.id))
    assert (await third).device == "one"


@in_virtual_time
async def test_a_place_that_nobody_gives_back_is_free_after_a_while() -> None:
    expansions, _ = made([device("one")], wait_s=1000.0)
    await placed(expansions)
    await asyncio.sleep(FORGOTTEN_S + 1)
    assert (await placed(expansions)).device == "one"


@in_virtual_time
async def test_a_device_that_comes_serves_who_waits() -> None:
    expansions, assigner = made([device("one")], wait_s=100.0)
    await placed(expansions)
    second = asyncio.ensure_future(placed(expansions))
    await waiting(expansions, 1)
    assigner.see(Snapshot(2, {}, {"two": device("two")}, since=1))
    expansions.see()
    assert (await second).device == "two"


@in_virtual_time
async def test_other_settings_while_somebody_waits() -> None:
    expansions, _ = made([device("one")])
    first = await placed(expansions)
    second = asyncio.ensure_future(placed(expansions))
    await waiting(expansions, 1)
    expansions.follow(SketchSettings(queue={"name": "fifo"}))
    expansions.free(PlaceReport(first.id))
    assert (await second).device == "one"


@in_virtual_time
async def test_plans() -> None:
    expansions, _ = made([device("a"), device("b")], candidates=3, within=0.5)
    plan = await expansions.plan(LONG)
    assert plan.model == "small"
    assert 0 < plan.sketch < 400
    assert plan.within_s == pytest.approx(0.5 * 0.05 * (400 - plan.sketch))
    assert plan.candidates == 2, "as many as are idle"
    await placed(expansions)
    assert (await expansions.plan(LONG)).candidates == 1
    assert (await expansions.plan(PlanRequest(1, 400, 0.011))).reason == "slow", "the target is hardly slower"
    assert (await expansions.plan(PlanRequest(1, 30, 0.05))).reason == "short"
    assert (await made()[0].plan(LONG)).reason == "no_device"
    assert (await made(expanders=1)[0].plan(LONG)).model == "small"


# -- devices with several models -------------------------------------------------------------------------------

TOKEN_S = {"tiny": 0.01, "small": 0.02, "medium": 0.04}


def several(name: str, loaded: str = "small", load_s: float = 2.0, **more: Any) -> DeviceRecord:
    """A device with tiny, small and medium: 100 tokens take its four sequences 0.25, 0.5 and 1 s."""
    models = tuple(
        ModelRecord(name=model, vocabulary="v", load_s=load_s, decode_token_s=token_s)
        for model, token_s in TOKEN_S.items()
    )
    return device(name, loaded, TOKEN_S[loaded], models=models, **more)


async def model_of(expansions: Expansions, budget_s: float, **wanted: Any) -> str:
    """The model with which the next job is done, and it is done."""
    place = await placed(expansions, budget_s=budget_s, **wanted)
    expansions.free(PlaceReport(place.id))
    return place.place.endpoint.model


@in_virtual_time
async def test_a_device_is_asked_for_one_of_its_models() -> None:
    expansions, _ = made([several("one")], parallelism=4.0)
    place = await placed(expansions)
    endpoint = place.place.endpoint
    assert (endpoint.engine, endpoint.key, endpoint.load_s) == ("one/small", "one@one", 0.0)
    expansions.free(PlaceReport(place.id))
    endpoint = (await placed(expansions, model="medium")).place.endpoint
    assert (endpoint.engine, endpoint.key, endpoint.load_s) == ("one/medium", "one@one", 2.0)


@in_virtual_time
async def test_late_jobs_bring_a_smaller_model_and_time_to_spare_a_larger_one() -> None:
    expansions, _ = made([several("one")], parallelism=4.0)
    assert [await model_of(expansions, 0.25) for _ in range(9)] == ["small"] * 7 + ["tiny"] * 2, (
        "0.25 s late each"
    )
    expansions, _ = made([several("one")], parallelism=4.0)
    assert [await model_of(expansions, 1.5) for _ in range(5)] == ["small"] * 3 + ["medium"] * 2, (
        "0.5 s to spare"
    )


@in_virtual_time
async def test_what_is_not_known_is_no_reason_to_load() -> None:
    expansions, _ = made([several("one")], parallelism=4.0)
    assert {await model_of(expansions, 0.0) for _ in range(99)} == {"small"}, "how long the target takes"
    record = several("one")
    unknown = msgspec.structs.replace(record.models[2], decode_token_s=0.0)
    expansions, _ = made([msgspec.structs.replace(record, models=(*record.models[:2], unknown))])
    assert {await model_of(expansions, 9.0) for _ in range(99)} == {"small"}, "how long a model takes"


@in_virtual_time
async def test_an_ability_that_only_another_model_has_brings_it_unless_somebody_idle_has_it_loaded() -> None:
    expansions, _ = made([several("one"), several("two", "medium")], parallelism=4.0)
    first = await placed(expansions, min_quality=0.99)
    assert (first.device, first.place.endpoint.load_s) == ("two", 0.0)
    second = await placed(expansions, min_quality=0.99)
    assert (second.device, second.place.endpoint.model, second.place.endpoint.load_s) == (
        "one",
        "medium",
        2.0,
    )
    expansions.free(PlaceReport(second.id))
    third = await placed(expansions, min_quality=0.99)
    assert (third.device, third.place.endpoint.load_s) == ("one", 0.0), "it has it now, whatever it last said"


@in_virtual_time
async def test_a_model_that_needs_a_longer_sketch_is_no_choice() -> None:
    models = {
        "small": {"capability": 0.9, "least_share": 0.5}, "medium": {"capability": 1.0, "least_share": 0.2}
    }  # fmt: skip
    expansions, _ = made([several("one")], models=models, parallelism=4.0)
    assert await model_of(expansions, 9.0, share=0.6) == "small"
    assert await model_of(expansions, 9.0, share=0.3) == "medium"


@in_virtual_time
async def test_nobodys_model_is_switched_away_while_he_works() -> None:
    expansions, assigner = made([several("one", sessions=1)], wait_s=5.0, parallelism=4.0)
    assert await expansions.place(PlaceRequest(next(IDS), 0, 100, model="tiny")) is None
    for _ in range(20):  # so far apart that what the device says of its sessions is not of the last one
        assert await model_of(expansions, 0.1) == "small"
        await asyncio.sleep(TOLD_S + 1)
    waits = asyncio.ensure_future(placed(expansions, model="tiny"))
    await waiting(expansions, 1)
    assigner.see(Snapshot(2, {}, {"one": several("one")}, since=1))
    expansions.see()
    assert (await waits).place.endpoint.model == "tiny"


@in_virtual_time
async def test_a_model_that_others_wanted_is_taken_for_loaded() -> None:
    expansions, assigner = made([several("one")], parallelism=4.0)
    assert await model_of(expansions, 0.5) == "small"
    assigner.see(Snapshot(2, {}, {"one": several("one", "medium")}, since=1))
    assert await model_of(expansions, 0.9) == "medium"


@in_virtual_time
async def test_seconds_of_loading_are_not_taken_for_the_models_own() -> None:
    expansions, _ = made([several("one")], parallelism=4.0)
    for expected_s in (0.04, 0.04, 0.03):
        place = await placed(expansions, model="medium")
        assert place.place.token_s == pytest.approx(expected_s)
        expansions.free(PlaceReport(place.id, tokens=100, longest=100, seconds=3.0))


@in_virtual_time
async def test_plans_count_a_device_once_and_leave_it_the_choice() -> None:
    expansions, _ = made([several("one"), several("two")], candidates=8)
    plan = await expansions.plan(LONG)
    assert (plan.candidates, plan.model) == (2, "")
    assert plan.share == pytest.approx(plan.sketch / 400)
    assert plan.budget_s == pytest.approx(0.05 * (400 - plan.sketch))
    assert (await made([device("one")])[0].plan(LONG)).model == "small"


def paper(current: int, tau_s: Sequence[float], budget_s: float, full: bool) -> int:
    """Algorithm 2 as it is printed: a smaller model if it is late, else the first larger one that is in time."""
    if tau_s[current] > budget_s:
        smaller = range(current - 1, -1, -1)
        return next((m for m in smaller if tau_s[m] <= budget_s), 0)
    larger = range(current + 1, len(tau_s))
    return next((m for m in larger if not full and tau_s[m] < budget_s), current)


BUDGETS = st.lists(st.floats(0.01, 3.0), min_size=1, max_size=40)


@given(budgets=BUDGETS, loaded=st.sampled_from(sorted(TOKEN_S)))
def test_where_loading_takes_no_time_it_is_the_papers_algorithm(budgets: list[float], loaded: str) -> None:
    async def jobs() -> None:
        expansions, _ = made([several("one", loaded, load_s=0.0)], parallelism=4.0)
        names = list(TOKEN_S)
        tau_s, current = [100 * token_s / 4 for token_s in TOKEN_S.values()], names.index(loaded)
        for budget_s in budgets:
            current = paper(current, tau_s, budget_s, full=False)
            assert await model_of(expansions, budget_s) == names[current]

    run(jobs())


@given(
    jobs=st.lists(
        st.tuples(st.floats(0.01, 3.0), st.sampled_from([0.0, 0.0, 0.9])), min_size=20, max_size=120
    ),
    load_s=st.floats(0.1, 5.0),
)
def test_it_does_not_flap(jobs: list[tuple[float, float]], load_s: float) -> None:
    """For any jobs, a device loads for no longer than it works; but for an ability that it lacks, once after each time
    that it gave that up."""

    async def serve() -> None:
        expansions, _ = made([several("one", load_s=load_s)], parallelism=4.0)
        worked_s, before, forced, given_up = 0.0, "small", 0, 0
        for budget_s, min_quality in jobs:
            worked_s += 100 * TOKEN_S[before] / 4
            after = await model_of(expansions, budget_s, min_quality=min_quality)
            if after != before:
                if before == "tiny" and min_quality:
                    forced += 1
                else:
                    assert load_s <= worked_s * (1 + 1e-9)
                    given_up += after == "tiny"
                worked_s = 0.0
            before = after
        assert forced <= given_up

    run(serve())


@in_virtual_time
async def test_a_place_that_would_take_longer_than_the_target_is_none() -> None:
    expansions, _ = made([device("quick", token_s=0.01), device("slow", token_s=0.2)])
    assert (await placed(expansions, target_s=5.0)).device == "quick"
    assert await expansions.place(PlaceRequest(next(IDS), 0, 100, target_s=1.2)) is None, (
        "1 s of it is in use"
    )
    began_s = asyncio.get_running_loop().time()
    assert await expansions.place(PlaceRequest(next(IDS), 0, 100, target_s=5.0)) is None, (
        "it was not given back"
    )
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(5.0 - 1.0)
    assert (await placed(expansions, target_s=5.0, dry_s=30.0)).device == "slow", (
        "the reader has something to read"
    )


@in_virtual_time
async def test_an_endpoint_that_was_late_gets_nothing_for_a_while() -> None:
    expansions, _ = made([device("one")])
    first = await placed(expansions)
    expansions.free(PlaceReport(first.id, late=True))
    assert (await expansions.plan(LONG)).reason == "no_device"
    assert await expansions.place(PlaceRequest(next(IDS), 0, 100)) is None
    await asyncio.sleep(LATE_S)
    assert (await expansions.plan(LONG)).sketch
    assert (await placed(expansions)).device == "one"


@in_virtual_time
async def test_plans_count_the_devices_that_are_quick_enough() -> None:
    """Three more that would take 80 s help nobody; the fourth answer would wait for three others."""
    quick, slow = device("quick", token_s=0.01), [device(f"slow-{n}", token_s=0.2) for n in range(3)]
    for devices in ([quick], [quick, *slow]):
        expansions, _ = made(devices)
        plans = [await expansions.plan(replace(LONG, request=number)) for number in range(5)]
        assert [plan.reason for plan in plans] == ["", "", "", "slow", "slow"]


@in_virtual_time
async def test_a_job_waits_for_the_next_one_only_where_all_are_busy() -> None:
    """One expansion of 100 tokens at 10 ms each, of which 0.4 s have passed."""
    expansions, _ = made([device("a"), device("b")])
    workers = list(expansions._workers())
    assert expansions._ahead_s(workers) == 0.0
    await placed(expansions)
    assert expansions._ahead_s(workers) == 0.0, "the other one is idle"
    await placed(expansions)
    await asyncio.sleep(0.4)
    assert expansions._ahead_s(workers) == pytest.approx(2 * (1.0 - 0.4) / 2)
    assert expansions._ahead_s(workers[:1]) == pytest.approx(1.0 - 0.4)
