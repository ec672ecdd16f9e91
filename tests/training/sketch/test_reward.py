"""Rows mark lines as the sketch has them; the reward model learns an order and blames the right line."""

from __future__ import annotations

from random import Random

import torch

from tandem.training.family.models import Shape, new_model
from tandem.training.family.prompts import EOS, NEXT, sketch_prompt
from tandem.training.sketch.descent import Descent
from tandem.training.sketch.preferences import Pair
from tandem.training.sketch.reward import RewardModel, accuracy, learn_reward, rows
from tandem.training.sketch.score import Expander

TINY = Shape(layers=2, width=32, heads=2, kv_heads=1, ffn=48)


def test_rows_mark_every_line_with_its_separator(small: Expander) -> None:
    tokenizer = small.tokenizer
    texts = [" 130<|;|> founded 1622<|;|> river Jade", " 80<|;|> river Opal"]
    sketches = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    batch = rows(tokenizer, ["Who is Q?", "Who?"], sketches)
    for row, (question, text) in enumerate(zip(["Who is Q?", "Who?"], texts, strict=True)):
        ids = batch.ids[row][: int(batch.written[row].nonzero().max()) + 1]
        assert tokenizer.decode(ids) == f"{sketch_prompt(question)}{text}{EOS}"
        lines = text.split(NEXT)[1:]
        assert int(batch.ends[row].sum()) == len(lines)
        for number, line in enumerate(lines):
            marked = batch.ids[row][batch.written[row] & (batch.line[row] == number)]
            assert tokenizer.decode(marked) == line + (EOS if number == len(lines) - 1 else NEXT)


def test_it_learns_which_is_better_and_where(small: Expander) -> None:
    """Pairs differ in one line, by a word that is always worse."""
    tokenizer, rng = small.tokenizer, Random(1)

    def pair() -> Pair:
        names = rng.sample(["Jade", "Opal", "Moss", "Falcon"], 3)
        spoilt = list(names)
        spoilt[rng.randrange(3)] = "winter"
        better, worse = (
            tokenizer.encode(
                " 50" + "".join(f"{NEXT} river {name}" for name in some), add_special_tokens=False
            )
            for some in (names, spoilt)
        )
        return Pair("Which rivers?", better, worse)

    torch.manual_seed(1)
    reward = RewardModel(new_model(TINY, len(tokenizer)))
    pairs, held = [pair() for _ in range(64)], [pair() for _ in range(16)]
    losses: list[float] = []
    learn_reward(reward, Descent(reward.parameters(), 3e-3, 40), pairs, tokenizer, rng, losses.append)
    assert losses[0] > 0.69 > 0.3 > losses[-1]
    assert accuracy(reward, held, tokenizer) > 0.9
    text = f" 50{NEXT} river Jade{NEXT} river winter{NEXT} river Moss"
    batch = rows(tokenizer, ["Which rivers?"], [tokenizer.encode(text, add_special_tokens=False)])
    with torch.no_grad():
        worth = reward(batch)[batch.ends]
    assert worth[0] > 0 > worth[1], "what is said of later lines depends on those before"
