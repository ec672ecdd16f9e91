"""Which tokens the models of a simulation say. Only its engines look here: how long an answer is and which drafts are
accepted, nobody else may know before it happens.

A request's prompt begins with its number, so that an engine knows it, and no two prompts share a prefix, but for those
that are said to; in these the number comes after what they share. A token of the output tells its position, so that one
that is lost or said twice shows; a drafter says the same as the target where the workload's acceptance sequence has a
1, and something else where it has a 0. Verification then compares tokens, as with greedy decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.simulator.workload import Request

EOS, WRONG = 2, 3
TOKEN = 5  # the first of an output; the others count up from it
FIRST = 16  # the number of the first request
VOCABULARY = "simulated"
VOCAB_SIZE = 2**31
_FILL = 4


class Script:
    """The requests of a simulation, by number."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._firsts: dict[int, int] = {}  # of outputs that do not count up from TOKEN
        self._shared: dict[int, int] = {}  # tokens of prefixes, by their first one
        self._next = FIRST

    def add(self, request: Request, first: int = TOKEN, shared: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
        """A request enters: its prompt.

        first: the first token of its output.
        shared: the prefix that its prompt shares with others: its first token, nobody's number, and how many it has.
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
        """Of the request whose prompt they begin with."""
        return tokens[self._shared.get(tokens[0], 0)]

    def request(self, number: int) -> Request:
        """As it entered."""
        return self._requests[number]

    def own(self, number: int, position: int) -> int:
        """The target's token at an output position."""
        if position + 1 >= self._requests[number].output_tokens:
            return EOS
        return self._firsts.get(number, TOKEN) + position

    def draft(self, number: int, position: int, count: int = 1) -> list[int]:
        """A drafter's tokens from there on, so many, or as far as its EOS."""
        request = self._requests[number]
        acceptance, last = request.acceptance or (), request.output_tokens - 1
        ids: list[int] = []
        for i, right in enumerate(acceptance[position : position + count], position):
            if not right:
                ids.append(WRONG)
            elif i < last:
                ids.append(TOKEN + i)
            else:
                ids.append(EOS)
                return ids
        ids += [WRONG] * (count - len(ids))
        return ids

    def judge(self, number: int, position: int, drafts: Sequence[int]) -> tuple[int, int]:
        """(how many of the drafts from an output position on stand, the target's own token after those)."""
        last, first = self._requests[number].output_tokens - 1, self._firsts.get(number, TOKEN)
        for i, draft in enumerate(drafts, position):
            own = first + i if i < last else EOS
            if draft != own:
                return i - position, own
        end = position + len(drafts)
        return len(drafts), first + end if end < last else EOS

    def answer(self, number: int) -> list[int]:
        """The whole output."""
        last = self._requests[number].output_tokens - 1
        return [*range(TOKEN, TOKEN + last), EOS]
