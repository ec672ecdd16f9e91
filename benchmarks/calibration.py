"""The simulator against reality: the same requests live on this machine and simulated.

    python -m benchmarks.calibration [--requests 200] [--grow 4]

Live: a target (the embedded one, grown), and emulated devices that draft behind emulated links, in processes
of their own, driven by the executor over the wire. Before and after every case the live deployment is profiled: the
engine's own step times, regressed on what was in the steps, and what a round takes beside steps and drafting (a shared
machine is now faster, now slower; both profiles' mean is taken). Then the same
arrivals and lengths, with the acceptance that the live token logs show, go through the simulator. Three
loads, two RTTs, modes cloud, speculative and race; errors are relative, the mean over the six cases of a mode. Races
are decided by policies that learn; each world learns for itself.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import mean, median

import msgspec
import numpy as np

from benchmarks import report
from benchmarks.processes import engine_process
from cluster.link import Link, LinkProfile
from cluster.profile import DeviceProfile
from cluster.remote import Connection, connect
from cluster.simulator.analysis import Result
from cluster.simulator.config import parse
from cluster.simulator.hardware import MeasuredTimer
from cluster.simulator.run import simulate
from cluster.simulator.workload import Request
from cluster.tokenlog import Origin
from deployments.assignment import Assignment, EndpointInfo, Wishes
from deployments.engines import TorchSettings
from deployments.executor import Executor
from deployments.job import Job
from deployments.racing import Racing, RacingSettings
from deployments.settings import PolicyChoice
from engine import family
from engine.base import Engine, Sampling
from engine.family.prompts import heldout_questions
from engine.text import Tokenizer
from policies.window import StaticWindow

MODES = ("cloud", "speculative", "race")
DEVICES = 24
MAX_TOKENS = 96
WINDOW = 4
READER_RATE = 20.0  # tokens/s, in races
RACING = RacingSettings(migration=PolicyChoice(name="buffered"))
RTTS_S = (0.010, 0.030)
LOADS = (0.25, 0.5, 0.8)  # share of what the pool can do at most, see `capacity`
PROFILE = DeviceProfile(
    name="emulated",
    hardware="emulated",
    model="small",
    source="invented for this benchmark: a device of the speed of a small board",
    prefill_tokens_per_s=800.0,
    decode_tokens_per_s=80.0,
    sessions=4,
)


@dataclass(slots=True)
class Seen:
    """One live request: times in seconds since the run's start, tokens with their origins."""

    arrival_s: float
    device: int
    prompt_tokens: int
    first_s: float = 0.0
    last_s: float = 0.0
    origins: list[Origin] = field(default_factory=list)

    @property
    def request(self) -> Request:
        """The same for the simulator: 1 where a draft was accepted, 0 where it was corrected. Where the target
        spoke for itself nothing was drafted, and the bit is not asked for."""
        bits = bytes(origin is not Origin.CORRECTED for origin in self.origins)
        return Request(
            arrival_s=self.arrival_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=len(self.origins),
            acceptance=bits,
            drafter=self.device,
            rate=READER_RATE,
        )


class Live:
    """The live deployment: one target, and devices that share one engine."""

    def __init__(self, target: Connection, drafter: Connection, prompts: list[list[int]]) -> None:
        self._target, self._drafter, self._prompts = target, drafter, prompts
        self._links: dict[int, Link] = {}
        self._assignments: dict[int, Assignment] = {}
        self._executor = Executor(
            self._assign, self._dial, lambda: StaticWindow(WINDOW), racing=Racing(RACING, Random(1).random)
        )
        self._session = 0

    async def run(self, mode: str, rtt_s: float, arrivals_s: list[float]) -> list[Seen]:
        """Answer a request at each arrival."""
        self._links = {i: Link(LinkProfile(rtt_s=rtt_s, seed=i)) for i in range(DEVICES)}
        seen = []
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for index, arrival_s in enumerate(arrivals_s):
                await asyncio.sleep(max(0.0, began + arrival_s - time.monotonic()))
                prompt = self._prompts[index % len(self._prompts)]
                one = Seen(time.monotonic() - began, index % DEVICES, len(prompt))
                seen.append(one)
                tasks.create_task(self._answer(mode, rtt_s, one, prompt, began))
        await self._executor.settled()
        return seen

    async def _answer(self, mode: str, rtt_s: float, seen: Seen, prompt: list[int], began: float) -> None:
        self._session += 1
        session = self._session
        target = EndpointInfo("target", "", "engine")
        device = f"device-{seen.device}"
        helper = EndpointInfo(
            device, "", device, rtt_s=rtt_s, device=True, prefill_token_s=PROFILE.prefill_s(1)
        )
        self._assignments[session] = Assignment(
            mode,
            target,
            drafter=helper if mode == "speculative" else None,
            rival=helper if mode == "race" else None,
        )
        rate = READER_RATE if mode == "race" else 0.0
        sampling = Sampling(max_tokens=MAX_TOKENS, ignore_eos=True, reader_rate=rate)
        job = Job(session, tuple(prompt), sampling, device=str(session))
        async for delta in self._executor.run(job):
            now_s = time.monotonic() - began
            if delta.ids and not seen.origins:
                seen.first_s = now_s
            if delta.ids:
                seen.last_s = now_s
            seen.origins += delta.origins

    async def _assign(self, wishes: Wishes) -> Assignment:
        assert isinstance(wishes.device, str)
        return self._assignments.pop(int(wishes.device))

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        if endpoint.name == "target":
            return self._target.engine("engine")
        return self._drafter.engine(endpoint.engine, self._links[int(endpoint.name.removeprefix("device-"))])


async def profile(
    target: Connection, drafter: Connection, prompts: list[list[int]]
) -> tuple[MeasuredTimer, float]:
    """The target's step time, regressed on what its steps hold, and the seconds a round spends on its way."""
    engine = target.engine("engine")
    rows, times_s = [], []
    session = 1_000_000

    async def verify(session: int, rounds: int, window: int) -> None:
        for _ in range(rounds):
            await engine.verify(session, [5] * (window - 1))

    for sessions in (1, 2, 4, 8, 12):
        for window in (1, WINDOW + 1):
            ids = range(session, session + sessions)
            session += sessions
            for i, one in enumerate(ids):
                await engine.open(one, prompts[i % len(prompts)], Sampling(max_tokens=64, ignore_eos=True))
                await engine.verify(one, [])
            before = await engine.stats()
            await asyncio.gather(*(verify(one, 12, window) for one in ids))
            after = await engine.stats()
            steps = after.steps - before.steps
            positions = 12 * sessions * window / steps
            rows.append((1.0, positions, positions / window))
            times_s.append((after.step_s - before.step_s) / steps)
            for one in ids:
                await engine.cancel(one)
    for prompt in prompts[:12]:  # prefill alone
        before = await engine.stats()
        await engine.open(session, [7, *prompt[1:]][::-1], Sampling(max_tokens=4))  # no cached prefix
        await engine.verify(session, [])
        after = await engine.stats()
        await engine.cancel(session)
        session += 1
        steps = after.steps - before.steps
        rows.append((1.0, len(prompt) / steps, 1.0))
        times_s.append((after.step_s - before.step_s) / steps)
    weights = 1 / np.asarray(times_s)  # relative errors count
    matrix = np.asarray(rows)
    solution, *_ = np.linalg.lstsq(matrix * weights[:, None], np.ones(len(rows)), rcond=None)
    base_s, token_s, sequence_s = (float(max(0.0, x)) for x in solution)
    timer = MeasuredTimer(base_s=base_s, token_s=token_s, sequence_s=sequence_s)
    return timer, await _round_overhead_s(engine, drafter.engine("device-0"), prompts[0])


async def _round_overhead_s(target: Engine, device: Engine, prompt: list[int]) -> float:
    """What a round takes beyond the target's step and the device's drafting: wire, threads and event loops."""
    session, rounds = 2_000_000, 20
    sampling = Sampling(max_tokens=(WINDOW + 1) * rounds + 8, ignore_eos=True)
    await target.open(session, prompt, sampling)
    ids = (await target.verify(session, [])).ids
    await device.open(session, prompt, sampling)
    await device.draft(session, 0, ids, WINDOW)  # waits for the prompt's prefill
    known, overheads = 0, []
    for _ in range(rounds):
        before, began = await target.stats(), time.perf_counter()
        draft = await device.draft(session, known, ids[known:], WINDOW)
        known = len(ids)
        ids += (await target.verify(session, draft.ids)).ids
        elapsed_s = time.perf_counter() - began
        step_s = (await target.stats()).step_s - before.step_s
        overheads.append(elapsed_s - step_s - PROFILE.decode_s(len(draft.ids)))
    await target.cancel(session)
    await device.cancel(session)
    return max(0.0, median(overheads))


def simulated(mode: str, rtt_s: float, seen: list[Seen], timer: MeasuredTimer, overhead_s: float) -> Result:
    """The same requests in the simulator. The wire's own time is added to the link's."""
    config = parse(
        {
            "name": f"{mode} {rtt_s * 1e3:.0f} ms",
            "mode": mode,
            "reader": "cloud",
            "workload": {"count": len(seen)},  # the live run's own take its place
            "policies": {
                "batching": {"name": "chunked"},
                "window": {"name": "static", "parameters": {"size": WINDOW}},
                "dispatch": {"name": RACING.dispatch.name},
                "migration": {"name": RACING.migration.name},
            },
            "race": {
                "price_in": RACING.price_in,
                "price_out": RACING.price_out,
                "budget": RACING.budget,
                "exchange_rate": RACING.exchange_rate,
            },
            "targets": [
                {
                    "model": "target",
                    "measured": msgspec.to_builtins(timer),
                    "max_sessions": 64,
                    "token_budget": 512,
                    "first_apart": True,
                }
            ],
            "drafters": [
                {
                    "count": DEVICES,
                    "sessions": PROFILE.sessions,
                    "rates": {
                        "prefill_tokens_per_s": PROFILE.prefill_tokens_per_s,
                        "decode_tokens_per_s": PROFILE.decode_tokens_per_s,
                    },
                    "link": {"rtt_ms": (rtt_s + overhead_s) * 1e3},
                }
            ],
        }
    )
    return simulate(config, requests=[one.request for one in seen])


Figures = dict[str, float]


def _live_figures(seen: list[Seen]) -> Figures:
    ttft = [one.first_s - one.arrival_s for one in seen]
    tpot = [(one.last_s - one.first_s) / (len(one.origins) - 1) for one in seen if len(one.origins) > 1]
    span_s = max(one.last_s for one in seen) - seen[0].arrival_s
    return _figures(ttft, tpot, sum(len(one.origins) for one in seen) / span_s)


def _simulated_figures(result: Result) -> Figures:
    summary = result.summary()
    frame = [
        (log.first_s - log.arrival_s, (log.last_s - log.first_s) / (log.tokens - 1)) for log in result.logs
    ]
    return _figures([a for a, _ in frame], [b for _, b in frame], summary["tokens_per_s"])


def _figures(ttft: list[float], tpot: list[float], throughput: float) -> Figures:
    return {
        "ttft_p50": float(np.percentile(ttft, 50)),
        "ttft_p99": float(np.percentile(ttft, 99)),
        "tpot_p50": float(np.percentile(tpot, 50)),
        "tpot_p99": float(np.percentile(tpot, 99)),
        "throughput": throughput,
    }


async def calibrate(
    requests: int, grow: int, seed: int, modes: list[str]
) -> dict[str, list[tuple[str, Figures, Figures]]]:
    """By mode: (case, live figures, simulated figures)."""
    tokenizer = Tokenizer.load(family.path("target"))
    prompts = [
        tokenizer.render_chat([{"role": "user", "content": question}])
        for question in heldout_questions(40, seed=3)
    ]
    target = TorchSettings(model="target", grow=grow, threads=1)
    drafter = TorchSettings(model="small", threads=1)
    outcome: dict[str, list[tuple[str, Figures, Figures]]] = {mode: [] for mode in modes}
    with engine_process(target) as target_at, engine_process(drafter, DEVICES, PROFILE) as drafter_at:
        connections = [await connect(target_at), await connect(drafter_at)]
        live = Live(*connections, prompts)
        await live.run("speculative", 0.01, [0.1 * i for i in range(8)])  # warms up
        first = before = await profile(*connections, prompts)
        profiles = [first]
        cases = [(mode, rtt_s, load) for mode in outcome for rtt_s in RTTS_S for load in LOADS]
        for mode, rtt_s, load in report.progress(cases, "live, then simulated"):
            rate = load * capacity(first[0], mode)
            gaps = np.random.default_rng([seed, round(rtt_s * 1e3), round(load * 100)]).exponential(
                1 / rate, requests
            )
            seen = await live.run(mode, rtt_s, np.cumsum(gaps).tolist())
            after = await profile(*connections, prompts)
            profiles.append(after)
            result = simulated(mode, rtt_s, seen, *_mean(before, after))
            before = after
            name = f"{mode}, {rtt_s * 1e3:.0f} ms, {rate:.1f} requests/s"
            outcome[mode].append((name, _live_figures(seen), _simulated_figures(result)))
        for connection in connections:
            await connection.close()
    report.table(
        "Profiles of the live target",
        ["", "ms"],
        [
            [name, report.spread([1e3 * value(timer, overhead_s) for timer, overhead_s in profiles])]
            for name, value in PROFILED.items()
        ],
    )
    return outcome


PROFILED: dict[str, Callable[[MeasuredTimer, float], float]] = {
    "a step": lambda timer, _: timer.base_s,
    "… and a position": lambda timer, _: timer.token_s,
    "… and a sequence": lambda timer, _: timer.sequence_s,
    "a round beside steps and drafting": lambda _, overhead_s: overhead_s,
}


def _mean(a: tuple[MeasuredTimer, float], b: tuple[MeasuredTimer, float]) -> tuple[MeasuredTimer, float]:
    timer = MeasuredTimer(
        base_s=(a[0].base_s + b[0].base_s) / 2,
        token_s=(a[0].token_s + b[0].token_s) / 2,
        sequence_s=(a[0].sequence_s + b[0].sequence_s) / 2,
    )
    return timer, (a[1] + b[1]) / 2


def capacity(timer: MeasuredTimer, mode: str) -> float:
    """Requests/s of one target that always works on eight sessions at a time."""
    positions = WINDOW + 1 if mode == "speculative" else 1
    tokens = 3.5 if mode == "speculative" else 1.0  # a round, roughly
    return 8 * tokens / timer.step_s(8 * positions, 8, 8 * 100) / MAX_TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200, help="of each case (default 200)")
    parser.add_argument("--grow", type=int, default=4, help="how many times dearer the target is")
    parser.add_argument("--seed", type=int, default=11, help="of the arrivals")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    options = parser.parse_args()
    outcome = asyncio.run(calibrate(options.requests, options.grow, options.seed, options.modes))
    figures: dict[str, float] = {}
    rows: list[list[str]] = []
    for mode, cases in outcome.items():
        for name, live, simulation in cases:
            rows.append([name, *(_pair(key, live[key], simulation[key]) for key in live)])
        for key in cases[0][1]:
            error = mean(abs(simulation[key] / live[key] - 1) for _, live, simulation in cases)
            figures[f"{mode}_{key}_error"] = round(error, 4)
    report.table(
        f"Live → simulated, {options.requests} requests a case (devices and links emulated)",
        ["", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms", "tokens/s"],
        rows,
    )
    report.figures("calibration", figures)


def _pair(key: str, live: float, simulation: float) -> str:
    scale, digits = (1.0, 0) if key == "throughput" else (1e3, 1)
    return f"{live * scale:.{digits}f} → {simulation * scale:.{digits}f}"


if __name__ == "__main__":
    main()
