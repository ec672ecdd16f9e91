"""Days of requests with a trough, compressed: 20 minutes stand for 24 hours, and a start takes 30 seconds of them.

A pool is judged on the last day. What came before is what a policy may have seen; the last minutes of it are simulated,
too, so that no pool begins empty.

Lengths are those of Azure's traces of 2023 (`conv`, `code`), drawn anew by each seed; without them, log-normal ones of
the same means. The arrivals are stand-ins, as neither Azure's week of 2024 nor BurstGPT is at hand:

week: conversations, peak to trough 3.3 to 1; days differ by a tenth.
burstgpt: nights with a twentieth of the peak, gamma-distributed times between arrivals (CV 2), and a level that wanders
    by a third within minutes.
code: blocks of Azure's own code trace, 290 s each, in an order drawn with replacement: in it bursts recur about so.
office: conversations as in `week`, and code by day, in its bursts, with next to none by night.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tandem.benchmarks.paths import DATA
from tandem.simulator.workload import Request

DAY_S = 1200.0
DAYS = 4
WARM_S = 240.0  # simulated before the last day
BEGIN_S = (DAYS - 1) * DAY_S - WARM_S  # of the simulation, from the first day on
SPAN_S = WARM_S + DAY_S
DAY_SIGMA = 0.1  # of the logarithm of a day's level
BLOCK_S = 290.0
CODE_S = 3436.0  # of Azure's code trace
READERS = (10.0, 15.0)  # tokens/s
SHARE_OF_SLOW = 0.4
MOST = {"prompt": 7500, "output": 1024}
MEANS = {
    "conv": ((6.7, 0.9), (4.9, 0.9)),
    "code": ((7.2, 0.9), (2.7, 0.9)),
}  # ln tokens: mean and σ, without data

Times = NDArray[np.float64]
Rows = NDArray[np.float64]  # arrival_s, prompt and output tokens


@cache
def rows(name: str) -> Rows | None:
    """Return a trace of Azure's; None if it is not here."""
    file = DATA / "azure_llm_2023" / f"{name}.csv"
    if not file.exists():
        return None
    with file.open(newline="") as lines:
        table = [
            (float(row["arrival_s"]), float(row["prompt_tokens"]), float(row["output_tokens"]))
            for row in csv.DictReader(lines)
        ]
    return np.array(table)


def _lengths(name: str, count: int, draw: np.random.Generator) -> Rows:
    """Return prompt and output tokens, drawn."""
    real = rows(name)
    if real is not None:
        return real[draw.integers(len(real), size=count), 1:]
    return np.column_stack([draw.lognormal(*MEANS[name][i], size=count) for i in (0, 1)])


def _by_day(at_s: Times, trough: float) -> Times:
    """Return the level at a time, 1 at the peak at 15 o'clock and `trough` twelve hours later."""
    wave = 0.5 + 0.5 * np.cos(2 * np.pi * (at_s / DAY_S - 15 / 24))
    return trough + (1 - trough) * wave


def _thinned(
    rate: Callable[[Times], Times], most: float, draw: np.random.Generator, cv: float = 1.0
) -> Times:
    """Return arrival times at a changing rate, requests/s; cv: of the times between, at an even rate."""
    span_s = DAYS * DAY_S
    shape = 1 / cv**2
    steps: Times = (
        draw.gamma(shape, 1 / shape, size=int(1.3 * most * span_s) + 1000).cumsum().astype(np.float64)
    )
    # in the time that runs as fast as the rate, arrivals are even
    grid = np.arange(0.0, span_s + 1.0)
    middles: Times = (grid[:-1] + 0.5).astype(np.float64)
    passed: Times = np.append(0.0, rate(middles).cumsum())
    return np.interp(steps[steps < passed[-1]], passed, grid).astype(np.float64)


def _week(draw: np.random.Generator, peak: float) -> Times:
    levels = np.exp(draw.normal(0.0, DAY_SIGMA, size=DAYS))

    def rate(at_s: Times) -> Times:
        return peak * levels[(at_s // DAY_S).astype(int)] * _by_day(at_s, 1 / 3.3)

    return _thinned(rate, peak * float(levels.max()), draw)


def _wandering(draw: np.random.Generator, sigma: float, within_s: float) -> Times:
    """Return a level second by second, log-normal with mean 1, that forgets itself within some seconds."""
    count = int(DAYS * DAY_S) + 1
    keep = np.exp(-1 / within_s)
    noise = draw.normal(0.0, sigma * np.sqrt(1 - keep**2), size=count)
    log = np.empty(count)
    log[0] = draw.normal(0.0, sigma)
    for i in range(1, count):
        log[i] = keep * log[i - 1] + noise[i]
    return np.exp(log - sigma**2 / 2)


def _burstgpt(draw: np.random.Generator, peak: float) -> Times:
    wandering = _wandering(draw, 0.33, 90.0)
    return _thinned(
        lambda at_s: peak * _by_day(at_s, 0.05) * wandering[at_s.astype(int)], 3 * peak, draw, 2.0
    )


def _code(draw: np.random.Generator) -> Rows:
    """Return rows of blocks of the code trace; without it, of bursts like its own."""
    real, blocks = rows("code"), []
    for at_s in np.arange(0.0, DAYS * DAY_S, BLOCK_S):
        if real is None:
            count = max(1, draw.poisson(2.5 * BLOCK_S))
            centres = draw.uniform(0.0, 120.0, size=6)
            times = np.sort((centres[draw.integers(6, size=count)] + draw.exponential(8.0, count)) % BLOCK_S)
            block = np.column_stack([times, _lengths("code", count, draw)])
        else:
            begin_s = BLOCK_S * draw.integers(int(CODE_S // BLOCK_S))
            block = real[(real[:, 0] >= begin_s) & (real[:, 0] < begin_s + BLOCK_S)] - [begin_s, 0.0, 0.0]
        blocks.append(block + np.array([at_s, 0.0, 0.0]))
    return np.concatenate(blocks)


def _table(name: str, draw: np.random.Generator) -> Rows:
    if name == "code":
        return _code(draw)
    if name == "burstgpt":
        times = _burstgpt(draw, 10.0)
        return np.column_stack([times, _lengths("conv", len(times), draw)])
    times = _week(draw, 9.0 if name == "week" else 6.0)
    table = np.column_stack([times, _lengths("conv", len(times), draw)])
    if name == "week":
        return table
    code = _code(draw)
    there = draw.random(len(code)) < _by_day(code[:, 0], 0.03)
    return np.concatenate([table, code[there]])


NAMES = ("week", "burstgpt", "code", "office")
LENGTHS = {"week": ("conv",), "burstgpt": ("conv",), "code": ("code",), "office": ("conv", "code")}


def source(name: str) -> str:
    """Return what of a day was measured, and what stands in for it."""
    real = all(rows(trace) is not None for trace in LENGTHS[name])
    arrivals = "arrivals in its blocks" if name == "code" and real else "stand-in arrivals"
    return f"{'lengths of Azure 2023' if real else 'stand-in lengths'}, {arrivals}"


def requests(name: str, seed: int) -> tuple[list[Request], list[Request]]:
    """Return the requests before the simulation begins, at negative times, and in it."""
    draw = np.random.default_rng([seed, NAMES.index(name)])
    table = _table(name, draw)
    table = table[(table[:, 0] < DAYS * DAY_S)]
    table = table[table[:, 0].argsort(kind="stable")]
    slow = draw.random(len(table)) < SHARE_OF_SLOW
    asked = [
        Request(
            at_s - BEGIN_S,
            min(MOST["prompt"], max(1, int(prompt))),
            min(MOST["output"], max(1, int(output))),
            reader_rate=READERS[0] if is_slow else READERS[1],
            max_tokens=MOST["output"],
        )
        for (at_s, prompt, output), is_slow in zip(table.tolist(), slow, strict=True)
    ]
    before = [request for request in asked if request.arrival_s < 0]
    return before, asked[len(before) :]
