"""An engine whose model has another vocabulary, driven in the vocabulary of this side.

Tokens travel through text: what either side says is turned into bytes and tokenised anew. Bytes are conserved
exactly, also where a token is half a character, or where tokens would merge across a cut.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import cast

import msgspec

from engine.base import (
    Draft,
    DraftProbs,
    Engine,
    EngineInfo,
    EngineStats,
    InvalidRequest,
    Sampling,
    Tokens,
    UnknownSession,
    Verdict,
)
from engine.text import Tokenizer


class _Session:
    """prompt, sampling: as this side gave them. output: as this side knows it."""

    def __init__(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int]) -> None:
        self.prompt, self.sampling, self.output = list(prompt), sampling, list(log)


class Translated:
    """The Engine protocol in the vocabulary of `here`, over an engine in that of `there`.

    Special tokens are translated by name. It decodes; drafting and verifying across vocabularies makes no sense.
    """

    def __init__(self, engine: Engine, here: Tokenizer, there: Tokenizer) -> None:
        self._engine, self._here, self._there = engine, here, there
        self._sessions: dict[int, _Session] = {}

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(
            self._engine.info,
            vocabulary=self._here.vocabulary,
            vocab_size=self._here.vocab_size,
            eos=self._here.eos,
        )

    async def open(
        self, session: int, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> None:
        if sampling.logprobs >= 0:
            raise InvalidRequest("log-probabilities do not translate between vocabularies")
        await self._open(session, _Session(prompt, sampling, log))

    async def _open(self, session: int, s: _Session) -> None:
        prompt = translate(s.prompt, self._here, self._there)
        log = translate(s.output, self._here, self._there)
        left = self._engine.info.context - len(prompt) - len(log)
        if left < 1:
            raise InvalidRequest("the prompt does not fit into the other model's context")
        sampling = msgspec.structs.replace(
            s.sampling,
            max_tokens=len(log) + left,  # this side's own limit is kept in `generate`
            stop_tokens=tuple(translate([i], self._here, self._there)[0] for i in s.sampling.stop_tokens),
        )
        await self._engine.open(session, prompt, sampling, log)
        self._sessions[session] = s

    async def generate(self, session: int) -> AsyncIterator[Tokens]:
        s = self._get(session)
        retokeniser = Retokeniser(self._there, self._here)
        stream = cast(AsyncGenerator[Tokens, None], self._engine.generate(session))
        async with aclosing(stream):
            async for tokens in stream:
                ids = retokeniser.push(tokens.ids)
                if tokens.finish is not None:
                    ids += retokeniser.flush()
                room = s.sampling.max_tokens - len(s.output)
                finish = "length" if len(ids) >= room and tokens.finish != "stop" else tokens.finish
                if len(ids) > room:
                    ids, finish = ids[:room], "length"
                s.output += ids
                if ids or finish is not None:
                    yield Tokens(ids, finish)
                if finish is not None:
                    return

    async def extend(self, session: int, position: int, tokens: Sequence[int]) -> None:
        s = self._get(session)
        if not 0 <= position <= len(s.output):
            raise InvalidRequest(f"output position {position} is beyond the {len(s.output)} tokens known")
        # Where the cut falls inside one of the other side's tokens, all of it is said anew.
        await self._engine.cancel(session)
        s.output[position:] = tokens
        await self._open(session, s)

    async def verify(self, session: int, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        raise InvalidRequest("a model of another vocabulary cannot verify these tokens")

    async def draft(self, session: int, position: int, tokens: Sequence[int], window: int) -> Draft:
        raise InvalidRequest("a model of another vocabulary cannot draft these tokens")

    async def cancel(self, session: int) -> None:
        self._sessions.pop(session, None)
        await self._engine.cancel(session)

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def close(self) -> None:
        await self._engine.close()

    def _get(self, session: int) -> _Session:
        if (s := self._sessions.get(session)) is None:
            raise UnknownSession(f"no session {session} is open")
        return s


class Retokeniser:
    """Tokens of one vocabulary to tokens of another as they come. What may still become a character is held
    back until it does, or until the end."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self._source, self._target = source, target
        self._held = b""

    def push(self, ids: Sequence[int]) -> list[int]:
        """The other vocabulary's tokens of what these complete."""
        data = self._held + self._source.shown_bytes(ids)
        whole = len(data) - unfinished_bytes(data)
        self._held = data[whole:]
        return self._target.encode_bytes(data[:whole])

    def flush(self) -> list[int]:
        """At the end: what was held back, as it is."""
        held, self._held = self._held, b""
        return self._target.encode_bytes(held)


def translate(ids: Sequence[int], source: Tokenizer, target: Tokenizer) -> list[int]:
    """The same bytes in another vocabulary; special tokens by name, which raises InvalidRequest where the
    other vocabulary has none of that name."""
    translated: list[int] = []
    plain: list[int] = []
    for token in ids:
        if (name := source.special_name(token)) is None:
            plain.append(token)
            continue
        translated += target.encode_bytes(source.shown_bytes(plain))
        plain.clear()
        translated.append(target.special_id(name))
    return translated + target.encode_bytes(source.shown_bytes(plain))


def unfinished_bytes(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character without completing it."""
    for n in range(1, min(3, len(data)) + 1):
        byte = data[-n]
        if byte & 0xC0 != 0x80:  # it begins a character, of so many bytes
            size = 4 if byte >> 3 == 0b11110 else 3 if byte >> 4 == 0b1110 else 2 if byte >> 5 == 0b110 else 1
            return n if n < size else 0
    return 0
