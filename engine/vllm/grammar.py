"""Grammars in vLLM's scheduler: the masks that its workers put on the logits of a step.

vLLM's own manager of them wants vLLM's tokenizer, which is not loaded here, and knows nothing of the output that a
session was opened with. So the same matchers as in the own core tell what may follow, by the session's whole output and
the drafts of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.structured_output.request import StructuredOutputRequest
from vllm.v1.structured_output.utils import strip_speculative_padding

from tandem.engine.base import Grammar, InvalidRequest
from tandem.engine.text.grammar import Grammars, Matcher
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.vllm.views import GRAMMAR

if TYPE_CHECKING:
    from vllm.v1.request import Request


class GrammarMasks:
    """Matchers of the requests that have a grammar. Stands in for vLLM's StructuredOutputManager."""

    def __init__(self, folder: str, vocab_size: int, fail: Callable[[str], object]) -> None:
        """folder: of the tokenizer.
        vocab_size: tokens of the model's logits, padding included.
        fail: has the scheduler fail a request, by its id.
        """
        self._words, self._fail = -(-vocab_size // 32), fail
        self._matchers: dict[str, tuple[Matcher, int]] = {}  # with where the output begins
        self._grammars: Future[Grammars] | None = None
        if (Path(folder) / "tokenizer.json").exists():  # a simulation has none
            thread = ThreadPoolExecutor(
                1
            )  # the first grammar would have all sessions wait for the vocabulary
            self._grammars = thread.submit(_grammars, folder, vocab_size)
            thread.shutdown(wait=False)

    def begin(self, request: Request, before: int) -> None:
        """Note a new request if it has a grammar. before: output tokens that its session was opened with."""
        given = request.sampling_params.extra_args.get(GRAMMAR)
        if given is None or self._grammars is None:
            return
        grammar, ends = given
        try:
            matcher = self._grammars.result().matcher(msgspec.convert(grammar, Grammar), frozenset(ends))
        except InvalidRequest:  # not to be expected: the session's side has compiled it
            self._fail(request.request_id)
            return
        self._matchers[request.request_id] = matcher, request.num_tokens - before
        request.structured_output_request = StructuredOutputRequest(StructuredOutputsParams(json_object=True))

    def end(self, request_id: str) -> None:
        """Forget a request."""
        self._matchers.pop(request_id, None)

    def output(
        self, requests: Mapping[str, Request], ids: Sequence[str], drafts: Mapping[str, list[int]]
    ) -> GrammarOutput | None:
        """Return the masks of a step for those of its requests that have a grammar; None if there are none.

        ids: requests that get a token.
        drafts: of the step, by request.
        """
        ids = [request_id for request_id in ids if request_id in self._matchers]
        if not ids:
            return None
        masks, acceptable = [], []
        for request_id in ids:
            matcher, begin = self._matchers[request_id]
            proposed = drafts.get(request_id, [])
            real = strip_speculative_padding(proposed)
            forbidden = matcher.forbidden(requests[request_id].all_token_ids[begin:], real)
            if matcher.failure is not None:
                self._fail(request_id)
            masks.append(self._packed(forbidden, len(proposed) + 1))
            acceptable.append(len(real))
        return GrammarOutput(ids, np.concatenate(masks), acceptable)

    def accept_tokens(self, request: Request, ids: Sequence[int]) -> bool:
        """Return True: the matcher reads the output when it is asked for the next mask."""
        return True

    def validate_tokens(self, request: Request, drafts: list[int]) -> list[int]:
        """Return all drafts: those that the grammar forbids are rejected by their masks."""
        return drafts

    def _packed(self, forbidden: np.ndarray, rows: int) -> np.ndarray:
        """Return a bit for each token that is allowed, [rows, words]; all bits in rows that pad."""
        bits = np.zeros((rows, self._words * 32), np.uint8)
        bits[: len(forbidden), : forbidden.shape[1]] = ~forbidden
        bits[len(forbidden) :] = 1
        return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


def _grammars(folder: str, vocab_size: int) -> Grammars:
    tokenizer = Tokenizer.load(folder)
    made = Grammars(tokenizer, min(vocab_size, tokenizer.vocab_size))
    made.matcher(Grammar("json_object"), frozenset())
    return made
