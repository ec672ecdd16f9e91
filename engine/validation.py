"""Checks of requests, on the event loop, before anything changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tandem.engine.base import ContextOverflow, DraftProbs, InvalidRequest, NoCapacity, Sampling


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequest for ids that are not in the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        raise InvalidRequest(f"token ids must lie in 0 .. {vocab_size - 1}")


def check_window(window: int) -> None:
    """Raises InvalidRequest for a negative window."""
    if window < 0:
        raise InvalidRequest(f"window must be 0 or more tokens, not {window}")


def check_room(open_sessions: int, most: int) -> None:
    """Raises NoCapacity if another session would be one too many."""
    if open_sessions >= most:
        raise NoCapacity(f"{open_sessions} sessions are open; no room for another now")


def check_request(
    prompt: Sequence[int],
    log: Sequence[int],
    sampling: Sampling,
    vocab_size: int,
    room: int,
    adapters: Collection[str] = (),
) -> None:
    """Raise InvalidRequest or ContextOverflow for a request that makes no sense.

    room: most tokens of a session.
    adapters: names of those that the engine has.
    """
    sampling.check()
    if sampling.adapter and sampling.adapter not in adapters:
        raise InvalidRequest(f"this engine has no adapter {sampling.adapter!r}")
    if not prompt:
        raise InvalidRequest("the prompt must hold at least one token")
    check_ids(prompt, vocab_size)
    check_ids(log, vocab_size)
    check_ids([token for token, _ in sampling.logit_bias], vocab_size)
    if len(log) > sampling.max_tokens:
        raise InvalidRequest(f"the log holds {len(log)} tokens, max_tokens is {sampling.max_tokens}")
    if len(prompt) + sampling.max_tokens > room:
        raise ContextOverflow(
            f"{len(prompt)} prompt and {sampling.max_tokens} output tokens exceed the {room} that fit"
        )


def checked_probs(probs: DraftProbs, drafts: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distributions of `drafts` drafts as arrays (ids, probabilities), each [drafts, width].

    Raise InvalidRequest for distributions that are malformed: they must not harm the step.
    """
    try:
        q_ids, q_probs = probs.arrays()
    except ValueError as error:
        raise InvalidRequest(f"the draft's distributions are malformed: {error}") from None
    if not len(q_ids) == len(q_probs) == drafts:
        raise InvalidRequest(
            f"{drafts} drafts come with {len(q_ids)} rows of ids and {len(q_probs)} of probabilities"
        )
    if drafts:
        check_ids([int(q_ids.min()), int(q_ids.max())], vocab_size)
        if not ((q_probs >= 0.0).all() and np.allclose(q_probs.sum(axis=1), 1.0, atol=1e-3)):
            raise InvalidRequest("each of the draft's distributions must be 0 or more and sum to 1")
    return q_ids, q_probs
