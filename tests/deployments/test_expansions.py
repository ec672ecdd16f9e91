"""Places for expansions: in turn, to who is idle, good enough, and allowed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from cluster.registry import DeviceRecord
from deployments.assigner import Assigner
from deployments.directory import Snapshot
from deployments.expansions import FORGOTTEN_S, Expansions
from deployments.request.assignment import EndpointInfo
from deployments.request.expansion import Place, PlaceReport, PlaceRequest, PlanRequest
from deployments.settings import SketchSettings
from policies.collaboration import collaboration
from policies.routing import routing
from tests.virtual import in_virtual_time

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
    devices: Sequence[DeviceRecord] = (), expanders: int = 0, **settings: Any
) -> tuple[Expansions, Assigner]:
    pool = tuple(EndpointInfo(f"e{n}", f"e{n}", "expander", model="small") for n in range(expanders))
    assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8)
    assigner.see(Snapshot(1, {"expander": pool}, {record.name: record for record in devices}))
    return Expansions(assigner, SketchSettings(**settings)), assigner


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
    expansions, _ = made([device("one")], queue=queue)
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
    assert (await expansions.plan(LONG)).hopeless, "a device that is hardly quicker than the target"
    assert not (await expansions.plan(replace(LONG, target_token_s=0.0))).hopeless, "nobody knows yet"
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
