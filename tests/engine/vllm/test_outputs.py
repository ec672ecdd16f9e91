"""Outputs of vLLM's core wait for their sessions, in order, each once; an end reaches whoever waits."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import NamedTuple

import pytest

from tandem.engine.base import EngineStopped
from tandem.engine.vllm.outputs import Outputs


class Made(NamedTuple):
    """Stands in for vLLM's EngineCoreOutput."""

    request_id: str
    new_token_ids: list[int]
    finished: bool = False


async def test_outputs_of_several_steps_are_taken_at_once_and_in_order() -> None:
    outputs = Outputs()
    one, other = outputs.open("one"), outputs.open("other")
    outputs.put([Made("one", [1]), Made("other", [7])])
    outputs.put([Made("one", [2, 3])])
    assert [output.new_token_ids for output in await one.get()] == [[1], [2, 3]]
    assert [output.new_token_ids for output in await other.get()] == [[7]]


async def test_a_session_waits_for_the_next_output() -> None:
    outputs = Outputs()
    one = outputs.open("one")
    for token in range(3):
        waiting = asyncio.create_task(one.get())
        await asyncio.sleep(0)
        assert not waiting.done()
        outputs.put([Made("one", [token])])
        assert [output.new_token_ids for output in await waiting] == [[token]]


async def test_a_request_that_has_ended_is_kept_no_longer_and_gets_nothing_more() -> None:
    outputs = Outputs()
    one = outputs.open("one")
    outputs.put([Made("one", [1], finished=True)])
    assert len(outputs) == 0
    outputs.put([Made("one", [2]), Made("unknown", [3])])
    assert [output.new_token_ids for output in await one.get()] == [[1]]


async def test_an_error_reaches_all_whether_they_wait_or_not() -> None:
    outputs = Outputs()
    one, other = outputs.open("one"), outputs.open("other")
    waiting = asyncio.create_task(one.get())
    await asyncio.sleep(0)
    outputs.put([Made("other", [1])])
    outputs.fail(EngineStopped("it is gone"))
    for each in (waiting, other.get(), other.get()):
        with pytest.raises(EngineStopped, match="it is gone"):
            await each
    assert len(outputs) == 0


async def test_an_error_that_was_raised_holds_nothing() -> None:
    """Otherwise a closed engine's memory would stay until the next full collection."""
    outputs = Outputs()
    one = outputs.open("one")
    outputs.fail(EngineStopped("it is gone"))
    with pytest.raises(EngineStopped):
        await one.get()
    gone = weakref.ref(one)
    gc.disable()
    try:
        del one
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")  # of what vLLM imports
async def test_who_waits_for_an_aborted_request_is_told() -> None:
    outputs = Outputs()
    one = outputs.open("one")
    waiting = asyncio.create_task(one.get())
    await asyncio.sleep(0)
    assert outputs.abort("one")
    (last,) = await waiting
    assert (last.new_token_ids, last.finished) == ([], True)
    assert not outputs.abort("one")
