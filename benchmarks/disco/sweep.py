"""DiSCo against stochastic dispatch, over services, settings, devices and budgets: what `benchmarks disco` prints.

Per seed, 1000 requests, and what was learnt from 1000 before them. The policies are the live system's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.disco.course import SIDES, Draws
from tandem.benchmarks.disco.data import (
    DEVICES,
    LEAST_CUT,
    SERVICES,
    TABLE_2,
    TABLE_3,
    Draw,
    Service,
    resuming,
)
from tandem.benchmarks.disco.migration import (
    CONSISTENT,
    DEVICE_NOISE,
    SERVER_DECODE,
    Known,
    Migration,
    Moved,
    Rates,
)
from tandem.benchmarks.disco.oracle import Plan, Times, gap
from tandem.policies.estimators.windows import Latencies, Lengths
from tandem.policies.race.dispatch import DispatchState, Side, dispatch

BUDGETS = np.arange(1, 20) / 20
REQUESTS = 1000
FIRST_SEED = 1000  # policies were made with seeds below
ORACLE = 250
"""Quantiles of the server's times that stand for all of them in the oracle, and where plans are compared with it."""
Setting = tuple[str, Side]
RESUMES = resuming(1 / SERVER_DECODE)


@dataclass(slots=True)
class Sweep:
    """One service in one setting.

    p99_cut: relative cut of P99 TTFT against stochastic dispatch, by seed, budget and device.
    mean_cut: of mean TTFT, likewise.
    used: share of prompt tokens that the constrained endpoint took in, by seed and budget.
    moved: by device, then seed and budget; empty without costs.
    """

    p99_cut: np.ndarray
    mean_cut: np.ndarray
    used: np.ndarray
    moved: list[list[list[Moved]]] = field(default_factory=list)

    def cost_cuts(self, device: int, best: bool = False) -> np.ndarray:
        """Return the shares of the cost that migration saves, by seed and budget.

        best: if migrations took no time.
        """
        return np.array(
            [
                [1 - (m.usd_at_best if best else m.usd) / m.usd_without for m in seed]
                for seed in self.moved[device]
            ]
        )

    def cost_cut(self, device: int, best: bool = False) -> float:
        """Return the share at its best budget, mean over seeds."""
        return float(self.cost_cuts(device, best).mean(0).max())

    def pooled(self, name: str) -> np.ndarray:
        """One of Moved's arrays over all devices, seeds and budgets."""
        return np.concatenate([getattr(m, name) for device in self.moved for seed in device for m in seed])


class Costs(NamedTuple):
    """Costs that are counted.

    service: whose prices count.
    policy: of migration, with these parameters.
    rates: what a FLOP of the device is worth.
    resumes: draws the server's times to the next token of a prompt that it holds.
    """

    service: Service
    policy: str = "prepared"
    parameters: Mapping[str, float] = MappingProxyType({})
    rates: Rates = CONSISTENT
    resumes: Draw = RESUMES

    def migrations(self, ttft: Latencies, side: Side, rng: np.random.Generator) -> list[Migration]:
        """Return each device's."""
        known = Known(ttft, Latencies(self.resumes(rng, REQUESTS)))
        return [
            Migration(self.service, device, self.rates[side], known, self.policy, **self.parameters)
            for device in DEVICES.values()
        ]


def sweep(pool: np.ndarray, draw: Draw, side: Side, seeds: int, costs: Costs | None = None) -> Sweep:
    """DiSCo against stochastic dispatch over all budgets.

    pool: prompt lengths to draw from, tokens.
    draw: the server's times to first token.
    side: the constrained endpoint.
    costs: None: none are counted, and nothing migrates.
    """
    shape = seeds, len(BUDGETS), len(DEVICES)
    found = Sweep(np.empty(shape), np.empty(shape), np.empty(shape[:2]))
    found.moved = [[[] for _ in range(seeds)] for _ in DEVICES] if costs else []
    for seed in range(seeds):
        rng = np.random.default_rng(FIRST_SEED + seed)
        lengths, ttft = Lengths(rng.choice(pool, REQUESTS)), Latencies(draw(rng, REQUESTS))
        tokens, server_s, coins = rng.choice(pool, REQUESTS), draw(rng, REQUESTS), rng.random(REQUESTS)
        again_s, noise = draw(rng, REQUESTS), rng.lognormal(0, DEVICE_NOISE, REQUESTS)
        resumed_s = (costs.resumes if costs else RESUMES)(rng, REQUESTS)
        draws = [Draws(*each) for each in np.stack((again_s, resumed_s, noise), 1).tolist()]
        movers = costs.migrations(ttft, side, rng) if costs else []
        for i, budget in enumerate(BUDGETS):
            state = lengths, ttft, float(budget), side
            ours, theirs = (_starts(name, tokens, coins, *state) for name in ("disco", "stochastic"))
            spent = np.isfinite(ours[0]) if side is Side.SERVER else ours[1] < server_s
            found.used[seed, i] = tokens[spent].sum() / tokens.sum()
            for j, device in enumerate(DEVICES.values()):
                ours_s, theirs_s = (
                    np.minimum(server + server_s, start + tokens / device.prefill)
                    for server, start in (ours, theirs)
                )
                found.p99_cut[seed, i, j] = 1 - np.quantile(ours_s, 0.99) / np.quantile(theirs_s, 0.99)
                found.mean_cut[seed, i, j] = 1 - ours_s.mean() / theirs_s.mean()
            for j, mover in enumerate(movers):
                found.moved[j][seed].append(mover.move(tokens, ours[0] + server_s, ours[1], draws))
    return found


def gaps(pool: np.ndarray, draw: Draw, side: Side, seeds: int, keeps_tail: bool) -> np.ndarray:
    """Return by how much the plans' mean times to first token are above the oracle's, by seed, budget and device.

    keeps_tail: the oracle's device waits no longer than the plan's, either.
    """
    found = np.empty((seeds, len(BUDGETS), len(DEVICES)))
    for seed in range(seeds):
        rng = np.random.default_rng(FIRST_SEED + seed)
        lengths, ttft = Lengths(rng.choice(pool, REQUESTS)), Latencies(draw(rng, REQUESTS))
        tokens, server_s, coins = rng.choice(pool, REQUESTS), draw(rng, REQUESTS), rng.random(REQUESTS)
        times = Times(np.quantile(server_s, (np.arange(ORACLE) + 0.5) / ORACLE))
        for i, budget in enumerate(BUDGETS):
            servers_s, wait_s = _starts("disco", tokens, coins, lengths, ttft, float(budget), side)
            plan = Plan(tokens, np.isfinite(servers_s), wait_s)
            longest_s = float(wait_s.max()) if keeps_tail else np.inf
            for j, device in enumerate(DEVICES.values()):
                found[seed, i, j] = gap(plan, device.prefill, times, side, longest_s)
    return found


def _starts(
    name: str,
    tokens: np.ndarray,
    coins: np.ndarray,
    lengths: Lengths,
    ttft: Latencies,
    budget: float,
    side: Side,
) -> tuple[np.ndarray, np.ndarray]:
    """Return when server and device start on each prompt, seconds."""
    choose = dispatch.create(name).choose
    starts = [
        choose(DispatchState(n, lengths, ttft, budget, side, coin))
        for n, coin in zip(tokens.tolist(), coins.tolist(), strict=True)
    ]
    return np.array([s.server_s for s in starts]), np.array([s.device_s for s in starts])


def sweeps(
    pool: np.ndarray,
    seeds: int,
    what: str,
    tail: float = 1.0,
    held: float | None = None,
    **options: Any,
) -> dict[Setting, Sweep]:
    """All services in both settings.

    tail: what σ of the server's times to first token is multiplied by.
    held: share of such a time after which a server that holds the prompt goes on; None: after RESUMES.
    options: of `Costs`.
    """
    settings = [(name, side) for name in SERVICES for side in SIDES]
    found = {}
    for name, side in report.progress(settings, what):
        draw = SERVICES[name].ttft(tail)
        if held is not None:
            options["resumes"] = lambda rng, n, draw=draw: held * draw(rng, n)
        found[name, side] = sweep(pool, draw, side, seeds, Costs(SERVICES[name], **options))
    return found


@dataclass(frozen=True, slots=True)
class Summary:
    """All services in both settings.

    as_paper: cells of table 2 that reach the paper's.
    in_range: cells that reach 11 %.
    cost_cuts: by setting, then seed, the share of the cost that migration saves at best.
    at_best: likewise if migrations took no time.
    delayed: mean delayed tokens over the paper's, the largest of services and settings.
    """

    as_paper: int
    in_range: int
    cost_cuts: dict[Side, np.ndarray]
    at_best: dict[Side, np.ndarray]
    delayed: float


def summarise(found: dict[Setting, Sweep]) -> Summary:
    cells = [
        (100 * float(cut), paper)
        for (name, side), s in found.items()
        for cut, paper in zip(s.p99_cut.mean((0, 1)), TABLE_2[name, side], strict=True)
    ]
    cuts, bests = (
        {
            side: _best_of_others(
                [
                    s.cost_cuts(j, best)
                    for (_, at), s in found.items()
                    if at is side
                    for j in range(len(DEVICES))
                ]
            )
            for side in SIDES
        }
        for best in (False, True)
    )
    return Summary(
        sum(cut >= paper for cut, paper in cells),
        sum(cut >= LEAST_CUT for cut, _ in cells),
        cuts,
        bests,
        max(mean(s.pooled("delayed")) / TABLE_3[key][0] for key, s in found.items()),
    )


def _best_of_others(cuts: list[np.ndarray]) -> np.ndarray:
    """Return by seed the cut at that service, device and budget which are the best of the other seeds; of this one if
    it is the only one."""
    by_seed = np.concatenate(cuts, axis=1)
    seeds = len(by_seed)
    others = by_seed if seeds == 1 else (by_seed.sum(0) - by_seed) / (seeds - 1)
    return by_seed[np.arange(seeds), others.argmax(1)]


def mean(values: np.ndarray) -> float:
    """0 of none."""
    return float(values.mean()) if len(values) else 0.0


def p99(values: np.ndarray) -> float:
    """0 of none."""
    return float(np.quantile(values, 0.99)) if len(values) else 0.0
