"""Answers that change their mode on the way, as the target fills up, in virtual time."""

from __future__ import annotations

from dataclasses import replace

from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import build
from tests.simulator.configurations import config

KNOWN = 20
"""Short answers from which the router knows the target, one after another."""
CROWD = 30
"""Long answers that fill the target while the judged one is given."""


def judged(change: float) -> SimulatedAnswer:
    """Return a long answer that the policy chose the cloud for when that was idle. The devices' model says what the
    target does, and more slowly than that alone, but not than that with many."""
    made = config(
        reader="cloud",
        mode=None,
        router={"collaboration": {"name": "auto", "parameters": {"explore": 0, "change": change}}},
        workload={
            "count": KNOWN + 1 + CROWD,
            "prompt": {"mean": 40, "cv": 0},
            "output": {"mean": 300, "cv": 0},
            "max_tokens": 300,
            "acceptance": {"kind": "alpha", "alpha": 0.99},
        },
        targets=[
            {"model": "t", "measured": {"base_s": 0.03, "token_s": 0.01}, "engine": {"max_sessions": 64}}
        ],
        devices=[{"rates": {"prefill_tokens_per_s": 200, "decode_tokens_per_s": 10}, "count": 4}],
    )
    requests = build(made.workload)
    known = [replace(one, arrival_s=13.0 * n, mode="cloud") for n, one in enumerate(requests[:KNOWN])]
    open_s = 13.0 * KNOWN
    one = replace(requests[KNOWN], arrival_s=open_s)
    crowd = [replace(each, arrival_s=open_s + 2.0, mode="cloud") for each in requests[KNOWN + 1 :]]
    return simulate(made, requests=[*known, one, *crowd]).answers[KNOWN]


def test_an_answer_whose_target_fills_goes_on_at_a_device() -> None:
    stayed, changed = judged(1.0), judged(0.25)
    assert stayed.stats is not None
    assert changed.stats is not None
    assert stayed.stats.by_origin == {"cloud": 300}
    assert not stayed.stats.changes
    (only,) = changed.stats.changes
    assert only.forecast.mode == "device"
    assert changed.stats.by_origin == {"cloud": only.position, "device": 300 - only.position}
    assert changed.stats.replans == 0
    assert changed.e2e_s < 0.7 * stayed.e2e_s
