"""Training: batches count the right tokens, and an interrupted run ends exactly like an uninterrupted one."""

from dataclasses import replace

import pytest
import torch

from tandem.training.family import prompts
from tandem.training.family import train as training
from tandem.training.family.batches import Corpus, Mix
from tandem.training.family.models import Shape, load, new_model, save
from tandem.training.family.tokenizer import train_tokenizer
from tandem.training.family.train import Plan, Stage, Trainer, schedule
from tests.effort import slow_after, tried

TINY = Shape(layers=2, width=32, heads=2, kv_heads=1, ffn=48)
PLAN = Plan(
    (Stage(6 * 256, 6e-3, Mix(0.6, 0.4)), Stage(4 * 256, 3e-3, Mix(0.6, 0.4), copying=0.5)),
    rows=2,
    length=128,
    seed=7,
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(512, 500)


def trainer(tokenizer, plan: Plan = PLAN) -> Trainer:
    torch.manual_seed(plan.seed)
    return Trainer(new_model(TINY, len(tokenizer)), tokenizer, plan)


def finish(run: Trainer) -> list[float]:
    entropies = []
    while run.locate() is not None:
        entropies.append(run.train_step())
    return entropies


@pytest.mark.parametrize("interruption", slow_after(1, [6, 3, 8]))
def test_resuming_gives_the_identical_model(tokenizer, tmp_path, interruption):
    straight = trainer(tokenizer)
    finish(straight)
    first = trainer(tokenizer)
    for _ in range(interruption):
        first.train_step()
    first.save_checkpoint(tmp_path / "run.pt")
    second = trainer(tokenizer)
    second.load_checkpoint(tmp_path / "run.pt")
    finish(second)
    assert second.step == straight.step == 10
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name]), name


def test_a_checkpoint_of_another_plan_is_refused(tokenizer, tmp_path):
    trainer(tokenizer).save_checkpoint(tmp_path / "run.pt")
    with pytest.raises(SystemExit, match="another plan"):
        trainer(tokenizer, replace(PLAN, seed=8)).load_checkpoint(tmp_path / "run.pt")


@pytest.mark.slow
def test_the_loss_falls(tokenizer):
    plan = Plan((Stage(tried(60, 120) * 512, 1e-2, Mix(1.0, 0.0)),), rows=2, length=256)
    entropies = finish(trainer(tokenizer, plan))
    assert entropies[-1] < entropies[0] - 1


def test_batches_follow_from_seed_and_step(tokenizer):
    mix = Mix(0.4, 0.3, 0.2, 0.1)
    first, again, later, other = (
        Corpus(tokenizer, seed, 2, 128).batch(step, mix)[0] for seed, step in ((1, 5), (1, 5), (1, 6), (2, 5))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("mix", "last_of_prompt"),
    [(Mix(1, 0), prompts.ANSWER), (Mix(0, 1), prompts.LENGTH), (Mix(0, 0, 1), prompts.SENTENCE)],
)
def test_what_is_counted_begins_after_the_prompt_and_ends_with_the_document(tokenizer, mix, last_of_prompt):
    ids, counted = Corpus(tokenizer, 1, 2, 256).batch(0, mix)
    marker = tokenizer.convert_tokens_to_ids(last_of_prompt)
    for row, marks in zip(ids.tolist(), counted.tolist(), strict=True):
        inside = False
        for token, mark in zip(row, marks, strict=True):
            assert mark == inside
            if token == marker:
                inside = True
            elif token == tokenizer.eos_token_id:
                inside = False


def test_schedule_warms_up_and_decays():
    rates = [schedule(step, 1000) for step in range(1000)]
    assert rates[0] < 0.05
    assert max(rates) == pytest.approx(1, abs=0.01)
    assert rates[-1] == pytest.approx(0.02, abs=0.001)


def test_saved_weights_are_the_trained_ones_rounded(tokenizer, tmp_path):
    model = trainer(tokenizer).model
    save(model, tokenizer, tmp_path / "m")
    loaded, _ = load(tmp_path / "m")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight.bfloat16().float(), loaded.state_dict()[name]), name


@pytest.mark.slow
def test_command_line_trains_a_little(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(training.PLANS, "other", PLAN)
    monkeypatch.setattr(training, "new_named_model", lambda name: new_model(TINY, len(tokenizer)))
    monkeypatch.setattr(training, "train_tokenizer", lambda vocabulary: tokenizer)
    monkeypatch.setattr(training.train, "__defaults__", (False, None, tmp_path / "weights"))
    training.main(["other", "--work", str(tmp_path / "work"), "--threads", "1"])
    assert (tmp_path / "work" / "other.pt").exists()
    assert load(tmp_path / "weights" / "other")[0].config.num_hidden_layers == 2
