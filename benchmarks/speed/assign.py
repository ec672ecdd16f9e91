"""Cost of the router's decision with many devices, and of keeping up with their changes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import median
from typing import NamedTuple

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.learning.report import Report
from tandem.deployments.modes import AT_FRONT_DOORS
from tandem.deployments.modes.race.router import RaceRouter
from tandem.deployments.modes.speculative.mode import SpeculativeRouter
from tandem.deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Directory, Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.policies.cost import Used
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing

VERIFIERS, DRAFTERS = 8, 4
REQUESTS, REPEATS = 300, 5


class RouterCosts(NamedTuple):
    """CPU milliseconds.

    assign: of an assignment, by mode and by how a device is wished for.
    auto: of one by policy `auto`, where mode and device are left open.
    report: of taking in what an answer has taught.
    snapshot: of taking over a whole snapshot.
    changes: of a second in which every tenth device changes, told in ten parts.
    register: of a second of the scheduler in which all devices give a sign of life, a thousand at a time.
    """

    assign: dict[str, float]
    auto: float
    report: float
    snapshot: float
    changes: float
    register: float


def router_costs(devices: int) -> RouterCosts:
    """Measure with this number of registered devices."""
    records = [_device(number, 0) for number in range(devices)]
    pools = {
        pool: tuple(EndpointInfo(f"{pool} {n}", f"10.0.0.{n}:1", pool, "m", "v") for n in range(count))
        for pool, count in (("verifier", VERIFIERS), ("drafter", DRAFTERS))
    }
    router = Routing(Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 64))
    whole = Snapshot(1, pools, {record.name: record for record in records})
    _teach(router, pools["verifier"], records)
    snapshot = _ms(lambda: router.see(whole))
    named, several = records[devices // 2].name, tuple(r.name for r in records[:: max(1, devices // 16)][:16])
    wishes = {"no device": None, "any device": "any", "a device by name": named, "one of several": several}
    numbers = itertools.count(1)

    def burst(mode: str, device: str | tuple[str, ...] | None) -> None:
        for number in itertools.islice(numbers, REQUESTS):
            router.assign_now(
                RoutingRequest(mode, device, request=number, prompt_tokens=39, account=f"key-{number % 50}")
            )

    assign = {
        f"{mode}, {wish}": _ms(partial(burst, mode, device)) / REQUESTS
        for mode in AT_FRONT_DOORS
        for wish, device in wishes.items()
    }
    report = Report("key-1", "", 100, True, Bill(1, Used(39, 100), 1e-5, 9e-5))

    def reports() -> None:
        for _ in range(REQUESTS):
            router.learn(report)

    version = 1

    def changes() -> None:
        nonlocal version
        for part in range(10):
            version += 1
            changed = {r.name: _device(n, version) for n, r in enumerate(records) if n % 100 == part}
            router.see(Snapshot(version, pools, changed, (), version - 1))

    directory, now_s = Directory(expiry_s=4.0), 0.0

    def signs_of_life() -> None:
        nonlocal now_s
        now_s += 1.0
        for first in range(0, devices, 1000):
            directory.register(records[first : first + 1000], now_s)

    auto = _auto_ms(whole, pools["verifier"], records)
    return RouterCosts(assign, auto, _ms(reports) / REQUESTS, snapshot, _ms(changes), _ms(signs_of_life))


def _auto_ms(whole: Snapshot, verifiers: tuple[EndpointInfo, ...], records: list[DeviceRecord]) -> float:
    """Return the milliseconds of a decision by policy `auto` after as many answers, from which it has learnt."""
    router = Routing(Assigner(collaboration.create("auto"), lambda: routing.create("jsq"), 64))
    _teach(router, verifiers, records)
    router.see(whole)
    numbers = itertools.count(1)

    def burst() -> list[Assignment]:
        return [
            router.assign_now(
                RoutingRequest(request=number, prompt_tokens=39, account=f"key-{number % 50}"),
                now_s=number / 50,
            )
            for number in itertools.islice(numbers, REQUESTS)
        ]

    for made in burst():
        bill = Bill(1, Used(39, 100), 1e-5, 9e-5)
        came = Report(
            "key-1", "", 100, True, bill, mode=made.mode, ttft_s=0.3, tpot_s=0.03, forecast=made.forecast
        )
        router.learn(came)
    return _ms(burst) / REQUESTS


def _teach(router: Routing, verifiers: tuple[EndpointInfo, ...], records: list[DeviceRecord]) -> None:
    """Fill the learnt statistics to their limits."""
    random, races, rounds = Random(1), router.modes["race"], router.modes["speculative"]
    assert isinstance(races, RaceRouter)
    assert isinstance(rounds, SpeculativeRouter)
    for number in range(4096):
        device = EndpointInfo.of(records[number % len(records)])
        rivals = races.rivals.of(verifiers[0], device)
        rivals.ttft.note(random.lognormvariate(-1.0, 0.5))
        rivals.outputs.note(random.randrange(1, 400))
        rounds.pairs.of(device, verifiers[number % VERIFIERS]).note(4, 2, 3, 0.03, 0.02)


def _device(number: int, sessions: int) -> DeviceRecord:
    return DeviceRecord(
        name=f"device-{number}",
        address=f"10.1.{number >> 8}.{number & 255}:1",
        profile="native",
        model="s",
        vocabulary="v",
        rtt_s=0.001 * (number % 50),
        sessions=sessions % 3,
        prefill_token_s=0.001,
    )


def _ms(work: Callable[[], object]) -> float:
    """CPU milliseconds, the median of REPEATS times."""
    times_ms = []
    for _ in range(REPEATS):
        began_s = time.process_time()
        work()
        times_ms.append(1e3 * (time.process_time() - began_s))
    return median(times_ms)
