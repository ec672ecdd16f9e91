"""Cost and reading delay of migrations, decided as they are live.

The winner of the race gives tokens at its rate; after each, `policies.race.race` is asked whether the answer should
migrate. The target then prefills prompt and answer so far, in the true time, not the estimated one. A loser may have
been told to finish its prefill and hold it: then it prefills the answer so far alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
ANSWER = 128
"""Tokens: the paper's output limit; all answers are taken to reach it."""
READER = 1 / 0.209
"""Tokens/s: the paper's P99 time between tokens is the reader's own pace."""
SERVER_DECODE = 50.0
"""Tokens/s. Assumed, the paper says none; medians in api_ttft: 31 (command-r-plus) to 106 (Llama-3-70B, together)."""
DEVICE_NOISE = 0.1
"""Assumed: σ of the logarithm of a device's prefill time around the k·l + c that is estimated."""
SIDES = (Side.SERVER, Side.DEVICE)
"""The order of pairs."""


class Row(NamedTuple):
    """Prompts of one length: pairs, by the winner or by the endpoint that prefills.

    sent: tokens that the winner gives before it migrates, ANSWER if it never does.
    sent_holding, sent_held: likewise while the loser still prefills, and when it has; both ANSWER if it does not hold
        the prompt.
    usd: cost of the answer.
    usd_without: cost without a migration.
    usd_at_best: cost with a migration after the first token, if that is cheaper.
    prompt_usd: cost of the prefill.
    """

    sent: tuple[int, int]
    sent_holding: tuple[int, int]
    sent_held: tuple[int, int]
    usd: tuple[float, float]
    usd_without: tuple[float, float]
    usd_at_best: tuple[float, float]
    prompt_usd: tuple[float, float]


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


class Migration:
    """One service and one device.

    known: the server's times to first token, so far.
    caution: what the estimated time of a hand-over is multiplied by.
    """

    def __init__(
        self, service: Service, device: Device, usd_per_flop: float, known: Latencies, caution: float = 1.0
    ) -> None:
        self._price, self._device, self._rate = service.price, device, usd_per_flop
        self._known = RaceHistory(known, StepTimeModel(1e-6, 1 / device.prefill), Outputs(ANSWER))
        self._payer = RaceAccount(dispatch.create("disco"), migration.create("buffered", caution=caution))
        self._rates = (SERVER_DECODE, device.decode)
        self._rows: dict[int, Row] = {}
        # By winner and tokens sent: an answer that migrates to where the prompt is held, after its first token.
        self._held_usd = np.array(
            [
                [
                    self._answer_usd(0, source, sent) + self._token_usd(1 - source)
                    for sent in range(ANSWER + 1)
                ]
                for source in (0, 1)
            ]
        )

    def costs(self, taken_in: int) -> Costs:
        """Return the costs after a prefill of `taken_in` tokens, with which the device's costs grow (equation 10)."""
        model = self._device.model
        flops = PerToken(model.prefill_flops(taken_in), model.decode_flops(ANSWER))
        return Costs(self._price, flops, self._rate)

    def move(
        self,
        tokens: np.ndarray,
        server_s: np.ndarray,
        device_start_s: np.ndarray,
        draws: np.ndarray,
        noise: np.ndarray,
    ) -> Moved:
        """Migrate the answers; endpoints that started pay for the whole prompt.

        tokens: of the prompts.
        server_s: when the server's first token would come; infinite for never.
        device_start_s: when the device would start; infinite for never.
        draws: the server's time to first token if it were the target, seconds.
        noise: factor on a device's prefill time.
        """
        lengths, which = np.unique(tokens, return_inverse=True)
        rows = [self._row(int(length)) for length in lengths]
        device_s = device_start_s + tokens / self._device.prefill
        started = np.stack((np.isfinite(server_s), device_start_s < server_s), axis=1)
        won = (device_s < server_s).astype(int)
        at = np.arange(len(tokens)), won
        columns = [np.array(pairs)[which] for pairs in zip(*rows, strict=True)]
        prompts_usd = float((started * columns.pop()).sum())
        cold, holding, held, usd, usd_without, usd_at_best = (column[at] for column in columns)

        kept = started.all(axis=1) & (held < ANSWER)
        rate = np.array(self._rates)[won]
        lag_s = np.where(kept, np.abs(server_s - device_s), 0.0)  # until the loser has taken in the prompt
        sent = np.where(kept, np.minimum(holding, np.maximum(held, np.ceil(lag_s * rate) + 1)), cold)
        sent = np.minimum(sent, ANSWER).astype(int)
        usd = np.where(kept, self._held_usd[won, sent], usd)
        usd_at_best = np.where(kept, np.minimum(usd_without, self._held_usd[won, 1]), usd_at_best)

        moved = sent < ANSWER
        rest_s = np.maximum(0.0, lag_s - (sent - 1) / rate)  # of the prompt, when it is asked to go on
        taking_in = np.where(kept, sent, tokens + sent)
        taking_s = rest_s + np.where(won == 1, draws, noise * taking_in / self._device.prefill)
        delayed, stalls_s = self._delays(sent[moved], won[moved], taking_s[moved])
        moving, staying, at_best = (
            prompts_usd + float(each.sum()) for each in (usd, usd_without, usd_at_best)
        )
        return Moved(moving, staying, at_best, delayed, stalls_s)

    def _delays(
        self, sent: np.ndarray, won: np.ndarray, taking_s: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rates = np.array(self._rates)
        stopped_s = (sent - 1) / rates[won]  # after the first token
        stalls_s = np.maximum(0.0, stopped_s + taking_s - sent / READER)
        caught_up = stalls_s / (1 / READER - 1 / rates[1 - won])  # tokens, until the target is ahead again
        return np.minimum(np.ceil(caught_up), ANSWER - sent), stalls_s

    def _row(self, tokens: int) -> Row:
        if tokens not in self._rows:
            costs = self.costs(tokens)
            sent = self._sent(tokens, 0), self._sent(tokens, 1)
            holding, held = zip(*(self._sent_to_holder(tokens, source) for source in (0, 1)), strict=True)
            stays = self._answer_usd(tokens, 0, ANSWER), self._answer_usd(tokens, 1, ANSWER)
            moves = self._answer_usd(tokens, 0, 1), self._answer_usd(tokens, 1, 1)
            self._rows[tokens] = Row(
                sent=sent,
                sent_holding=holding,
                sent_held=held,
                usd=(self._answer_usd(tokens, 0, sent[0]), self._answer_usd(tokens, 1, sent[1])),
                usd_without=stays,
                usd_at_best=(min(stays[0], moves[0]), min(stays[1], moves[1])),
                prompt_usd=(costs.server.of(tokens, 0), costs.device_usd.of(tokens, 0)),
            )
        return self._rows[tokens]

    def _answer_usd(self, tokens: int, source: int, sent: int) -> float:
        """Return the cost of an answer with `sent` tokens from the source and the rest from the other (DiSCo, appendix
        E.1)."""
        taken_in, rest = (tokens + sent, ANSWER - sent) if sent < ANSWER else (0, 0)
        costs, first, then = self.costs(taken_in), (0, sent), (taken_in, rest)
        server, device = (first, then) if source == 0 else (then, first)
        return costs.server.of(*server) + costs.exchange_rate * costs.device.of(*device)

    def _token_usd(self, side: int) -> float:
        costs = self.costs(0)
        return (costs.server, costs.device_usd)[side].of(0, 1)

    def _sent(self, tokens: int, source: int) -> int:
        return self._moves(self._race(tokens), source)

    def _sent_to_holder(self, tokens: int, source: int) -> tuple[int, int]:
        """(while it still takes in the prompt, when it has): Row's sent_holding and sent_held."""
        sent = []
        for has_it in (False, True):
            race = self._race(tokens)
            if has_it:
                race.finish()  # a prefill after that takes no time
            for side in SIDES:
                race.took_in(side, tokens)
            race.finish()
            if not race.keep_loser(SIDES[1 - source]):
                return ANSWER, ANSWER
            sent.append(self._moves(race, source))
        return sent[0], sent[1]

    def _race(self, tokens: int) -> Race:
        request = RaceRequest(tokens, ANSWER, READER, share=1.0)
        return Race(request, self.costs(tokens), self._payer, self._known, coin=0.5)

    def _moves(self, race: Race, source: int) -> int:
        """Tokens that the source gives before the answer moves on."""
        for sent in range(1, ANSWER):
            now_s = (sent - 1) / self._rates[source]
            race.delivered(1, now_s)
            if race.hand_over(SIDES[source], sent, now_s):
                return sent
        return ANSWER
