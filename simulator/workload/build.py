"""Builds requests from settings. All random numbers come from the settings' seed, in any process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from tandem.simulator.workload.acceptance import bernoulli, recorded
from tandem.simulator.workload.request import Request
from tandem.simulator.workload.settings import Arrival, LengthDistribution, WorkloadSettings
from tandem.simulator.workload.traces import TraceError, read_trace

T = TypeVar("T")


def build(settings: WorkloadSettings) -> list[Request]:
    """Return the requests in order of arrival (closed arrivals: all at 0, in the order they will be taken).

    Raises TraceError, ValueError.
    """
    if settings.kind == "trace":
        assert settings.path is not None
        requests = _repeated(read_trace(settings.path), settings.count)
    else:
        assert settings.count is not None
        random = np.random.Generator(np.random.PCG64([settings.seed, 0]))
        prompts = _lengths(settings.prompt, settings.count, random)
        outputs = _lengths(settings.output, settings.count, random)
        requests = [Request(0.0, p, o) for p, o in zip(prompts, outputs, strict=True)]
    arrivals_s = _arrivals(settings.arrival, requests, settings.seed)
    sequences = _acceptance(settings, requests)
    rates = _drawn(settings.readers, len(requests), settings.seed, 4, 0.0)
    modes = _drawn(settings.modes, len(requests), settings.seed, 5, None)
    return [
        replace(
            request,
            arrival_s=arrival_s,
            acceptance=acceptance,
            reader_rate=request.reader_rate or rate,
            mode=request.mode or mode,
            max_tokens=request.max_tokens or settings.max_tokens,
        )
        for request, arrival_s, acceptance, rate, mode in zip(
            requests, arrivals_s, sequences, rates, modes, strict=True
        )
    ]


def _repeated(trace: list[Request], count: int | None) -> list[Request]:
    """Return the first `count` requests; a shorter trace begins again after its mean gap."""
    if count is None or count <= len(trace):
        return trace[:count]
    span_s = trace[-1].arrival_s - trace[0].arrival_s
    period_s = span_s * len(trace) / max(1, len(trace) - 1)
    return [
        replace(
            trace[i % len(trace)], arrival_s=trace[i % len(trace)].arrival_s + period_s * (i // len(trace))
        )
        for i in range(count)
    ]


def _lengths(lengths: LengthDistribution, count: int, random: np.random.Generator) -> list[int]:
    if lengths.cv == 0:
        drawn = np.full(count, lengths.mean)
    else:
        sigma = float(np.sqrt(np.log(1 + lengths.cv**2)))
        drawn = random.lognormal(np.log(lengths.mean) - sigma**2 / 2, sigma, count)
    rounded: list[int] = np.clip(np.rint(drawn), lengths.least, lengths.most).astype(int).tolist()
    return rounded


def _arrivals(arrival: Arrival, requests: list[Request], seed: int) -> list[float]:
    match arrival.kind:
        case "poisson":
            random = np.random.Generator(np.random.PCG64([seed, 3]))
            gaps_s = random.exponential(1 / arrival.rate_per_s, len(requests))
            times_s: list[float] = np.cumsum(gaps_s).tolist()
            return times_s
        case "interval":
            return [i / arrival.rate_per_s for i in range(len(requests))]
        case "closed":
            return [0.0] * len(requests)
        case _:
            first_s = requests[0].arrival_s
            return [(request.arrival_s - first_s) / arrival.speed for request in requests]


def _drawn(shares: Sequence[tuple[float, T]], count: int, seed: int, stream: int, nothing: T) -> list[T]:
    """Draw one of the values for each request, by their shares."""
    if not shares:
        return [nothing] * count
    random = np.random.Generator(np.random.PCG64([seed, stream]))
    drawn = random.choice(len(shares), count, p=[share for share, _ in shares])
    return [shares[i][1] for i in drawn]


def _acceptance(settings: WorkloadSettings, requests: list[Request]) -> list[bytes]:
    wanted = settings.acceptance
    lengths = [request.output_tokens for request in requests]
    match wanted.kind:
        case "alpha":
            return bernoulli(lengths, wanted.alpha, settings.seed)
        case "recorded":
            return recorded(lengths, settings.seed, wanted.path, wanted.family)
        case _:
            for row, request in enumerate(requests, 1):
                if request.acceptance is None:
                    raise TraceError(f"{settings.path}, request {row}: its row has no acceptance")
            return [request.acceptance or b"" for request in requests]
