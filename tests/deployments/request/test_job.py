"""Deltas: split and joined they are as before, whatever fields they have."""

from dataclasses import fields
from typing import get_type_hints

from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.request.job import Delta, JobStats
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import TokenLogprob

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
