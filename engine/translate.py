"""An engine whose model has another vocabulary, driven in the vocabulary of this side.

Tokens travel through text: what either side says is turned into bytes and tokenised anew. Bytes are conserved
exactly, also where a token is half a character, or where tokens would merge across a cut.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from tandem.engine.base import (
    ContextOverflow,
    Engine,
    EngineInfo,
    EngineStats,
    Extend,
    InvalidRequest,
    Operation,
    Sampling,
    Session,
    Tokens,
)
from tandem.engine.session import BaseSession
from tandem.engine.tokenizer import Tokenizer
from tandem.engine.validation import check_ids, check_request


class _Session(BaseSession):
    """prompt, sampling: as this side gave them.
    output: as this side knows it.
    ends: tokens that end it.
    """

    def __init__(
        self,
        translated: Translated,
        inner: Session,
        prompt: Sequence[int],
        sampling: Sampling,
        log: Sequence[int],
    ) -> None:
        super().__init__(translated.info)
        self._translated, self._inner = translated, inner
        self.prompt, self.sampling, self.output = prompt, sampling, list(log)
        self.ends = {*sampling.stop_tokens} | (set() if sampling.ignore_eos else {translated.info.eos})

    @property
    def finish(self) -> str | None:
        """Why the output is at its end, as far as this side can tell; None if it isn't."""
        if not self.ends.isdisjoint(self.output):
            return "stop"
        return "length" if len(self.output) >= self.sampling.max_tokens else None

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        try:
            if self.finish is not None:
                yield Tokens([], self.finish)
                return
            retokeniser = self._translated.retokeniser()
            async with aclosing(self._inner.generate()) as stream:
                async for tokens in stream:
                    ids = retokeniser.push(tokens.ids)
                    if tokens.finish is not None:
                        ids += retokeniser.flush()
                    taken = self._take(Tokens(ids, tokens.finish))
                    if taken.ids or taken.finish is not None:
                        yield taken
                    if taken.finish is not None:
                        return
        finally:
            self._finish()

    def _take(self, tokens: Tokens) -> Tokens:
        """What of these still belongs to the output, which they are added to."""
        room = self.sampling.max_tokens - len(self.output)
        end = next((n for n, i in enumerate(tokens.ids[:room], 1) if i in self.ends), None)
        ids = tokens.ids[: room if end is None else end]
        self.output += ids
        return Tokens(ids, self.finish if len(ids) < len(tokens.ids) else tokens.finish or self.finish)

    async def _run(self, operation: Operation[Any]) -> Any:
        if not isinstance(operation, Extend):
            raise self._lacks(operation.name)
        position, ids = operation.position, operation.ids
        check_ids(ids, self._info.vocab_size)
        if not 0 <= position <= len(self.output) or position + len(ids) > self.sampling.max_tokens:
            raise InvalidRequest(
                f"{len(ids)} tokens at output position {position} do not fit an output of "
                f"{len(self.output)} tokens, of at most {self.sampling.max_tokens}"
            )
        output = [*self.output[:position], *ids]
        request = self._translated.request(self.prompt, self.sampling, output)
        # Where the cut falls inside one of the other side's tokens, all of it is said anew.
        try:
            await self._inner.cancel()
            self._inner = await self._translated.engine.open(*request)
        except BaseException:
            self._end()
            raise
        if self._ended is not None:  # while it was opened anew
            await self._inner.cancel()
            raise self._ended
        self.output = output

    async def cancel(self) -> None:
        if self._end():
            await self._inner.cancel()


class Translated:
    """The Engine protocol in the vocabulary of `here`, over an engine in that of `there`.

    Special tokens are translated by name. It decodes; drafting and verifying across vocabularies makes no sense.
    `generate` gives whole words; the limit of tokens and stop tokens are kept on this side. Counters are in the
    other side's tokens.
    """

    def __init__(self, engine: Engine, here: Tokenizer, there: Tokenizer) -> None:
        self.engine, self._here, self._there = engine, here, there

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(
            self.engine.info,
            vocabulary=self._here.vocabulary,
            vocab_size=self._here.vocab_size,
            eos=self._here.eos,
            capabilities=("generate",),
        )

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> _Session:
        check_request(prompt, log, sampling, self._here.vocab_size, self.engine.info.context)
        if sampling.logprobs >= 0:
            raise InvalidRequest("log-probabilities do not translate between vocabularies")
        prompt = list(prompt)
        inner = await self.engine.open(*self.request(prompt, sampling, log))
        return _Session(self, inner, prompt, sampling, log)

    def request(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int]) -> Request:
        """What the other side is asked for. Its own limit is its context."""
        theirs = translate(prompt, self._here, self._there)
        known = translate(log, self._here, self._there)
        room = self.engine.info.context - len(theirs)
        if len(known) >= room:
            raise ContextOverflow(
                f"{len(theirs) + len(known)} tokens of prompt and output do not fit into the other model's context"
            )
        return theirs, msgspec.structs.replace(sampling, max_tokens=room, stop_tokens=()), known

    def retokeniser(self) -> Retokeniser:
        """From the other side's tokens to this one's."""
        return Retokeniser(self._there, self._here)

    async def stats(self) -> EngineStats:
        return await self.engine.stats()

    async def close(self) -> None:
        await self.engine.close()


Request = tuple[list[int], Sampling, list[int]]  # prompt, sampling, log


class Retokeniser:
    """Tokens of one vocabulary to tokens of another as they come.

    A word is held back until the next one begins, or until the end: its pieces may be one token there, and a
    model that goes on from tokens which it would never have said does so badly. What is long without being a
    word is not waited for, nor are scripts without spaces; half a character always is.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self._source, self._target = source, target
        self._held = b""

    def push(self, ids: Sequence[int]) -> list[int]:
        """The other vocabulary's tokens of what these complete; special ones that it lacks are left out."""
        translated: list[int] = []
        for token in ids:
            if (name := self._source.special_name(token)) is None:
                self._held += self._source.token_bytes(token)
                continue
            translated += self.flush()
            with suppress(InvalidRequest):
                translated.append(self._target.special_id(name))
        data = self._held
        whole = words.end() if (words := _WORDS.match(data)) else 0
        if len(data) - whole > _LONGEST_WORD:
            whole = len(data) - unfinished_bytes(data)
        self._held = data[whole:]
        return translated + self._target.encode_bytes(data[:whole])

    def flush(self) -> list[int]:
        """At the end: what was held back, as it is."""
        held, self._held = self._held, b""
        return self._target.encode_bytes(held)


_WORDS = re.compile(
    rb"(?s:.*)(?:\S(?= )"  # up to the last space that follows a word: no token goes across it
    rb"|[\xE0-\xEF][\x80-\xBF]{2}|[\xF0-\xF4][\x80-\xBF]{3})"  # writing that mostly knows no spaces, emoji
)
_LONGEST_WORD = 32  # bytes


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
