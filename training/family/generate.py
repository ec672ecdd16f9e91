"""Batched generation with plain transformers, greedy or sampled, for evaluation; serving has an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

BATCH = 64


@torch.inference_mode()
def generate(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    max_tokens: int,
    sample: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """Continue each prompt until its end token (not included) or `max_tokens`; returns the new token ids.

    Prompts of similar length run together, padded on the left. Sampling is at temperature 1 from the whole
    distribution, by torch's global seed. `progress` hears how many prompts are newly done.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    results: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        inputs = tokenizer(
            [prompts[i] for i in chosen], return_tensors="pt", padding=True, add_special_tokens=False
        )
        output = model.generate(  # type: ignore[misc]
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=max_tokens,
            do_sample=sample,
            temperature=1.0 if sample else None,
            top_k=0 if sample else None,
            top_p=1.0 if sample else None,
        )
        new: Tensor = output[:, inputs["input_ids"].shape[1] :]
        for i, row in zip(chosen, new.tolist(), strict=True):
            results[i] = row[: row.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in row else row
        progress(len(chosen))
    return results
