"""Scenario drawn by a seed: a small system, its requests, and its faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tandem.deployments.modes import AT_FRONT_DOORS
from tandem.deployments.modes.sketch.mode import SketchMode
from tandem.deployments.modes.speculative.mode import SpeculativeMode
from tandem.policies.cost import MAINS_USD_PER_J
from tandem.simulator.config.config import Config, parse
from tandem.simulator.workload import Request
from tandem.simulator.world.network import RESUME_S, SILENCE_S

LAST_FAULT_S = 60.0
HURRY = 10.0  # factor on the rates of requests and faults if room is tight
SHORT_RACES = 40  # additional requests in some runs
TIGHT_BLOCKS = 256  # KV blocks of a replica without room for all
SESSIONS = 8  # most sessions of a device
DEVICE_FAULTS = ("restart", "cut", "stall", "leave", "away")
FATAL_FAULTS = ("kill", "restart", "cut", "drain", "leave", "drafter", "silence", "hang", "middle", "frozen")
FUSED = 0.3
"""Share of speculative requests that name no device."""
HANGS = 0.2
"""Share of seeds in which an engine hangs."""
CHOSEN = 0.3
"""Share of seeds in which policy `auto` chooses most requests' modes, and may change them on the way."""
KEYED = 0.3
"""Share of seeds whose requests come with keys."""
SPARE_TOKENS = 8
"""Tokens by which `max_tokens` exceeds the answers of requests with keys."""
FATAL = 3  # most fatal faults in a run, fewer than the endpoints that a request may lose
LIMITS = {"open_s": 5.0, "first_s": 20.0, "step_s": 15.0}
WAIT_S = 15.0
"""Timeouts shorter than the application's, so that the promises that follow from them are strict."""
DEAR_JOULE = 1e-4
"""Dollars per joule with which the devices are the constrained endpoints."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault.

    at_s: when it happens.
    kind: method of `Saboteur`.
    target: index of what it hits.
    seconds: duration.
    """

    at_s: float
    kind: str
    target: int
    seconds: float


def is_tight(config: Config) -> bool:
    """Return whether there is not room for all requests at once."""
    return config.engine.kv_blocks == TIGHT_BLOCKS


def tenants(seed: int) -> list[dict[str, Any]]:
    """Return the limits of the keys that the requests of some seeds come with, tight enough to be reached."""
    random = Random(f"keys of {seed}")
    if random.random() > KEYED:
        return []
    return [
        {
            "usd": random.choice([None, random.uniform(2e-4, 1e-3)]),
            "concurrent": random.choice([None, 1, 3]),
        }
        for _ in range(random.randint(1, 3))
    ]


def scenario(seed: int) -> tuple[Config, list[Request], list[Fault]]:
    """Return a small system, its requests, and faults that leave an endpoint to answer."""
    random, more = (
        Random(seed),
        Random(f"more of {seed}"),
    )  # separate generators: draws from one leave the others as they are
    split, sketch = Random(f"split of {seed}"), Random(f"sketches of {seed}")
    held, burst = Random(f"models of {seed}"), Random(f"bursts of {seed}")
    choice = Random(f"choices of {seed}")
    chosen = choice.random() < CHOSEN
    others = [
        {
            "rates": {"prefill_tokens_per_s": 500, "decode_tokens_per_s": rate},
            "load_s": held.uniform(0.0, 1.5),
        }
        for rate in held.choice([(), (), (80,), (80, 20)])
    ]
    servers, devices = random.randint(2, 3), random.randint(1, 3)
    tight = random.random() < 0.3
    config = parse(
        {
            "name": "chaos",
            "seed": random.randrange(2**31),
            "reader": random.choice(["cloud", "device"]),
            "mode": None,
            "history": True,
            "workload": {"kind": "synthetic", "count": 1},
            "window": {"name": random.choice(["static", "dynamic", "awc"])},
            "router": {
                "routing": {"name": random.choice(["jsq", "round_robin", "random"])},
                "wait_s": WAIT_S,
                "collaboration": {
                    "name": "auto",
                    "parameters": {"explore": 0.2, "change": choice.choice([0.0, 0.25])},
                }
                if chosen
                else {"name": "explicit"},
            },
            "racing": {"dispatch": {"name": random.choice(["disco", "stochastic", "server", "device"])}},
            "accounts": {
                "budget": more.choice([0.0, 0.1, 0.5]),
                "exchange_rate": more.choice([MAINS_USD_PER_J, DEAR_JOULE]),
            },
            "limits": LIMITS,
            "engine": {
                "kv_blocks": TIGHT_BLOCKS if tight else 2048,
                "max_sessions": random.choice([2, 4]) if tight else 64,
                "max_waiting": more.choice([0, 1, 3]) if tight else 64,
                "token_budget": 256,
                "scheduling": random.choice([None, {"name": "buffer_aware"}, {"name": "fcfs"}]),
            },
            "targets": [
                {
                    "model": "target",
                    "count": servers,
                    "measured": {"base_s": 0.02, "token_s": 1e-4},
                    "measured_draft": {"base_s": 0.004, "token_s": 1e-5},
                    "call_s": random.choice([0.0, 0.001]),
                },
                {
                    "model": "middle",
                    "first": 2,
                    "count": 2,
                    "measured": {"base_s": 0.02, "token_s": 1e-4},
                    "call_s": split.choice([0.0, 0.001]),
                },
            ],
            "split": {
                "chunking": {"name": split.choice(["hat", "fixed", "whole"])},
                "drafting": {"name": split.choice(["threshold", "expected_gain", "fallback", "none"])},
                "parallel_drafting": {"name": split.choice(["hat", "none"])},
            },
            "sketch": {
                "sketching": {"name": sketch.choice(["latency", "always"]), "parameters": {"shortest": 40}},
                "candidates": sketch.choice([1, 2]),
                "batch": sketch.choice([1, 2]),
                "within": sketch.choice([0.0, 0.25]),
                "models": {
                    "devices-0": {"capability": 0.9},
                    "devices-0-1": {"capability": 0.8, "least_share": held.choice([0.3, 0.5])},
                    "devices-0-2": {"capability": 1.0},
                }
                if others
                else {},
            },
            "devices": [
                {
                    "count": devices,
                    "sessions": SESSIONS,
                    "rates": {"prefill_tokens_per_s": 500, "decode_tokens_per_s": 40},
                    "link": {"rtt_ms": random.choice([5, 30, 80]), "jitter_ms": random.choice([0, 2])},
                    "power_w": 5.0,
                    "others": others,
                    "ends": {"base_s": 0.005, "token_s": 1e-4, "head_s": 0.002},
                }
            ],
        }
    )
    modes: list[str | None] = [None, *(mode for mode in AT_FRONT_DOORS if mode != SketchMode.name)]
    requests = [
        Request(
            arrival_s=arrival_s,
            prompt_tokens=random.randint(1, 120),
            output_tokens=(output := random.randint(1, 200)),
            acceptance=bytes(random.random() < 0.75 for _ in range(output)),
            device=random.randrange(devices),
            reader_rate=random.choice([0.0, 5.0, 20.0]),
            mode=random.choice(modes),
            max_tokens=1000,
        )
        for arrival_s in sorted(random.uniform(0, LAST_FAULT_S) for _ in range(random.randint(3, 16)))
    ]
    if chosen:
        requests = [replace(each, mode=each.mode if choice.random() < 0.3 else None) for each in requests]
    fused = Random(f"requests of {seed} that name no device")
    requests = [
        replace(each, fused=each.mode == SpeculativeMode.name and fused.random() <= FUSED)
        for each in requests
    ]
    if more.random() < 0.2 and not tight:  # the budget of a few races is hard to overspend
        races = [_short_race(more, devices) for _ in range(SHORT_RACES)]
        if burst.random() < 0.5:  # about as many at once as fit the devices
            at_s, many = burst.uniform(0, LAST_FAULT_S), SESSIONS * devices
            races = [*(replace(race, arrival_s=at_s) for race in races[:many]), *races[many:]]
        requests = sorted([*requests, *races], key=lambda request: request.arrival_s)
    private = []
    if config.reader == "device":
        private = [_split(split, devices) for _ in range(split.randint(0, 6))]
        requests = sorted([*requests, *private], key=lambda request: request.arrival_s)
    long = [_sketched(sketch, devices) for _ in range(sketch.randint(0, 6))]
    requests = sorted([*requests, *long], key=lambda request: request.arrival_s)
    away = [_away(split, request) for request in private[:1]]
    first = ["kill", "restart", "cut", "stall", "late", "router", "scheduler", "drain"]
    faults = _faults(random, [random.choice(first) for _ in range(random.randint(1, 6))], servers, devices)
    fatal = sum(fault.kind in FATAL_FAULTS for fault in faults)
    second = [more.choice(["leave", "drafter", "silence"]) for _ in range(more.randint(0, 2))]
    faults += _faults(more, second, servers, devices, fatal) + away
    hangs = Random(f"hangs of {seed}")
    if hangs.random() < HANGS:
        fatal = sum(fault.kind in FATAL_FAULTS for fault in faults)
        faults += _faults(hangs, ["hang"], servers, devices, fatal)
    middles = Random(f"middles of {seed}")
    if private and sum(fault.kind in FATAL_FAULTS for fault in faults) < FATAL:
        faults.append(_at_the_middle(middles, middles.choice(private)))
    absent = Random(f"requests of {seed} while drafters are gone")
    gone = [_fused(absent, fault, devices) for fault in faults if fault.kind == "drafter"]
    requests = sorted([*requests, *gone], key=lambda request: request.arrival_s)
    if tenants(seed):
        keys = Random(f"faults of the keys of {seed}")
        kinds = [keys.choice(["access", "takeover", "router"]) for _ in range(keys.randint(1, 4))]
        faults += _faults(keys, kinds, servers, devices)
        # What is reserved is close to what is spent, so that limits are exceeded where nothing is.
        requests = [replace(r, max_tokens=r.output_tokens + SPARE_TOKENS) for r in requests]
    if tight:  # more requests at once than there is room for
        requests = [replace(request, arrival_s=request.arrival_s / HURRY) for request in requests]
        faults = [replace(fault, at_s=fault.at_s / HURRY) for fault in faults]
    return config, requests, faults


def _short_race(random: Random, devices: int) -> Request:
    return Request(
        arrival_s=random.uniform(0, LAST_FAULT_S),
        prompt_tokens=random.randint(1, 120),
        output_tokens=random.randint(1, 20),
        device=random.randrange(devices),
        mode="race",
        max_tokens=1000,
    )


def _split(random: Random, devices: int) -> Request:
    return Request(
        arrival_s=random.uniform(0, LAST_FAULT_S),
        prompt_tokens=random.randint(1, 120),
        output_tokens=(output := random.randint(1, 200)),
        acceptance=bytes(random.random() < 0.75 for _ in range(output)),
        device=random.randrange(devices),
        mode="split",
        max_tokens=1000,
    )


def _sketched(random: Random, devices: int) -> Request:
    return Request(
        arrival_s=random.uniform(0, LAST_FAULT_S),
        prompt_tokens=random.randint(1, 120),
        output_tokens=random.randint(1, 300),
        device=random.randrange(devices),
        reader_rate=random.choice([0.0, 5.0, 20.0]),
        mode=SketchMode.name,
        max_tokens=1000,
    )


def _fused(random: Random, fault: Fault, devices: int) -> Request:
    """Return a request without a device that comes soon after all drafters were killed."""
    return Request(
        arrival_s=fault.at_s + random.uniform(0.1, 2.0),
        prompt_tokens=random.randint(1, 120),
        output_tokens=(output := random.randint(1, 200)),
        acceptance=bytes(random.random() < 0.75 for _ in range(output)),
        device=random.randrange(devices),
        mode=SpeculativeMode.name,
        max_tokens=1000,
        fused=True,
    )


def _away(random: Random, request: Request) -> Fault:
    """Return a fault in which the request's device leaves while it is answered, and comes back in time."""
    assert request.device is not None
    at_s = request.arrival_s + random.uniform(0.1, 2.0)
    return Fault(at_s, "away", request.device, random.uniform(0.2, 0.9 * RESUME_S))


def _at_the_middle(random: Random, request: Request) -> Fault:
    """Return a fault in which a middle is lost while the request is answered: killed, or stopped for a while."""
    at_s, kind = request.arrival_s + random.uniform(0.1, 2.0), random.choice(["middle", "frozen"])
    return Fault(at_s, kind, random.randrange(2), random.uniform(2.0, 4.0) * SILENCE_S)


def _faults(random: Random, kinds: Sequence[str], servers: int, devices: int, fatal: int = 0) -> list[Fault]:
    """Draw faults of these kinds, with at most FATAL fatal ones; fatal: number of fatal ones drawn before."""
    faults = []
    for kind in kinds:
        fatal += kind in FATAL_FAULTS
        if fatal > FATAL and kind in FATAL_FAULTS:
            continue
        count = devices if kind in DEVICE_FAULTS else servers
        at_s, target, seconds = (
            random.uniform(0, LAST_FAULT_S),
            random.randrange(count),
            random.uniform(0.2, 20.0),
        )
        if kind == "silence":  # long enough for the connection to count as lost
            seconds *= 2 * SILENCE_S / 20.0
        faults.append(Fault(at_s, kind, target, seconds))
    return faults
