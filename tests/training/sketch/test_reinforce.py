"""Advantages are leave-one-out; the objective's gradient raises what was better and holds to the reference."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.training.family.models import Shape, new_model
from tandem.training.family.prompts import NEXT
from tandem.training.sketch.descent import Descent
from tandem.training.sketch.low_rank import attach, merged
from tandem.training.sketch.reinforce import advantages, objective
from tandem.training.sketch.reward import Rows, rows
from tandem.training.sketch.score import Expander

TINY = Shape(layers=2, width=32, heads=2, kv_heads=1, ffn=48)


def sketched(small: Expander, *sketches: str) -> Rows:
    ids = [small.tokenizer.encode(f" 50{NEXT}{text}", add_special_tokens=False) for text in sketches]
    return rows(small.tokenizer, ["Q?"] * len(ids), ids)


@given(worths=st.lists(st.lists(st.floats(-3, 3), min_size=2, max_size=2), min_size=4, max_size=4))
def test_advantages_are_against_the_same_line_of_the_others(small, worths):
    batch = sketched(small, *[f" river Jade{NEXT} craft rope making"] * 4)
    worth = torch.zeros(batch.ids.shape)
    worth[batch.ends] = torch.tensor(worths).flatten()
    found = advantages(worth, batch, together=2)
    for row in range(4):
        other = row ^ 1
        for line in (0, 1):
            marked = found[row][batch.written[row] & (batch.line[row] == line)]
            expected = torch.tensor(worths[row][line] - worths[other][line]).expand_as(marked)
            torch.testing.assert_close(marked, expected, atol=1e-5, rtol=1e-5)
    assert not found[~batch.written].any()


def test_a_line_that_no_other_sketch_has_is_neither_better_nor_worse(small):
    batch = sketched(small, f" river Jade{NEXT} craft rope making", " river Jade")
    found = advantages(batch.ends.float(), batch, together=2)
    assert not found.any()


def test_what_is_better_becomes_likelier(small):
    torch.manual_seed(2)
    policy = new_model(TINY, len(small.tokenizer))
    learnt = attach(policy, 4)
    reference = merged(policy)
    batch = sketched(small, " river Jade", " river Opal")
    worth = torch.where(batch.ends, torch.tensor([[1.0], [-1.0]]), 0.0)
    advantage = advantages(worth, batch, together=2)
    descent = Descent(learnt, 1e-2, 60)
    for _ in range(descent.steps):
        descent.step(objective(policy, reference, batch, advantage, gamma=0.0))

    def likelihoods(model):
        with torch.inference_mode():
            logs = model(input_ids=batch.ids).logits[:, :-1].log_softmax(-1)
        return (logs.gather(2, batch.ids[:, 1:, None])[..., 0] * batch.written[:, 1:]).sum(1)

    gained = likelihoods(policy) - likelihoods(reference)
    assert gained[0] > 0 > gained[1]


def test_the_divergence_pulls_back(small):
    """Starting from a moved policy, descending the KL alone comes nearer to the reference."""
    torch.manual_seed(3)
    policy = new_model(TINY, len(small.tokenizer))
    learnt = attach(policy, 4)
    reference = merged(policy)
    with torch.no_grad():
        for parameter in learnt:
            parameter.add_(0.1 * torch.randn_like(parameter))
    batch = sketched(small, " river Jade")
    descent, found = Descent(learnt, 3e-3, 60), []
    for _ in range(descent.steps):
        loss = objective(policy, reference, batch, torch.zeros(batch.ids.shape), gamma=1.0)
        found.append(loss.item())
        descent.step(loss)
    assert found[0] > 2 * found[-1] >= 0
