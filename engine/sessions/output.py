"""Base of sessions whose output ends on this side: by its limit of tokens, and by its stop tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.engine.base import EngineInfo, InvalidRequest, Sampling, Tokens
from tandem.engine.sessions.session import BaseSession
from tandem.engine.validation import check_ids


class OutputSession(BaseSession):
    """sampling: as this side gave it.
    output: in this side's tokens.
    ends: tokens that end the output.
    """

    def __init__(self, info: EngineInfo, sampling: Sampling, log: Sequence[int]) -> None:
        super().__init__(info)
        self.sampling, self.output = sampling, list(log)
        self.ends = {*sampling.stop_tokens} | (set() if sampling.ignore_eos else {info.eos})

    @property
    def finish(self) -> str | None:
        """ "stop" or "length" at the output's end, as far as this side can tell; None before."""
        if not self.ends.isdisjoint(self.output):
            return "stop"
        return "length" if len(self.output) >= self.sampling.max_tokens else None

    def _take(self, tokens: Tokens) -> Tokens:
        """Add those of the tokens that still belong to the output, and return them."""
        ids = self._fitting(tokens.ids)
        self.output += ids
        finish = self.finish if len(ids) < len(tokens.ids) else tokens.finish or self.finish
        return Tokens(ids, finish, usage=tokens.usage)

    def _fitting(self, ids: list[int]) -> list[int]:
        """Return those of the tokens that may follow the output, up to its end."""
        room = self.sampling.max_tokens - len(self.output)
        end = next((n for n, i in enumerate(ids[:room], 1) if i in self.ends), None)
        return ids[: room if end is None else end]

    def _check_fits(self, position: int, ids: Sequence[int]) -> None:
        """Raise InvalidRequest if the output from `position` on cannot be `ids`."""
        check_ids(ids, self._info.vocab_size)
        if not 0 <= position <= len(self.output) or position + len(ids) > self.sampling.max_tokens:
            raise InvalidRequest(
                f"{len(ids)} tokens at output position {position} do not fit an output of "
                f"{len(self.output)} tokens, of at most {self.sampling.max_tokens}"
            )
