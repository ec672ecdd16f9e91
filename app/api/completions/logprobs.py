"""Log-probabilities in OpenAI's two forms: for chats and for text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandem.app.api.completions.choice import ScoredToken
from tandem.engine.base import TokenLogprob
from tandem.engine.text.tokenizer import Tokenizer

IMPOSSIBLE = -9999.0
"""Stands for a probability of 0, as in vLLM: JSON has no minus infinity."""


def chat_logprobs(scored: Sequence[ScoredToken], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return `choices[].logprobs` of a chat, whose tokens add up to the content."""

    def entry(bare: bool, token: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token)
        raw = raw.removeprefix(b" ") if bare else raw
        shown = raw.decode("utf-8", "replace")
        return {"token": shown, "logprob": max(logprob, IMPOSSIBLE), "bytes": list(raw)}

    content = [
        entry(s.bare, s.token, s.scores.logprob)
        | {"top_logprobs": [entry(s.bare, *pair) for pair in s.scores.top]}
        for s in scored
        if s.scores is not None
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(
    prompt: Sequence[int], scores: Sequence[TokenLogprob], alternatives: int, tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """Return log-probabilities of a prompt's tokens in vLLM's form; the first token has none.

    scores: of all tokens but the first.
    alternatives: number of them to show. A token's rank is null where it is not among the best that were computed.
    """

    def entry(token: int, logprob: float, rank: int | None) -> dict[str, Any]:
        text = tokenizer.token_text(token)
        return {"logprob": max(logprob, IMPOSSIBLE), "rank": rank, "decoded_token": text}

    def shown(token: int, score: TokenLogprob) -> dict[str, Any]:
        ranks = {other: rank for rank, (other, _) in enumerate(score.top, 1)}
        best = {str(o): entry(o, logprob, ranks[o]) for o, logprob in score.top[:alternatives]}
        return {str(token): entry(token, score.logprob, ranks.get(token)), **best}

    return [None, *(shown(*pair) for pair in zip(prompt[1:], scores, strict=True))]


def completion_logprobs(scored: Sequence[ScoredToken], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return `choices[].logprobs` of a text completion.

    The best alternatives are keyed by their text; of two with the same text the likelier is kept.
    """

    def top(s: ScoredToken) -> dict[str, float] | None:
        if s.scores is None:
            return None
        texts: dict[str, float] = {}
        for token, logprob in s.scores.top:
            texts.setdefault(tokenizer.token_text(token), max(logprob, IMPOSSIBLE))
        return texts

    return {
        "tokens": [tokenizer.token_text(s.token) for s in scored],
        "token_logprobs": [s.scores and max(s.scores.logprob, IMPOSSIBLE) for s in scored],
        "top_logprobs": [top(s) for s in scored],
        "text_offset": [s.offset for s in scored],
    }
