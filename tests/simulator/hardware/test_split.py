"""The parts of a split model take together what the whole does, and what a device's end takes."""

from __future__ import annotations

import pytest

from tandem.simulator.hardware import ends, middle_timer, timer
from tests.simulator.data import needs_data


def test_the_parts_make_the_whole() -> None:
    """Apart from what the host does, which is done twice."""
    whole, middle = timer("A6000", "Llama-2-7B"), middle_timer("A6000", "Llama-2-7B", 30)
    outer = ends("A6000", "Llama-2-7B", 2, "none")
    for step in ((1, 1, 300, ()), (300, 0, 0, ((300, 50),)), (40, 8, 2000, ((32, 0),))):
        rows = step[0] + sum(1 - chunk for chunk, _ in step[3])
        parts_s = middle.step_s(*step) + outer.shallow.step_s(*step) + outer.head(rows)
        assert parts_s - 0.002 == pytest.approx(whole.step_s(*step), rel=1e-3)


def test_an_adapter_costs_less_than_a_layer_and_heads_more_than_a_head() -> None:
    plain, adapter, heads = (ends("AGXOrin", "Llama-2-7B", 2, kind) for kind in ("none", "adapter", "heads"))
    deeper = ends("AGXOrin", "Llama-2-7B", 3, "none")
    step = (1, 1, 300)
    assert plain.shallow.step_s(*step) < adapter.shallow.step_s(*step) < deeper.shallow.step_s(*step)
    assert (plain.heads, adapter.heads) == (None, None)
    assert heads.heads is not None
    assert 4 * heads.head(1) < heads.heads < 5 * heads.head(1)


@needs_data
def test_the_papers_own_figures() -> None:
    """HAT, section 2.3: a prompt of 2k tokens takes 0.28 s in the cloud and 0.09 s on an Orin. Nothing is fitted."""
    prompt = (2048, 0, 0, ((2048, 0),))
    assert middle_timer("A6000", "Llama-2-7B", 30).step_s(*prompt) == pytest.approx(0.28, rel=0.15)
    orin = ends("AGXOrin", "Llama-2-7B", 2, "none")
    assert orin.shallow.step_s(*prompt) + orin.head(1) == pytest.approx(0.09, rel=0.4)
