"""Step 1, supervised: the target learns to write shortened sketches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from random import Random

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.training.adapter.texts import Batch, Document
from tandem.training.family import prompts
from tandem.training.family.encyclopedia.items import LONG_KINDS, Item, make_item
from tandem.training.sketch.descent import Descent

REHEARSED = 0.3
"""Share of the documents that are answers in full, so that the target goes on giving these."""


def draw_items(count: int, rng: Random) -> list[Item]:
    """Questions with long answers, in the phrasings of the family's training."""
    return [make_item(prompts.home_world(), rng, rng.choice(LONG_KINDS)) for _ in range(count)]


def documents(
    tokenizer: PreTrainedTokenizerFast, shortened: Sequence[Item], rng: Random
) -> Iterator[Document]:
    """Sketches of these items, again and again, among answers to other questions."""

    def document(prompt: str, text: str) -> Document:
        prompt_ids, ids = tokenizer([prompt, text], add_special_tokens=False)["input_ids"]
        return Document(prompt_ids, ids)

    while True:
        for item in rng.sample(shortened, len(shortened)):
            tokens = len(tokenizer.encode(f" {item.answer}", add_special_tokens=False))
            yield document(prompts.sketch_prompt(item.question), prompts.sketch_text(item, tokens))
            if rng.random() < REHEARSED / (1 - REHEARSED):
                other = make_item(prompts.home_world(), rng, rng.choice(("fact", *LONG_KINDS)))
                yield document(prompts.answer_prompt(other.question), prompts.answer_text(other))


def imitate(
    model: LlamaForCausalLM, descent: Descent, batches: Iterator[Batch], hear: Callable[[float], object]
) -> None:
    """Descend the cross-entropy of what the documents write; hears it."""
    for batch in islice(batches, descent.steps):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
            logits = model.lm_head(hidden[batch.counted])
        loss = F.cross_entropy(logits.float(), batch.ids.roll(-1, 1)[batch.counted])
        descent.step(loss)
        hear(loss.item())
