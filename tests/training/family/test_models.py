"""The weights in the repository: where they are, how large, that they load, and that they know something."""

import json
from collections.abc import Sequence
from random import Random
from statistics import mean

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.engine.family import EXPANDERS, NAMES, WEIGHTS, path
from tandem.training.family.encyclopedia.items import LONG_KINDS, Item, make_item
from tandem.training.family.encyclopedia.world import World
from tandem.training.family.generate import generate
from tandem.training.family.models import SHAPES, load
from tandem.training.family.prompts import answer_prompt, expansion_prompt, heldout, home_world
from tandem.training.family.scoring import fact_accuracy, states
from tandem.training.family.tokenizer import VOCABULARY


@pytest.mark.parametrize("name", NAMES)
def test_loads_as_bf16_with_the_announced_shape(name):
    model = AutoModelForCausalLM.from_pretrained(path(name), dtype="auto")
    assert model.dtype == torch.bfloat16
    assert model.config.num_hidden_layers == SHAPES[name].layers
    assert model.config.vocab_size == VOCABULARY[name]
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 2
    assert model.config.tie_word_embeddings


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'large'.*target, tiny, small, medium, other"):
        path("large")


def test_missing_weights_say_how_to_make_them(tmp_path, monkeypatch):
    monkeypatch.setattr("tandem.engine.family.WEIGHTS", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"training\.family\.train small"):
        path("small")


def test_the_weights_take_at_most_25_mb():
    assert sum(file.stat().st_size for file in WEIGHTS.rglob("*")) <= 25e6


def test_no_path_of_the_training_machine_is_saved():
    for name in NAMES:
        config = json.loads((path(name) / "config.json").read_text())
        assert "_name_or_path" not in config
        assert not any(str(value).startswith("/") for value in config.values())


@pytest.mark.slow
def test_the_target_knows_facts_and_the_small_model_fewer():
    items = heldout(60, ["fact"], seed=1)
    prompts = [answer_prompt(item.question) for item in items]
    accuracy = {}
    for name in ("target", "small"):
        model, tokenizer = load(path(name))
        texts = [tokenizer.decode(ids) for ids in generate(model, tokenizer, prompts, 40)]
        accuracy[name] = fact_accuracy(items, texts)
    assert accuracy["target"] > 0.7
    assert accuracy["small"] < accuracy["target"]


def stated(name: str, items: Sequence[Item]) -> float:
    """The share of the last lines of these sketches whose facts the model's sentences state."""
    model, tokenizer = load(path(name))
    prompts = [expansion_prompt(item.question, item.notes, item.notes[-1]) for item in items]
    texts = [tokenizer.decode(ids) for ids in generate(model, tokenizer, prompts, 48)]
    return mean(states(text, item.lines[-1].value) for text, item in zip(texts, items, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("small", 0.8), ("medium", 0.8), ("other", 0.7)])
def test_devices_models_expand_what_the_sketch_says_even_if_it_is_untrue(name, least):
    untrue = World(home_world().seed, facts_seed=5)
    items = [make_item(untrue, Random(i), kind, held=True) for i in range(8) for kind in LONG_KINDS]
    assert stated(name, items) >= least


@pytest.mark.slow
def test_expanders_are_the_better_the_larger_they_are():
    items = heldout(100, seed=3)
    tiny, small, medium = (stated(name, items) for name in EXPANDERS)
    assert tiny + 0.1 < small < medium


def test_generation_is_the_same_alone_and_in_a_padded_batch():
    model, tokenizer = load(path("small"))
    prompts = [answer_prompt(item.question) for item in heldout(12, seed=2)]
    together = generate(model, tokenizer, prompts, 30)
    assert together == [generate(model, tokenizer, [prompt], 30)[0] for prompt in prompts]
