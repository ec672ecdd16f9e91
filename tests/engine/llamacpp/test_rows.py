"""The books of rows, under every schedule of the core."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.effort import tried
from tests.engine.core import test_step as core_tests
from tests.engine.llamacpp.row_runner import RowRunner


class RowCoreMachine(core_tests.CoreMachine):
    make = RowRunner

    @initialize(
        blocks=st.integers(11, 20),
        budget=st.sampled_from([4, 24, 64]),
        chunk=st.sampled_from([1, 5, 64]),
        scheduler=st.sampled_from([None, *core_tests.SCHEDULERS]),
        seed=st.integers(0, 9),
        lookup=st.sampled_from([0, 4]),
    )
    def begin(
        self, blocks: int, budget: int, chunk: int, scheduler: str | None, seed: int, lookup: int
    ) -> None:
        super().begin(blocks, budget, chunk, None, scheduler, seed, lookup)


RowCoreMachine.TestCase.settings = settings(max_examples=tried(30, 200), stateful_step_count=50)
TestRowCore = RowCoreMachine.TestCase


def test_no_leak_in_thousands_of_operations() -> None:
    core_tests.test_no_leak_in_thousands_of_operations(RowRunner, None)
