"""The scheduler's contract with vLLM where a connector keeps KV cache elsewhere: vLLM goes on while the connector has
work, and a session whose cache is being loaded runs when the policy says."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest

from tandem.engine import vllm
from tandem.engine.base import Sampling
from tandem.engine.core.sequence import Sequence as Log
from tandem.engine.vllm.config import VllmConfig

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

BLOCK = 16
STORED = 2 * BLOCK
"""Leading tokens of a prompt that lie elsewhere."""


@pytest.fixture(params=[8, 0], ids=["speculating", "plain"])
def core(request: pytest.FixtureRequest) -> Any:
    vllm.set_environment()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        return _core(request.param)


def _core(window: int) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
    from vllm.v1.request import Request

    from tandem.engine.vllm.session import sampling_params
    from tandem.engine.vllm.views import Label
    from tandem.simulator.engines.vllm import block_hasher, new_scheduler, vllm_settings

    class Shelf(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM is not typed here
        """Connector that has the beginnings of prompts, and sends away what ends."""

        pushing, sends = False, False

        def get_num_new_matched_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
            return max(0, STORED - computed), True

        def update_state_after_alloc(self, *_: Any) -> None: ...

        def build_connector_meta(self, _: Any) -> KVConnectorMetadata:
            return KVConnectorMetadata()

        def request_finished(self, *_: Any) -> tuple[bool, None]:
            return self.sends, None

        def has_pending_push_work(self) -> bool:
            return self.pushing

        def start_load_kv(self, *_: Any, **__: Any) -> None: ...
        def wait_for_layer_load(self, _: Any) -> None: ...
        def save_kv_layer(self, *_: Any, **__: Any) -> None: ...
        def wait_for_save(self) -> None: ...

    class Core:
        """Scheduler whose steps are done by hand."""

        def __init__(self) -> None:
            config = VllmConfig(
                kv_blocks=64,
                block_size=BLOCK,
                window=window,
                options={"kv_transfer_config": {"kv_connector": "Shelf", "kv_role": "kv_both"}},
            )
            settings = vllm_settings(config)
            self.scheduler, self.hash_blocks = new_scheduler(settings), block_hasher(settings)
            self.shelf: Any = self.scheduler.connector

        def add(self, number: int) -> str:
            log = Log(number, [number] * (STORED + 8), [], Sampling(max_tokens=50), 0, None)
            name = str(number)
            params = sampling_params(log, Label(number, 0.0, 0))
            self.scheduler.add_request(Request(name, log.tokens, params, None, block_hasher=self.hash_blocks))
            return name

        def step(self, loaded: tuple[str, ...] = (), sent: tuple[str, ...] = ()) -> list[str]:
            """Do a step in which these requests' cache has come, or gone; return those that were computed."""
            work = self.scheduler.schedule()
            names = list(work.num_scheduled_tokens)
            said = ModelRunnerOutput(
                names,
                {name: i for i, name in enumerate(names)},
                [[7] for _ in names],
                kv_connector_output=KVConnectorOutput(finished_recving={*loaded}, finished_sending={*sent}),
            )
            self.scheduler.update_from_output(work, said)
            return names

    KVConnectorFactory._registry["Shelf"] = lambda: Shelf
    try:
        return Core()
    finally:
        del KVConnectorFactory._registry["Shelf"]


def test_vllm_goes_on_while_the_connector_has_work(core: Any) -> None:
    scheduler, name = core.scheduler, core.add(1)
    assert scheduler.has_requests()
    assert core.step(loaded=(name,)) == []
    assert core.step() == [name]
    assert not scheduler.has_requests(), "it is parked"
    core.shelf.pushing = True
    assert scheduler.has_requests()
    core.shelf.pushing, core.shelf.sends = False, True
    scheduler.finish_requests(name, _aborted())
    core.step()
    assert scheduler.has_requests(), "its cache is on its way"
    core.step(sent=(name,))
    assert not scheduler.has_requests()
    assert scheduler.stats().blocks_free == scheduler.stats().blocks_total


def test_a_session_whose_cache_is_loaded_runs_when_the_policy_says(core: Any) -> None:
    first, second = core.add(1), core.add(2)
    assert core.step(loaded=(first, second)) == []
    views = core.scheduler._views
    views[first].paused = True
    assert core.step() == [second]
    views[first].paused = False
    views[first].rank, views[second].rank = 1, 0
    assert core.step() == [first]


def test_the_order_is_the_policys_also_among_those_that_hold_memory(core: Any) -> None:
    names = [core.add(number) for number in (1, 2, 3)]
    assert core.step(loaded=tuple(names)) == []
    for rank, name in zip((2, 0, 1), names, strict=True):
        core.scheduler._views[name].rank = rank
    assert core.step() == [names[1], names[2], names[0]]


OVERRIDDEN = {
    "add_request",
    "get_grammar_bitmask",
    "has_unfinished_requests",
    "schedule",
    "update_from_output",
    "_free_request",
    "_preempt_request",
    "_update_request_with_output",
}
"""Methods of vLLM's scheduler that ours replaces: what a new release of vLLM may change under us."""
ATTRIBUTES = {
    "connector",
    "kv_cache_config",
    "kv_cache_manager",
    "kv_holding_waiting",
    "num_spec_tokens",
    "requests",
    "running",
    "waiting",
}
"""Attributes of it that ours reads."""


def test_vllm_still_has_what_is_overridden_and_read(core: Any) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    from tandem.engine.vllm.scheduler import TandemScheduler

    own = {name for name, value in vars(TandemScheduler).items() if inspect.isfunction(value)} - {"__init__"}
    assert {name for name in own if hasattr(Scheduler, name)} == OVERRIDDEN
    for name in OVERRIDDEN:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (TandemScheduler, Scheduler))
        kinds = {parameter.kind for parameter in ours.parameters.values()}
        passed_on = inspect.Parameter.VAR_POSITIONAL in kinds
        assert passed_on or list(ours.parameters) == list(theirs.parameters), name
    assert all(hasattr(core.scheduler, name) for name in ATTRIBUTES)


def _aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED
