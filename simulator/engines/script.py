"""Scripted tokens of all models in a simulation. Only its engines read it: no policy may know an answer's length or
acceptance before they happen.

A request's prompt begins with its number, by which an engine knows it, so that no two prompts share a prefix unless
they are meant to; then the number follows the shared prefix. A token of the output tells its position, so that a lost
or repeated one shows; a drafter's token equals the target's if the workload's acceptance sequence has a 1, and differs
if it has a 0. Verification then compares tokens, as with greedy decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.engine.base import TokenLogprob
from tandem.simulator.workload import Request

EOS, WRONG = 2, 3
TOKEN = 5  # the first token of an output; the others count up from it
FIRST = 16  # the number of the first request
VOCABULARY = "simulated"
VOCAB_SIZE = 2**31
UNLIKELY = -20.0
"""Log-probability of a token that the target would not have written."""
_FILL = 4


class Script:
    """The requests of a simulation, by number."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._firsts: dict[int, int] = {}  # of outputs that do not count up from TOKEN
        self._shared: dict[int, int] = {}  # length of prefixes, by their first token
        self._doubted: dict[int, set[int]] = {}  # output positions that the target finds unlikely
        self._next = FIRST

    def add(self, request: Request, first: int = TOKEN, shared: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
        """Add a request and return its prompt.

        first: first token of its output.
        shared: prefix that its prompt shares with others: first token, which is no request's number, and length.
        """
        number, self._next = self._next, self._next + 1
        self._requests[number] = request
        if first != TOKEN:
            self._firsts[number] = first
        prefix, tokens = shared
        if not tokens:
            return (number,) + (_FILL,) * (request.prompt_tokens - 1)
        self._shared[prefix] = tokens
        rest = request.prompt_tokens - tokens - 1
        return (prefix,) + (_FILL,) * (tokens - 1) + (number,) + (_FILL,) * rest

    def number(self, tokens: Sequence[int]) -> int:
        """Return the number of the request whose prompt begins `tokens`."""
        return tokens[self._shared.get(tokens[0], 0)]

    def request(self, number: int) -> Request:
        return self._requests[number]

    def own(self, number: int, position: int) -> int:
        """Return the target's token at an output position."""
        if position + 1 >= self._requests[number].output_tokens:
            return EOS
        return self._firsts.get(number, TOKEN) + position

    def draft(self, number: int, position: int, count: int = 1) -> list[int]:
        """Return a drafter's next `count` tokens from a position, up to its EOS."""
        request = self._requests[number]
        acceptance, last = request.acceptance or (), request.output_tokens - 1
        first = self._firsts.get(number, TOKEN)
        ids: list[int] = []
        for i, right in enumerate(acceptance[position : position + count], position):
            if not right:
                ids.append(WRONG)
            elif i < last:
                ids.append(first + i)
            else:
                ids.append(EOS)
                return ids
        ids += [WRONG] * (count - len(ids))
        return ids

    def judge(self, number: int, position: int, drafts: Sequence[int]) -> tuple[int, int]:
        """Return how many of the drafts from an output position are accepted, and the target's next token."""
        last, first = self._requests[number].output_tokens - 1, self._firsts.get(number, TOKEN)
        for i, draft in enumerate(drafts, position):
            own = first + i if i < last else EOS
            if draft != own:
                return i - position, own
        end = position + len(drafts)
        return len(drafts), first + end if end < last else EOS

    def doubt(self, number: int, positions: set[int]) -> None:
        """Have the target find the tokens at these positions unlikely where others have written them."""
        self._doubted[number] = positions

    def scores(self, number: int, position: int, count: int) -> list[TokenLogprob]:
        """Return log-probabilities of tokens from an output position on."""
        doubted = self._doubted.get(number, ())
        return [TokenLogprob(UNLIKELY if at in doubted else 0.0) for at in range(position, position + count)]

    def answer(self, number: int) -> list[int]:
        """Return the whole output."""
        last = self._requests[number].output_tokens - 1
        return [*range(TOKEN, TOKEN + last), EOS]
