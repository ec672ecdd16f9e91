"""Cost and reading delay of migrations: the money for what benchmarks.disco.course finds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tandem.benchmarks.disco.course import ANSWER, READER, Course, Draws, Pace, course
from tandem.benchmarks.disco.data import Device, Service
from tandem.policies.cost import PerToken
from tandem.policies.estimators.step_time import StepTimeModel
from tandem.policies.estimators.windows import Latencies, Outputs
from tandem.policies.race.costs import Costs
from tandem.policies.race.dispatch import Side, dispatch
from tandem.policies.race.migration import migration
from tandem.policies.race.race import Race, RaceAccount, RaceHistory, RaceRequest

Rates = Mapping[Side, float]
"""Dollars for a FLOP of the device, in either setting."""
PRINTED: Rates = {Side.SERVER: 0.3e-6, Side.DEVICE: 5e-6}
"""The paper's energy_to_money as printed, 0.3 and 5 "$ per million FLOPs": a phone's token costs hundreds of dollars.
The server is then the cheap one to decode on in both settings, and algorithm 1 would never call it constrained; where
it is, hand-overs go to it beyond its budget.
"""
CONSISTENT: Rates = {side: 1e-9 * rate for side, rate in PRINTED.items()}
"""The printed costs in the unit of the paper's price list, dollars for a million tokens of a GFLOP each: the only
power of ten at which its 0.3 makes the server the dearer decoder, and its 5 the device (but for Command), as its two
settings need. Answers then migrate from the server to the device, and from the device to the server."""
SERVER_DECODE = 50.0
"""Tokens/s. Assumed, the paper says none; medians in api_ttft: 31 (command-r-plus) to 106 (Llama-3-70B, together)."""
DEVICE_NOISE = 0.1
"""Assumed: σ of the logarithm of a device's prefill time around the k·l + c that is estimated."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Migrations of some requests.

    usd: cost with migration.
    usd_without: cost without.
    usd_at_best: cost if migrations took no time.
    delayed: by migrated request, tokens that came later than a steady reader would have reached them.
    stalls_s: that reader's waits.
    """

    usd: float
    usd_without: float
    usd_at_best: float
    delayed: np.ndarray
    stalls_s: np.ndarray


class Known(NamedTuple):
    """Times of a server that were seen before.

    ttft: to the first token.
    resumed: to the next token, of a prompt that it held.
    """

    ttft: Latencies
    resumed: Latencies


class Migration:
    """One service and one device.

    known: the server's times so far.
    policy: of migration.
    parameters: of the policy.
    """

    def __init__(
        self,
        service: Service,
        device: Device,
        usd_per_flop: float,
        known: Known,
        policy: str = "prepared",
        **parameters: float,
    ) -> None:
        self._price, self._device, self._rate = service.price, device, usd_per_flop
        speeds = StepTimeModel(1e-6, 1 / device.prefill)
        self._known = RaceHistory(known.ttft, speeds, Outputs(ANSWER), known.resumed)
        self._payer = RaceAccount(dispatch.create("disco"), migration.create(policy, **parameters))
        self._courses: dict[tuple[int, int, tuple[float, float]], tuple[Course, np.ndarray]] = {}
        self._costs: dict[int, Costs] = {}

    def costs(self, taken_in: int) -> Costs:
        """Return the costs after a prefill of `taken_in` tokens, with which the device's costs grow (equation 10)."""
        if taken_in not in self._costs:
            model = self._device.model
            flops = PerToken(model.prefill_flops(taken_in), model.decode_flops(ANSWER))
            self._costs[taken_in] = Costs(self._price, flops, self._rate)
        return self._costs[taken_in]

    def move(
        self, tokens: np.ndarray, server_s: np.ndarray, device_start_s: np.ndarray, draws: Sequence[Draws]
    ) -> Moved:
        """Migrate the answers; endpoints that started pay for the whole prompt. Always call it with the same requests.

        tokens: of the prompts.
        server_s: when the server's first token would come; infinite for never.
        device_start_s: when the device would start; infinite for never.
        """
        device_s = device_start_s + tokens / self._device.prefill
        usd, delayed, stalls_s = np.zeros(3), [], []
        for i, prompt in enumerate(tokens.tolist()):
            source = int(device_s[i] < server_s[i])
            starts_s = 0.0 if server_s[i] < math.inf else math.inf, float(device_start_s[i])
            started = starts_s[0] < math.inf, starts_s[1] < server_s[i]
            key = i, source, starts_s
            if key not in self._courses:
                first_s, other_s = (float(times[i]) for times in (server_s, device_s)[:: 1 - 2 * source])
                elapsed_s = first_s - starts_s[1 - source] if started[1 - source] else None
                found = self._course(prompt, source, draws[i], elapsed_s, other_s - first_s)
                self._courses[key] = found, np.array(self._usd(prompt, source, started, found))
            found, found_usd = self._courses[key]
            usd += found_usd
            if found.sent < ANSWER:
                delayed.append(found.delayed)
                stalls_s.append(found.stall_s)
        moves, stays, at_best = usd.tolist()
        return Moved(moves, stays, at_best, np.array(delayed), np.array(stalls_s))

    def _course(
        self, prompt: int, source: int, draws: Draws, elapsed_s: float | None, ready_s: float
    ) -> Course:
        if self._token_usd(source) <= self._token_usd(1 - source):
            return Course(False, ANSWER, 0, 0.0)
        request = RaceRequest(prompt, ANSWER, READER, share=1.0)
        race = Race(request, self.costs(prompt), self._payer, self._known, coin=0.5)
        pace = Pace(self._device.prefill, (SERVER_DECODE, self._device.decode), draws)
        return course(race, prompt, source, pace, elapsed_s, ready_s)

    def _usd(
        self, prompt: int, source: int, started: tuple[bool, bool], found: Course
    ) -> tuple[float, float, float]:
        """Return the cost with migration, without, and with one that takes no time.

        started: whether either endpoint pays for the prompt anyhow.
        """
        anyhow = sum(self._taken_in_usd(prompt, side) for side in (0, 1) if started[side])
        stays = moves = self._answer_usd(source, ANSWER)
        again = 0 if found.kept and started[1 - source] else prompt  # to take in for a migration
        holds = (
            self._token_usd(1 - source) if found.kept else 0.0
        )  # it gives a token before it holds the prompt
        at_best = min(stays, self._answer_usd(source, 1, again) + holds)
        if found.sent < ANSWER:
            moves = self._answer_usd(source, found.sent, again)
        elif found.kept and again:
            moves += self._taken_in_usd(prompt + 1, 1 - source)  # for nothing
        return anyhow + moves + holds, anyhow + stays, anyhow + at_best

    def _answer_usd(self, source: int, sent: int, again: int = 0) -> float:
        """Return the cost of an answer with `sent` tokens from the source and the rest from the other, which takes in
        what was sent and `again` tokens (DiSCo, appendix E.1)."""
        taken_in, rest = (again + sent, ANSWER - sent) if sent < ANSWER else (0, 0)
        costs, first, then = self.costs(taken_in), (0, sent), (taken_in, rest)
        server, device = (first, then) if source == 0 else (then, first)
        return costs.server.of(*server) + costs.device_usd.of(*device)

    def _taken_in_usd(self, tokens: int, side: int) -> float:
        costs = self.costs(tokens)
        return (costs.server, costs.device_usd)[side].of(tokens, 0)

    def _token_usd(self, side: int) -> float:
        costs = self.costs(0)
        return (costs.server, costs.device_usd)[side].of(0, 1)
