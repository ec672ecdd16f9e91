"""A device's processor: in turn, exclusively, and decoding in batches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.devices.processor import Processor, ProcessorJob
from tests.virtual import now_s, run


@dataclass(frozen=True)
class Wanted:
    """A job that comes, takes so long, and may be given up; seconds."""

    at_s: float
    takes_s: float
    decodes: bool
    given_up_s: float


SECONDS = st.integers(0, 20).map(lambda n: n / 4)
wanted = st.builds(Wanted, SECONDS, SECONDS, st.booleans(), st.one_of(st.just(1e9), SECONDS))


@given(st.lists(wanted, max_size=12), st.integers(1, 4))
def test_in_turn_and_only_decoding_together(jobs: list[Wanted], batch: int) -> None:
    """For any arrivals and cancellations: one job alone, or up to `batch` that decode; and no job waits for an idle
    processor."""
    processor = Processor(parallel=False, batch=batch)
    at_work: list[Wanted] = []
    came: list[Wanted] = []
    began: list[Wanted] = []

    async def does(one: Wanted) -> None:
        await asyncio.sleep(one.at_s)
        came.append(one)
        job, turn = ProcessorJob(decodes=one.decodes), asyncio.Event()
        job.notify(turn.set)
        processor.start(job)
        try:
            async with asyncio.timeout(one.given_up_s):
                await turn.wait()
                began.append(one)
                at_work.append(one)
                assert len(at_work) == 1 or all(each.decodes for each in at_work)
                assert len(at_work) <= batch
                assert job.sequences <= batch
                await asyncio.sleep(one.takes_s)
        except TimeoutError:
            pass
        finally:
            if any(each is one for each in at_work):
                at_work.remove(one)
            processor.finish(job)

    async def main() -> None:
        await asyncio.gather(*map(does, jobs))
        longest_s = max((one.at_s for one in jobs), default=0.0) + sum(one.takes_s for one in jobs)
        assert now_s() <= longest_s + 1e-3
        assert processor.busy_s <= now_s() + 1e-9

    run(main())
    order = [id(one) for one in came if any(one is each for each in began)]
    assert [id(one) for one in began] == order, "first come, first served"


def test_what_is_given_up_before_its_turn_keeps_nobody_waiting() -> None:
    processor = Processor(parallel=False, batch=2)

    async def main() -> None:
        first, prompt, second = ProcessorJob(decodes=True), ProcessorJob(), ProcessorJob(decodes=True)
        for job in (first, prompt, second):
            processor.start(job)
        assert (second.start_s, first.sequences) == (None, 1)
        processor.finish(prompt)
        assert (second.start_s, second.sequences) == (now_s(), 2)

    run(main())
