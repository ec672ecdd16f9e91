"""What every policy of every family owes whoever asks it, over all that are registered.

Its decisions are valid, follow from what it was shown, and change nothing of that. What a policy does beyond is tested
in its family's file.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import policies
from policies.autoscaling import PoolState, ReplicaState, autoscaling
from policies.base import Registry
from policies.batching import Demand, batching
from policies.collaboration import ANY_DEVICE, CollaborationState, DeviceView, collaboration
from policies.cost import PerToken
from policies.dispatch import DispatchState, Side, Start, dispatch
from policies.migration import MigrationState, buffer_tokens, migration, saved_usd
from policies.routing import routing
from policies.samples import Latencies, Lengths
from policies.scheduling import Load, scheduling
from policies.window import Remembering, WindowState, window
from tests.policies.scheduling.test_policies import loads
from tests.policies.test_batching import demands_
from tests.policies.test_collaboration import MODES, devices_


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
        assert state.ahead >= buffer_tokens(state.reader_rate, state.migration_s), "and keeps nobody waiting"
        assert state.reader_rate == 0.0 or state.migration_s < math.inf


def _window_is_valid(state: WindowState, gamma: int) -> None:
    assert isinstance(gamma, int)
    assert gamma >= 1


def _replica_is_valid(depths: list[int], index: int) -> None:
    assert index in range(len(depths))


def _grants_are_valid(state: tuple[list[Demand], int], grants: list[int]) -> None:
    demands, budget = state
    for demand, grant in zip(demands, grants, strict=True):
        assert 0 <= grant <= demand.pending
        assert grant == demand.pending or grant <= demand.pending - demand.window, "a window is split"
    assert sum(grants) <= budget or sum(grant > 0 for grant in grants) == 1
    assert any(grants) == bool(demands), "there is work, and nobody may do it"


def _choice_is_valid(load: Load, chosen: list[int]) -> None:
    assert 1 <= len(chosen) <= load.places
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(len(load)))
    assert len(chosen) == 1 or load.tokens[chosen].sum() <= load.capacity


def _size_is_valid(pool: PoolState, desired: float) -> None:
    assert 0 <= desired < math.inf
    assert desired > 0 or not (pool.waiting or any(r.sessions for r in pool.replicas)), (
        "somebody has to serve them"
    )


def _collaboration_is_valid(state: CollaborationState, chosen: Any) -> None:
    assert chosen.mode in MODES
    assert state.mode in (None, chosen.mode), "an explicit mode is followed"


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
        ),
        lambda policy, state: policy.choose(state),
        _window_is_valid,
    ),
    "routing": Family(
        routing,
        st.lists(st.integers(0, 99), min_size=1, max_size=9),  # replicas come and go
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


def test_no_family_is_left_out() -> None:
    """A family lies in the module of its name."""
    registries = (
        getattr(import_module(f"policies.{module.name}"), module.name, None)
        for module in iter_modules(policies.__path__)
    )
    assert {found.family for found in registries if isinstance(found, Registry)} == set(FAMILIES)
