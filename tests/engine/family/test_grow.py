"""A grown model answers exactly as before and costs more."""

import pytest
import torch

from tandem.engine.family import path
from tandem.engine.family.grow import grow, main
from tandem.training.family.models import Shape, load, new_model, save
from tandem.training.family.prompts import answer_prompt
from tandem.training.family.tokenizer import train_tokenizer


def test_outputs_are_unchanged_and_blocks_multiplied(tmp_path):
    grow(path("target"), 3, tmp_path / "grown")
    model, tokenizer = load(path("target"))
    grown, _ = load(tmp_path / "grown")
    assert grown.config.num_hidden_layers == 36
    ids = torch.tensor([tokenizer.encode(answer_prompt("Who founded Brenwick?"))])
    with torch.inference_mode():
        torch.testing.assert_close(grown(ids).logits, model(ids).logits, rtol=0, atol=1e-6)
        mine, theirs = (m.generate(ids, max_new_tokens=20, do_sample=False) for m in (model, grown))
    assert torch.equal(mine, theirs)
    blocks = [sum(p.numel() for p in m.model.layers.parameters()) for m in (model, grown)]
    assert blocks[1] == 3 * blocks[0]


def test_only_whole_factors_from_one_on(tmp_path):
    with pytest.raises(ValueError, match="at least 1, not 0"):
        grow(path("small"), 0, tmp_path / "none")


def test_command_line_takes_names_and_folders(tmp_path, capsys):
    save(new_model(Shape(1, 32, 2, 1, 48), 400), train_tokenizer(400, 200), tmp_path / "tiny")
    main([str(tmp_path / "tiny"), "2", str(tmp_path / "tiny2")])
    assert load(tmp_path / "tiny2")[0].config.num_hidden_layers == 2
    main(["small", "2", str(tmp_path / "small2")])
    assert load(tmp_path / "small2")[0].config.num_hidden_layers == 4
    assert "2 times the blocks" in capsys.readouterr().out
