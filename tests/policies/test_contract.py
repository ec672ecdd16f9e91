"""Contract of the policies of every family, over all that are registered.

Decisions are valid, follow from the state, and do not change it. What a policy does beyond is tested
in its family's file.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import policies
from tandem.policies.autoscaling import PoolState, ReplicaState, autoscaling
from tandem.policies.base import Registry
from tandem.policies.cost import PerToken
from tandem.policies.estimators.windows import Latencies, Lengths
from tandem.policies.race.dispatch import DispatchState, Side, Start, dispatch
from tandem.policies.race.migration import MigrationState, migration, saved_usd
from tandem.policies.routing.collaboration import ANY_DEVICE, CollaborationState, DeviceView, collaboration
from tandem.policies.routing.replica import ReplicaView, routing
from tandem.policies.scheduling import EngineLoad, scheduling
from tandem.policies.scheduling.batching import Demand, batching
from tandem.policies.sketch import SketchDecision, SketchJob, SketchState, job_queue, sketching
from tandem.policies.speculation.window import Remembering, WindowState, window
from tandem.policies.split import LinearDelay
from tandem.policies.split.chunking import ChunkState, chunking
from tandem.policies.split.drafting import DraftRound, DraftState, Learning, drafting
from tandem.policies.split.parallel_drafting import Ahead, WaitState, parallel_drafting
from tests.effort import tried
from tests.policies.routing.test_collaboration import MODES, devices_
from tests.policies.scheduling.test_batching import demands_
from tests.policies.scheduling.test_policies import loads
from tests.policies.sketch.test_dispatch import Call, calls
from tests.policies.sketch.test_sketch_length import sketch_states


class Family(NamedTuple):
    """A family's contract.

    registry: its policies.
    states: whatever they may be shown.
    decide: asks one of them.
    check: raises AssertionError where a decision is not valid.
    """

    registry: Registry[Any]
    states: st.SearchStrategy[Any]
    decide: Callable[[Any, Any], Any]
    check: Callable[[Any, Any], None]


def _start_is_valid(state: DispatchState, start: Start) -> None:
    assert min(start.server_s, start.device_s) == 0.0, "somebody starts at once"
    assert max(start.server_s, start.device_s) >= 0.0


def _migration_is_valid(state: MigrationState, decision: tuple[bool, bool]) -> None:
    wanted, due = decision
    assert wanted or not due, "what is due is wanted"
    if wanted:
        assert saved_usd(state) > 0.0, "what is wanted pays"
        assert state.target.decode < state.source.decode
    if due:
        assert state.reader_rate == 0.0 or state.migration_s < math.inf
        assert state.reader_rate == 0.0 or state.ahead >= state.reader_rate * state.migration_s, (
            "and keeps nobody waiting"
        )


def _window_is_valid(state: WindowState, gamma: int) -> None:
    assert isinstance(gamma, int)
    assert gamma >= 0


def _replica_is_valid(replicas: list[ReplicaView], index: int) -> None:
    assert index in range(len(replicas))


def _grants_are_valid(state: tuple[list[Demand], int], grants: list[int]) -> None:
    demands, budget = state
    for demand, grant in zip(demands, grants, strict=True):
        assert 0 <= grant <= demand.pending
        assert grant == demand.pending or grant <= demand.pending - demand.window, "a window is split"
    assert sum(grants) <= budget or sum(grant > 0 for grant in grants) == 1
    assert any(grants) == bool(demands), "there is work, and nobody may do it"


def _choice_is_valid(load: EngineLoad, chosen: list[int]) -> None:
    assert 1 <= len(chosen) <= load.places
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(len(load)))
    assert len(chosen) == 1 or load.tokens[chosen].sum() <= load.capacity


def _size_is_valid(pool: PoolState, desired: float) -> None:
    assert 0 <= desired < math.inf
    assert desired > 0 or not (pool.waiting or any(r.sessions for r in pool.replicas)), (
        "somebody has to serve them"
    )


def _chunk_is_valid(state: ChunkState, size: int) -> None:
    assert isinstance(size, int)
    assert 1 <= size <= state.left


def _drafting_is_valid(state: tuple[DraftRound, DraftState], go_on: bool) -> None:
    assert isinstance(go_on, bool)
    assert not go_on or state[1].left > 0, "no more than the output may have"


def _ahead_is_valid(state: WaitState, ahead: Ahead) -> None:
    assert bool(ahead.branches) == bool(ahead.steps)
    assert 0 <= ahead.steps <= state.left
    assert ahead.steps * state.draft_s(ahead.branches) <= state.wait_s * (1 + 1e-9), "it outlasts the wait"


def _collaboration_is_valid(state: CollaborationState, chosen: Any) -> None:
    assert chosen.mode in MODES
    assert state.mode in (None, chosen.mode), "an explicit mode is followed"


def _sketch_is_valid(state: SketchState, choice: SketchDecision) -> None:
    assert 0 <= choice.tokens < state.tokens
    assert (choice.tokens == 0) == (choice.model is None) == (choice.reason is not None)
    if choice.model is not None:
        assert state.devices > 0
        assert choice.model in {model.name for model in state.models}


def _call_is_valid(call: Call, answer: bool | list[SketchJob] | None) -> None:
    if isinstance(answer, list):
        assert call.method == "take"
        assert len(set(answer)) == len(answer) <= call.arguments[0]
    else:
        assert call.method == ("add" if answer is None else "remove")


class Best(NamedTuple):
    """The first of the devices by name, in place of the one that a policy prefers."""

    devices: tuple[DeviceView, ...]

    def __call__(self, among: Sequence[str] | None) -> DeviceView | None:
        there = [d for d in self.devices if among is None or d.name in among]
        return min(there, key=lambda d: d.name, default=None)


def _few(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=12)


shares = st.floats(0, 1)
edges = st.sampled_from([0.0, 1e-300, 1.0])
seconds = st.one_of(st.sampled_from([0.0, 1e-9, math.inf]), st.floats(0, 20))
dollars = st.one_of(st.sampled_from([0.0, 1e-300, 1e9]), st.floats(0, 1e-3))
per_token = st.builds(PerToken, dollars, dollars)
lengths = st.one_of(st.integers(1, 400), st.integers(1, 200_000))
counts = st.integers(0, 1_000_000).map(float)
lines = st.builds(LinearDelay, st.floats(0, 1), st.floats(0, 0.01))
bandwidths = st.one_of(st.sampled_from([1e-300, 1e300]), st.floats(1e3, 1e9))


@st.composite
def draft_rounds(draw: st.DrawFn) -> DraftRound:
    confidences = tuple(draw(st.lists(shares, max_size=12)))
    accepted = draw(st.integers(0, len(confidences)))
    draft_s = draw(st.floats(0, 10))
    return DraftRound(confidences, accepted, draft_s, draft_s + draw(st.floats(0, 10)))


draft_states = st.builds(
    DraftState,
    confidences=st.lists(shares, max_size=12).map(tuple),
    left=st.integers(-1, 40),
    draft_s=st.floats(0, 10),
    token_s=st.floats(0, 10),
    round_s=st.floats(0, 10),
)
replica_states = st.builds(
    ReplicaState,
    name=st.sampled_from("abcdefgh"),
    sessions=st.integers(0, 500).map(float),
    backlog=counts,
    reading=st.floats(0, 1e4),
    starving=st.integers(0, 500).map(float),
    kv_wanted=counts,
    kv_capacity=counts,
    places=st.integers(1, 500).map(float),
    prefilled=counts,
    generated=counts,
    base_s=st.floats(0, 1),
    token_s=st.floats(0, 0.1),
)
FAMILIES = {
    "autoscaling": Family(
        autoscaling,
        st.builds(
            PoolState,
            now_s=st.floats(0, 1e4),
            target=st.integers(0, 9),
            replicas=st.lists(replica_states, min_size=1, max_size=8, unique_by=lambda r: r.name).map(tuple),
            waiting=st.integers(0, 99).map(float),
        ),
        lambda policy, state: policy.desired(state),
        _size_is_valid,
    ),
    "dispatch": Family(
        dispatch,
        st.builds(
            DispatchState,
            tokens=lengths,
            lengths=_few(lengths).map(Lengths),
            ttft=_few(st.floats(0, 50)).map(Latencies),
            budget=st.one_of(edges, shares),
            constrained=st.sampled_from(Side),
            coin=st.one_of(st.just(0.0), st.floats(0, 1, exclude_max=True)),
        ),
        lambda policy, state: policy.choose(state),
        _start_is_valid,
    ),
    "migration": Family(
        migration,
        st.builds(
            MigrationState,
            known=st.integers(0, 10_000),
            remaining=st.floats(0, 10_000),
            source=per_token,
            target=per_token,
            migration_s=seconds,
            reader_rate=st.one_of(st.sampled_from([0.0, 1e-300, 1e300]), st.floats(0, 100)),
            ahead=st.floats(0, 1e6),
        ),
        lambda policy, state: (policy.wanted(state), policy.due(state)),
        _migration_is_valid,
    ),
    "window": Family(
        window,
        st.builds(
            WindowState,
            acceptance=shares,
            rtt_s=st.floats(0, 10),
            tpot_s=st.floats(0, 10),
            queue=st.floats(0, 100),
            previous=st.integers(0, 16),
            verify_s=st.floats(0, 10),
            draft_s=st.floats(0, 10),
            fused_s=st.floats(0, 10),
            alpha=shares,
            judged=st.integers(0, 300),
            prior=shares,
            verify_least_s=st.floats(0, 10),
            fused_least_s=st.floats(0, 10),
            fused_share=shares,
            mean_window=st.one_of(st.just(0.0), st.floats(2, 12)),
            alone_s=st.floats(0, 10),
            drafted=st.one_of(st.just(0.0), st.floats(1, 12)),
        ),
        lambda policy, state: policy.choose(state),
        _window_is_valid,
    ),
    "chunking": Family(
        chunking,
        st.builds(
            ChunkState,
            left=lengths,
            token_bytes=st.floats(1, 1e5),
            up_bytes_s=bandwidths,
            mu=st.floats(0, 1e4),
            delay_s=lines,
            pipeline=st.integers(1, 8),
        ),
        lambda policy, state: policy.choose(state),
        _chunk_is_valid,
    ),
    "drafting": Family(
        drafting,
        st.tuples(draft_rounds(), draft_states),
        lambda policy, state: (policy.learn(state[0]), policy.go_on(state[1]))[1],
        _drafting_is_valid,
    ),
    "parallel_drafting": Family(
        parallel_drafting,
        st.builds(
            WaitState,
            tokens=st.integers(1, 13),
            left=st.integers(0, 40),
            link_token_s=st.floats(0, 1e2) | st.sampled_from([1e-300, 1e300]),
            delay_s=st.floats(0, 10),
            draft_s=lines,
            rtt_s=st.floats(0, 1),
            passed_s=st.floats(0, 10),
        ),
        lambda policy, state: policy.choose(state),
        _ahead_is_valid,
    ),
    "routing": Family(
        routing,
        st.lists(  # replicas come and go
            st.builds(ReplicaView, st.integers(0, 99), st.floats(0, 1), st.floats(0, 9)),
            min_size=1,
            max_size=9,
        ),
        lambda policy, state: policy.choose(state),
        _replica_is_valid,
    ),
    "batching": Family(
        batching,
        st.tuples(demands_(), st.integers(1, 64)),
        lambda policy, state: policy.form(*state),
        _grants_are_valid,
    ),
    "scheduling": Family(
        scheduling,
        loads(),
        lambda policy, state: policy.choose(state).tolist(),
        _choice_is_valid,
    ),
    "sketching": Family(
        sketching,
        sketch_states,
        lambda policy, state: policy.choose(state),
        _sketch_is_valid,
    ),
    "job_queue": Family(
        job_queue,
        calls(),
        lambda queue, call: getattr(queue, call.method)(*call.arguments),
        _call_is_valid,
    ),
    "collaboration": Family(
        collaboration,
        st.builds(
            CollaborationState,
            mode=st.sampled_from([None, *MODES]),
            device=st.sampled_from([None, ANY_DEVICE, "named", ("a", "b")]),
            modes=st.just(MODES),
            best_device=st.builds(Best, devices_.map(tuple)),
            prompt_tokens=st.integers(1, 10_000),
            max_tokens=st.integers(1, 10_000),
            reader_rate=st.sampled_from([0.0, 5.0]),
            budget=st.none() | st.floats(0, 1),
        ),
        lambda policy, state: policy.choose(state),
        _collaboration_is_valid,
    ),
}
EVERY = [
    pytest.param(family, name, id=f"{which}-{name}")
    for which, family in FAMILIES.items()
    for name in family.registry
]


@pytest.mark.parametrize(("family", "name"), EVERY)
@settings(max_examples=tried(10, settings.default.max_examples))
@given(data=st.data())
def test_decisions_are_valid_repeatable_and_change_nothing(
    family: Family, name: str, data: st.DataObject
) -> None:
    """Two of the same policy, shown the same one after the other, decide the same."""
    states: Sequence[Any] = data.draw(_few(family.states))
    one, other = family.registry.create(name), family.registry.create(name)
    for state in states:
        before = pickle.dumps(state)
        decision = family.decide(one, state)
        assert pickle.dumps(state) == before, "what is shown belongs to whoever shows it"
        family.check(state, decision)
        assert family.decide(other, state) == decision


@pytest.mark.parametrize("name", list(window))
@given(before=_few(FAMILIES["window"].states), after=_few(FAMILIES["window"].states))
def test_a_window_policy_remembers_what_its_memory_says(
    name: str, before: list[WindowState], after: list[WindowState]
) -> None:
    """Another object, given the memory, decides alike; a policy without one has nothing to remember."""
    one, other = window.create(name), window.create(name)
    for state in before:
        one.choose(state)
    if isinstance(one, Remembering):
        assert isinstance(other, Remembering)
        other.memory = tuple(float(number) for number in one.memory)
    assert [one.choose(state) for state in after] == [other.choose(state) for state in after]


@pytest.mark.parametrize("name", list(drafting))
@given(rounds=st.lists(draft_rounds(), max_size=30), states=_few(draft_states))
def test_a_drafting_policy_knows_what_its_memory_says(
    name: str, rounds: list[DraftRound], states: list[DraftState]
) -> None:
    one, other = drafting.create(name), drafting.create(name)
    for done in rounds:
        one.learn(done)
    if isinstance(one, Learning):
        assert isinstance(other, Learning)
        other.memory = tuple(float(number) for number in one.memory)
    assert [one.go_on(state) for state in states] == [other.go_on(state) for state in states]


def test_no_family_is_left_out() -> None:
    """And every one lies where its registry says, or it could not be pickled."""
    modules = [import_module(found.name) for found in walk_packages(policies.__path__, "tandem.policies.")]
    registries = [
        value for module in modules for value in vars(module).values() if isinstance(value, Registry)
    ]
    assert {registry.family for registry in registries} == set(FAMILIES)
    assert all(pickle.loads(pickle.dumps(registry)) is registry for registry in registries)
