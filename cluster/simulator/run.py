"""Build a world from a configuration and let it run."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.profile import load_profile
from cluster.simulator import hardware
from cluster.simulator.analysis import Result
from cluster.simulator.config import Config, Drafters, Targets
from cluster.simulator.core import Process, Simulation
from cluster.simulator.device import Device, SimulatedLink
from cluster.simulator.hardware import OperatorTimer, RateTimer, StepTimer
from cluster.simulator.log import Log
from cluster.simulator.plans import PLANS
from cluster.simulator.scheduled import HostTier, ScheduledServer
from cluster.simulator.server import Server
from cluster.simulator.workload import Request, build
from cluster.simulator.world import Rivals, Task, World
from policies.batching import batching
from policies.contest import Payer
from policies.cost import per_million
from policies.dispatch import dispatch
from policies.migration import migration
from policies.scheduling import scheduling
from policies.window import WindowPolicy

UNLIMITED = 1 << 40  # tokens of KV cache
Progress = Callable[[int], None]  # requests finished since the last call


def simulate(
    config: Config,
    progress: Progress | None = None,
    requests: Sequence[Request] | None = None,
    window: Callable[[], WindowPolicy] | None = None,
) -> Result:
    """Run the configuration to its end.

    requests: in order of arrival, in place of the configured workload; window: makes a window policy per
    draft–target pair, in place of the configured one. Raises ConfigError, TraceError or the hardware
    model's errors before it begins, CacheTooSmall if a request fits on no server.
    """
    began = time.perf_counter()
    if requests is None:
        requests = build(config.workload)
    world, devices = _world(config, window)
    logs: list[Log] = []
    ready = time.perf_counter()
    arrivals = _closed if config.workload.arrival.kind == "closed" else _open
    arrivals(config, world, devices, requests, logs, progress)
    world.simulation.run()
    return Result(
        config=config,
        logs=logs,
        servers=world.servers,
        events=world.simulation.events,
        link_waits_s=devices.waited_s(),
        sent_bytes=devices.sent_bytes(),
        estimates=_estimates(config),
        setup_s=ready - began,
        run_s=time.perf_counter() - ready,
    )


def _open(
    config: Config,
    world: World,
    devices: _Devices,
    requests: Sequence[Request],
    logs: list[Log],
    progress: Progress | None,
) -> None:
    """Requests come at their times, whatever became of those before them."""

    def arrive(index: int) -> None:
        if index + 1 < len(requests):  # one pending arrival at a time keeps the heap small
            world.simulation.at(requests[index + 1].arrival_s, arrive, index + 1)
        owner = requests[index].drafter
        device = (index if owner is None else owner) % len(devices)
        world.simulation.spawn(_answer(config, world, devices, requests[index], device, logs, progress))

    if requests:
        world.simulation.at(requests[0].arrival_s, arrive, 0)


def _closed(
    config: Config,
    world: World,
    devices: _Devices,
    requests: Sequence[Request],
    logs: list[Log],
    progress: Progress | None,
) -> None:
    """Each user asks again when it has read its last answer and thought, as long as there are requests."""
    left, arrival = iter(requests), config.workload.arrival

    def user(device: int) -> Process:
        for request in left:
            yield from _answer(config, world, devices, request, device, logs, progress)
            yield world.now + arrival.think_s  # a plan ends when its last token is read

    for device in range(min(arrival.users or len(devices), len(devices), len(requests))):
        world.simulation.spawn(user(device))


def _answer(
    config: Config,
    world: World,
    devices: _Devices,
    request: Request,
    device: int,
    logs: list[Log],
    progress: Progress | None,
) -> Process:
    log = Log(world.now, request.prompt_tokens, request.output_tokens, config.history)
    log.device, log.rate = device, request.rate
    logs.append(log)
    yield from PLANS[config.mode](world, Task(request, devices[device], log))
    if progress is not None:
        progress(1)


class _Devices(Sequence[Device]):
    """Made when first needed: most of a hundred thousand devices may never see a request.

    Groups are mixed evenly, so that the first N requests meet each in proportion.
    """

    def __init__(self, groups: Sequence[Drafters], seed: int, data: str | None) -> None:
        self._groups, self._seed = groups, seed
        self._timers = [_drafter_timer(group, data) for group in groups]
        shares = sorted((i / group.count, g) for g, group in enumerate(groups) for i in range(group.count))
        self._group_of = array("H", (g for _, g in shares))
        self._devices: dict[int, Device] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __getitem__(self, index: int) -> Device:  # type: ignore[override]
        device = self._devices.get(index)
        if device is None:
            g = self._group_of[index]
            group = self._groups[g]
            link = SimulatedLink(group.link.profile(self._seed * 1_000_003 + index))
            device = Device(f"device-{index}", self._timers[g], link, group.sessions, _power_w(group))
            self._devices[index] = device
        return device

    def waited_s(self) -> float:
        return sum(device.link.waited_s for device in self._devices.values())

    def sent_bytes(self) -> int:
        return sum(device.link.sent_bytes for device in self._devices.values())


def _world(config: Config, chosen: Callable[[], WindowPolicy] | None) -> tuple[World, _Devices]:
    targets, drafters = config.topology()
    simulation = Simulation()
    (routing, chosen_routing), _, (window, chosen_window), *_ = config.choices()
    servers = [
        _server(simulation, f"{group.model}-{g}-{i}", group, config)
        for g, group in enumerate(targets)
        for i in range(group.count)
    ]
    world = World(
        simulation,
        servers,
        routing.create(chosen_routing.name, **chosen_routing.parameters),
        chosen or (lambda: window.create(chosen_window.name, **chosen_window.parameters)),
        fused_window=config.fused_window,
        reader_at_device=config.reader == "device",
        rivals=_rivals(config) if config.mode == "race" else None,
        latency=config.race.latency,
        seed=config.seed,
    )
    return world, _Devices(drafters, config.seed, config.data)


def _rivals(config: Config) -> Rivals:
    chosen, race = config.policies, config.race
    payer = Payer(
        dispatch.create(chosen.dispatch.name, **chosen.dispatch.parameters),
        migration.create(chosen.migration.name, **chosen.migration.parameters),
    )
    for budget in payer.budgets.values():
        budget.share = race.budget
    return Rivals(payer, per_million(race.price_in, race.price_out), race.exchange_rate)


def _server(simulation: Simulation, name: str, group: Targets, config: Config) -> Server:
    chosen = config.policies
    settings: dict[str, Any] = {
        "timer": _target_timer(group, config.data),
        "batching": batching.create(chosen.batching.name, **chosen.batching.parameters),
        "token_budget": group.token_budget,
        "max_sessions": group.max_sessions,
        "kv_tokens": _kv_tokens(group, config.data),
        "draft_timer": _draft_timer(group, config.data),
        "padded": group.padded,
        "first_apart": group.first_apart,
        "call_s": group.call_s,
    }
    if chosen.scheduling is None:
        return Server(simulation, name, **settings)
    policy = scheduling.create(chosen.scheduling.name, **chosen.scheduling.parameters)
    if settings["kv_tokens"] is None:
        settings["kv_tokens"] = UNLIMITED
    return ScheduledServer(simulation, name, scheduling=policy, tier=_tier(group), **settings)


def _tier(group: Targets) -> HostTier | None:
    host = group.host
    if host is None:
        return None
    if host.copy_tokens_per_s is not None:
        token_s = 1 / host.copy_tokens_per_s
    else:
        token_s = hardware.kv_bytes(group.model) / (host.copy_gb_per_s * 1e9)
    return HostTier(host.tokens, token_s, host.write_through, host.overlap)


def _timer(hardware_name: str, model: str, data: str | None) -> OperatorTimer:
    return hardware.timer(hardware_name, model, data=None if data is None else Path(data))


def _target_timer(group: Targets, data: str | None) -> StepTimer:
    return group.measured or _timer(group.hardware, group.model, data)


def _draft_timer(group: Targets, data: str | None) -> StepTimer | None:
    if group.measured_draft is not None or group.draft_model is None:
        return group.measured_draft
    return _timer(group.hardware, group.draft_model, data)


def _drafter_timer(group: Drafters, data: str | None) -> StepTimer:
    if group.profile is not None:
        return RateTimer.of(load_profile(group.profile))
    if group.hardware is not None and group.model is not None:
        return _timer(group.hardware, group.model, data)
    timer = group.rates or group.measured
    assert timer is not None  # Drafters has seen to that
    return timer


def _power_w(group: Drafters) -> float:
    if group.power_w is None and group.profile is not None:
        return load_profile(group.profile).power_w
    return group.power_w or 0.0


def _kv_tokens(group: Targets, data: str | None) -> int | None:
    if group.kv_tokens is not None or group.measured is not None:
        return group.kv_tokens
    return hardware.kv_tokens(group.hardware, group.model)


def _estimates(config: Config) -> dict[str, Mapping[str, str]]:
    """Where each timer's operators come from, by "hardware model"; what is only estimated says so."""
    targets, drafters = config.topology()
    named: dict[str, Mapping[str, str]] = {}
    groups: list[Targets | Drafters] = [*targets, *drafters]
    for group in groups:
        if group.measured is None and group.hardware is not None and group.model is not None:
            timer = _timer(group.hardware, group.model, config.data)
            named[f"{group.hardware} {group.model}"] = dict(timer.sources)
    return named
