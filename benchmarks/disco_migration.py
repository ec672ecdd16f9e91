"""What handing over does to cost and to the reader, decided as it is live.

Whoever won the race gives tokens at its rate; after each, `policies.contest` is asked whether the answer should move
on. The target then takes in prompt and answer so far, in the time that it takes, not the one that was estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.disco_data import Device, Service
from policies.contest import Contest, Known, Payer
from policies.cost import Costs, PerToken, Used
from policies.dispatch import Side, dispatch
from policies.migration import migration
from policies.pace import Pace
from policies.samples import Latencies, Outputs

Rates = Mapping[Side, float]
"""Dollars for a FLOP of the device, in either setting."""
PRINTED: Rates = {Side.SERVER: 0.3e-6, Side.DEVICE: 5e-6}
"""The paper's energy_to_money as printed, 0.3 and 5 "$ per million FLOPs": a phone's token costs hundreds of dollars.
The server is then the cheap one to decode on in both settings, and algorithm 1 would never call it constrained; where
it is, hand-overs go to it beyond its budget.
"""
CONSISTENT: Rates = {side: 1e-9 * rate for side, rate in PRINTED.items()}
"""The same in the unit of the paper's price list, dollars for a million tokens of a GFLOP each: the only power of ten
at which its 0.3 makes the server the dear one to decode on, and its 5 the device (but for Command), as its two settings
need. Answers then migrate from the server to the device, and from the device to the server.
"""
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
    """Of prompts of one length: pairs, by who won or by who takes the prompt in.

    sent: tokens that the winner gives before it hands over, ANSWER if it never does. usd: what the answer costs;
    usd_without: had it stayed; usd_at_best: had it moved after its first token, where that is cheaper. prompt_usd: what
    taking in the prompt costs.
    """

    sent: tuple[int, int]
    usd: tuple[float, float]
    usd_without: tuple[float, float]
    usd_at_best: tuple[float, float]
    prompt_usd: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Moved:
    """Of some requests. usd, usd_without: with migration and without; usd_at_best: with migrations that take no time.
    Of those that migrated: delayed, tokens that came later than a reader at a steady pace from the first token on
    would have got to them; stalls_s, that reader's waits.
    """

    usd: float
    usd_without: float
    usd_at_best: float
    delayed: np.ndarray
    stalls_s: np.ndarray


class Migration:
    """One service and one device. known: the server's times to first token, so far; caution: what the
    estimated time of a hand-over is multiplied by.
    """

    def __init__(
        self, service: Service, device: Device, usd_per_flop: float, known: Latencies, caution: float = 1.0
    ) -> None:
        self._price, self._device, self._rate = service.price, device, usd_per_flop
        self._known = Known(known, Pace(1e-6, 1 / device.prefill), Outputs(ANSWER))
        self._payer = Payer(dispatch.create("disco"), migration.create("buffered", caution=caution))
        self._rates = (SERVER_DECODE, device.decode)
        self._rows: dict[int, Row] = {}

    def costs(self, taken_in: int) -> Costs:
        """With so many tokens to take in: the more, the dearer is each for the device (equation 10)."""
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
        """tokens: the prompts. server_s: when the server's first token would come; device_start_s: when the device
        would start; infinite: never. Who started pays for the whole prompt. draws: what the server would take to its
        first token, were it handed to, seconds; noise: of a device's prefill, a factor.
        """
        lengths, which = np.unique(tokens, return_inverse=True)
        rows = [self._row(int(length)) for length in lengths]
        sent, *usds, prompt_usd = (np.array(pairs)[which] for pairs in zip(*rows, strict=True))
        started = np.stack((np.isfinite(server_s), device_start_s < server_s), axis=1)
        prompts_usd = float((started * prompt_usd).sum())
        won = (device_start_s + tokens / self._device.prefill < server_s).astype(int)
        at = np.arange(len(tokens)), won
        moved = sent[at] < ANSWER
        taking_s = np.where(won == 1, draws, noise * (tokens + sent[at]) / self._device.prefill)
        delayed, stalls_s = self._delays(sent[at][moved], won[moved], taking_s[moved])
        moving, staying, at_best = (prompts_usd + float(usd[at].sum()) for usd in usds)
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
            stays = self._answer_usd(tokens, 0, ANSWER), self._answer_usd(tokens, 1, ANSWER)
            moves = self._answer_usd(tokens, 0, 1), self._answer_usd(tokens, 1, 1)
            self._rows[tokens] = Row(
                sent=sent,
                usd=(self._answer_usd(tokens, 0, sent[0]), self._answer_usd(tokens, 1, sent[1])),
                usd_without=stays,
                usd_at_best=(min(stays[0], moves[0]), min(stays[1], moves[1])),
                prompt_usd=(costs.server.of(tokens, 0), costs.device_usd.of(tokens, 0)),
            )
        return self._rows[tokens]

    def _answer_usd(self, tokens: int, source: int, sent: int) -> float:
        """Of an answer of which the source gives so many tokens, and the other the rest."""
        taken_in, rest = (tokens + sent, ANSWER - sent) if sent < ANSWER else (0, 0)
        used = Used(0, sent, taken_in, rest) if source == 0 else Used(taken_in, rest, 0, sent)
        return used.usd(self.costs(taken_in))

    def _sent(self, tokens: int, source: int) -> int:
        contest = Contest(
            tokens, ANSWER, READER, self.costs(tokens), self._payer, self._known, coin=0.5, share=1.0
        )
        for sent in range(1, ANSWER):
            now_s = (sent - 1) / self._rates[source]
            contest.delivered(1, now_s)
            if contest.hand_over(SIDES[source], sent, now_s):
                return sent
        return ANSWER
