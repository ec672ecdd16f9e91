"""Jobs and their figures; deltas, which are as before when they are split and joined."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import NoOpTracer

from tandem.deployments.modes.sketch.settings import SketchOptions
from tandem.deployments.modes.speculative.settings import SpeculativeOptions
from tandem.deployments.request.assignment import Prices
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.job import Delta, Figures, Job, JobStats, figures_by_mode
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.deployments.tracing.trace import Trace
from tandem.engine.base import Sampling, TokenLogprob
from tandem.policies.cost import PerToken, Used

SCORES = st.builds(TokenLogprob, st.floats(-9, 0))


@st.composite
def deltas(draw: st.DrawFn) -> Delta:
    """A delta of some tokens, with anything in the fields that are not one entry a token."""
    ids = draw(st.lists(st.integers(0, 99), max_size=6))
    each = {
        "ids": st.just(ids),
        "origins": st.lists(st.sampled_from(Origin), min_size=len(ids), max_size=len(ids)),
        "logprobs": st.none() | st.lists(SCORES, min_size=len(ids), max_size=len(ids)),
        "stats": st.none() | st.builds(JobStats),
        "finish": st.none() | st.sampled_from(["stop", "length"]),
        "prompt_logprobs": st.none() | st.lists(SCORES, max_size=3),
    }
    others = {name: st.from_type(hint) for name, hint in get_type_hints(Delta).items() if name not in each}
    return Delta(**{field.name: draw((each | others)[field.name]) for field in fields(Delta)})


@given(deltas(), st.lists(st.integers(0, 4)))
def test_split_and_joined_a_delta_is_as_before(delta: Delta, sizes: list[int]) -> None:
    parts, rest = list[Delta](), delta
    for size in sizes:
        part, others = rest.split(size)
        assert len(part.ids) == min(size, len(rest.ids))
        assert (part.finish is None) or others is None, "the end comes with the last token"
        parts.append(part)
        if others is None:
            break
        rest = others
    else:
        parts.append(rest)
    assert [part.position for part in parts if part.ids] == [
        delta.position + sum(len(p.ids) for p in parts[:i]) for i, part in enumerate(parts) if part.ids
    ]
    assert Delta.join(parts) == delta


def test_nothing_has_happened_yet() -> None:
    stats = JobStats()
    assert (stats.ttft_s, stats.total_s, stats.tokens, stats.replans, stats.joules) == (0.0, 0.0, 0, 0, 0.0)
    assert (stats.usd, stats.bill(), stats.stall_s) == (0.0, Bill(requests=1), 0.0)
    assert Delta([], []).position == 0


def test_a_bill_has_each_side_at_its_price() -> None:
    """2·1000 + 8·100 at the server, and 3 a joule at the device."""
    stats = JobStats(
        used=Used(server_in=1000, server_out=100, device_in=70, device_out=7),
        joules=5.0,
        prices=Prices(PerToken(2.0, 8.0), exchange_rate=3.0),
    )
    bill = stats.bill()
    assert bill == Bill(1, stats.used, 2000.0, 800.0, 5.0, 15.0)
    assert bill.server_usd == 2800.0
    assert stats.usd == 2815.0


def test_the_time_per_token_is_of_those_after_the_first() -> None:
    assert JobStats(ttft_s=0.5, total_s=0.9, tokens=3).tpot_s == pytest.approx(0.2)
    assert JobStats(ttft_s=0.5, total_s=0.5, tokens=1).tpot_s == 0.0
    assert JobStats(ttft_s=0.5, total_s=0.9, tokens=2).tpot_s == pytest.approx(0.4)


@dataclass(slots=True)
class Counted(Figures):
    """Figures of a toy mode."""

    mode = "toy"
    rounds: int = 0


def test_figures_of_jobs_are_summed_by_the_mode_that_served_them() -> None:
    jobs = [JobStats(figures={"toy": Counted(rounds)}) for rounds in (2, 3)]
    other = JobStats(figures={"cloud": Figures()})
    assert figures_by_mode([*jobs, other]) == {"toy": Counted(5), "cloud": Figures()}
    assert Counted.of(jobs[0]) == Counted(2)
    assert Counted.of(other) == Counted(0)
    assert list(Figures().counted()) == []


def test_a_job_is_the_same_however_it_is_traced_and_continued() -> None:
    job = Job(1, (5, 6), Sampling())
    assert (job.scored, job.priority, job.log.ids) == (False, 0, [])
    trace = Trace(NoOpTracer(), "request")
    assert replace(job, trace=trace, log=TokenLog([7], [Origin.CLOUD])) == job
    assert replace(job, scored=True) != job


def test_what_a_request_asks_of_a_mode_is_found_by_its_type() -> None:
    wanted = SpeculativeOptions(window=3)
    job = Job(1, (5,), Sampling(), options=(SketchOptions(), wanted))
    assert job.asked(SpeculativeOptions) is wanted
    assert Job(1, (5,), Sampling()).asked(SpeculativeOptions) == SpeculativeOptions()
