"""Patches of the processes that run vLLM's model: each of its workers imports this.

Two faults of 0.32's CPU build, mended where they would spoil samples or end the engine; outputs that a session was
opened with, which penalties have to count; `logit_bias` and `min_p`, which vLLM leaves out where it speculates; and
what clients' drafts were drawn from, which its rejection sampler takes of its own drafters only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor, MinPLogitsProcessor
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_input_batch import CachedRequestState
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tandem.engine.base import DraftProbs
from tandem.engine.vllm.views import CHOSEN_BY, DRAWN, REPLAYED


class Extension:
    """Empty; vLLM needs a class to import this module."""


def _expand(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Repeat [batch] values to [num_tokens], by each request's number of tokens. vLLM's own kernel writes into a copy
    unless the type is int64, and leaves temperatures as uninitialised memory."""
    x = torch.where(x == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), x)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.repeat_interleave(x, counts.to(torch.long), output_size=num_tokens)


def _mend_cpu() -> None:
    rejection_sampler.expand_batch_to_tokens = _expand
    plain = topk_topp_sampler.apply_top_k_only
    # A step without a single draft has no rows, of which there is no maximum.
    topk_topp_sampler.apply_top_k_only = lambda logits, k: logits if not len(logits) else plain(logits, k)


def _unpack_requests() -> None:
    """A request may begin with output, as the scheduler has it; vLLM's workers know of none that they have not made.
    And it may have parameters that vLLM would have refused."""
    plain = CachedRequestState.__post_init__

    def begin(state: CachedRequestState) -> None:
        plain(state)
        extra = (state.sampling_params and state.sampling_params.extra_args) or {}
        state.output_token_ids.extend(extra.get(REPLAYED, ()))
        for name, value in extra.get(CHOSEN_BY, {}).items():
            setattr(state.sampling_params, name, value)

    CachedRequestState.__post_init__ = begin


def _choose_with_drafts() -> None:
    """Have logit biases and min_p choose the tokens that drafts are compared with, too. They come before and after
    penalties, as in vLLM's steps without drafts."""
    build, process = gpu_model_runner.build_logitsprocs, RejectionSampler.apply_logits_processors

    def built(
        config: Any, device: torch.device, pinned: bool, pooling: bool, *others: Any
    ) -> LogitsProcessors:
        made = build(config, device, pinned, pooling, *others)
        if config.speculative_config and not pooling:
            made.non_argmax_invariant.append(LogitBiasLogitsProcessor(config, device, pinned))
            made.argmax_invariant.append(MinPLogitsProcessor(config, device, pinned))
        return made

    def processed(
        sampler: RejectionSampler, logits: torch.Tensor, sampling: Any, drafts: Any
    ) -> torch.Tensor:
        ends = list(accumulate(drafts.num_draft_tokens, initial=0))
        rows = [logits[begin:end] for begin, end in pairwise(ends)]
        for each in sampling.logitsprocs.non_argmax_invariant:
            if isinstance(each, LogitBiasLogitsProcessor):
                for request, biases in each.biases.items():
                    rows[request][:, list(biases)] += torch.tensor(
                        list(biases.values()), device=logits.device
                    )
        logits = process(sampler, logits, sampling, drafts)
        for each in sampling.logitsprocs.argmax_invariant:
            if isinstance(each, MinPLogitsProcessor) and each.min_p_count:
                _keep_likely(
                    (logits[begin:end] for begin, end in pairwise(ends)),
                    each.min_p_cpu.tolist(),
                    [] if sampling.temperature is None else sampling.temperature.tolist(),
                )
        return logits

    gpu_model_runner.build_logitsprocs = built
    RejectionSampler.apply_logits_processors = processed


def _keep_likely(requests: Iterable[torch.Tensor], least: list[float], temperatures: list[float]) -> None:
    """Rule out tokens that are less likely than `least` times the likeliest, by each request's temperature; 0 is
    greedy."""
    for rows, min_p, temperature in zip(requests, least, temperatures, strict=False):
        if min_p and temperature and len(rows):
            lowest = rows.amax(dim=-1, keepdim=True) + temperature * math.log(min_p)
            rows.masked_fill_(rows < lowest, -torch.inf)


def _verify_as_drawn() -> None:
    """Verify clients' drafts with the distributions that they were drawn from."""
    execute, own = GPUModelRunner.execute_model, GPUModelRunner._get_spec_decode_draft_probs
    recover = rejection_sampler.sample_recovered_tokens

    def executed(runner: Any, scheduled: Any, *args: Any, **options: Any) -> Any:
        runner.tandem_drawn = getattr(scheduled, DRAWN, {})
        return execute(runner, scheduled, *args, **options)

    def stated(runner: Any, drafts: Any) -> torch.Tensor | None:
        theirs, drawn = own(runner, drafts), runner.tandem_drawn
        if not drawn or (theirs is None and not any(drawn.values())):
            return theirs  # None: point masses all
        counts = zip(runner.input_batch.req_ids, drafts.num_draft_tokens, strict=False)
        rows = point_masses(drafts.draft_token_ids, runner.model_config.get_vocab_size())
        state(rows, dict(counts), drawn, theirs)
        return rows

    def recovered(
        most: int,
        counts: list[int],
        ends: torch.Tensor,
        drafts: torch.Tensor,
        q: torch.Tensor | None,
        p: torch.Tensor,
        *others: Any,
        **options: Any,
    ) -> torch.Tensor:
        if q is not None:
            # Where p exceeds q nowhere, which rounding may bring about, p itself is what is left.
            q = q * (p > q).any(dim=-1, keepdim=True)
        return recover(most, counts, ends, drafts, q, p, *others, **options)

    GPUModelRunner.execute_model = executed
    GPUModelRunner._get_spec_decode_draft_probs = stated
    rejection_sampler.sample_recovered_tokens = recovered


def point_masses(drafts: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return a row of probabilities for each draft: 1 for itself; zeros for -1, which is none."""
    rows = torch.zeros(len(drafts), vocab_size, device=drafts.device)
    return rows.scatter_(1, drafts.clamp(min=0).long()[:, None], (drafts >= 0).to(rows.dtype)[:, None])


def state(
    rows: torch.Tensor,
    counts: Mapping[str, int],
    drawn: Mapping[str, DraftProbs | None],
    theirs: torch.Tensor | None,
) -> None:
    """Set drafts' rows to what they were drawn from, where that is known.

    counts: of drafts by request, in the rows' order.
    drawn: clients' drafts' distributions; None for point masses.
    theirs: rows of vLLM's own drafter, which hold for requests without a client's drafts.
    """
    ends = list(accumulate(counts.values(), initial=0))
    for request, (begin, end) in zip(counts, pairwise(ends), strict=True):
        if request not in drawn:
            if theirs is not None:
                rows[begin:end] = theirs[begin:end]
        elif (probs := drawn[request]) is not None:
            ids, q = (torch.from_numpy(each[: end - begin].copy()) for each in probs.arrays())
            known = rows[begin : begin + len(ids)]
            known.zero_().scatter_add_(1, ids.long().to(rows.device), q.to(rows.device))


if current_platform.is_cpu():
    _mend_cpu()
_unpack_requests()
_choose_with_drafts()
_verify_as_drawn()
