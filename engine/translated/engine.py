"""An engine whose model has another vocabulary, driven in the vocabulary of this side.

Tokens travel as bytes: each side's tokens are decoded to bytes, and these encoded anew. Bytes are conserved exactly,
also where a token is half a character, or where tokens would merge across a cut.

Drafts travel in one of two ways (Timor et al. 2025). Greedy ones as text, which is encoded anew: string-level exact
match, algorithm 2. Sampled ones token by token, with their distributions over the tokens that both vocabularies have:
token-level intersection, algorithm 4.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np

from tandem.engine.base import (
    ContextOverflow,
    Draft,
    DraftProbs,
    Drafts,
    Engine,
    EngineInfo,
    EngineStats,
    Extend,
    InvalidRequest,
    Operation,
    R,
    Sampling,
    Session,
    Tokens,
)
from tandem.engine.sessions.output import OutputSession
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.validation import check_ids, check_request, check_window, checked_probs


class _Session(OutputSession):
    """room: most output tokens of the other side.
    _words: has read the first `_read` tokens of the output, and given `_whole` for them; `_read` is None if it has read
        others.
    _sent: tokens that the other side's output begins with.
    """

    def __init__(
        self, translated: Translated, inner: Session, sampling: Sampling, log: Sequence[int], room: int
    ) -> None:
        super().__init__(translated.info, sampling, log)
        self._translated, self._inner, self.room = translated, inner, room
        self._words, self._whole = translated.to_there(), list[int]()
        self._read: int | None = 0
        self._sent: list[int] = []

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        if self.sampling.min_tokens or self.sampling.logit_bias:
            raise InvalidRequest("min_tokens and logit_bias do not translate between vocabularies")
        self._begin("generate")
        try:
            if self.finish is not None:
                yield Tokens([], self.finish)
                return
            retokeniser, self._sent = self._translated.to_here(), []
            async with aclosing(self._inner.generate()) as stream:
                async for tokens in stream:
                    ids = retokeniser.push(tokens.ids)
                    if tokens.finish is not None:
                        ids += retokeniser.flush()
                    taken = self._take(Tokens(ids, tokens.finish, usage=tokens.usage))
                    if taken.ids or taken.finish is not None:
                        yield taken
                    if taken.finish is not None:
                        return
        finally:
            self._finish()

    async def _run(self, operation: Operation[Any]) -> Any:
        match operation:
            case Extend(position, ids):
                return await self._set(position, ids, Extend)
            case Draft(position, ids, window):
                check_window(window)
                theirs = await self._set(position, ids, partial(Draft, window=window))
                if self.finish is not None:
                    return Drafts([], took_s=theirs.took_s)
                drafts = self._translated.drafts(theirs)
                return drafts.first(len(self._fitting(drafts.ids[:window])))
        raise self._lacks(operation.name)

    async def _set(
        self, position: int, ids: Sequence[int], operation: Callable[[int, Sequence[int]], Operation[R]]
    ) -> R:
        """Set the output from `position` on, here and by an operation there, whose result is returned."""
        self._check_fits(position, ids)
        output = [*self.output[:position], *ids]
        if self._read is None or position < self._read:
            self._words, self._whole, self._read = self._translated.to_there(), [], 0
        self._whole += self._words.push(output[self._read :])
        self._read = None
        # The cut may fall inside one of the other side's tokens, so what is held back is sent anew.
        theirs = [*self._whole, *self._words.held()]
        if len(theirs) >= self.room:
            raise ContextOverflow(f"{len(theirs)} tokens of output do not fit into the other model's context")
        pairs = zip(self._sent, theirs, strict=False)
        same = next(
            (n for n, (old, new) in enumerate(pairs) if old != new), min(len(self._sent), len(theirs))
        )
        self._sent = []
        result = await self._inner.call(operation(same, theirs[same:]))
        self.output, self._read, self._sent = output, len(output), theirs
        return result

    async def cancel(self) -> None:
        if self._end():
            await self._inner.cancel()


class Translated:
    """The Engine protocol in the vocabulary of `here`, over an engine in that of `there`.

    Special tokens are translated by name. Sessions generate in whole words. The limit of tokens and the stop tokens are
    kept on this side; drafts follow no `min_tokens` and `logit_bias`, as their target does that. Counters are in the
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
            capabilities=tuple(c for c in self.engine.info.capabilities if c in ("generate", "draft")),
        )

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> _Session:
        check_request(prompt, log, sampling, self._here.vocab_size, self.engine.info.context)
        if sampling.logprobs >= 0:
            raise InvalidRequest("log-probabilities do not translate between vocabularies")
        theirs = translate(prompt, self._here, self._there)
        known = translate(log, self._here, self._there)
        room = self.engine.info.context - len(theirs)
        if len(known) >= room:
            raise ContextOverflow(
                f"{len(theirs) + len(known)} tokens of prompt and output do not fit into the other model's context"
            )
        there = msgspec.structs.replace(
            sampling, max_tokens=room, stop_tokens=(), min_tokens=0, logit_bias=()
        )
        return _Session(self, await self.engine.open(theirs, there, known), sampling, log, room)

    def to_here(self) -> Retokeniser:
        """Return a new retokeniser from the other side's tokens to this side's."""
        return Retokeniser(self._there, self._here)

    def to_there(self) -> Retokeniser:
        """Return a new retokeniser from this side's tokens to the other side's."""
        return Retokeniser(self._here, self._there)

    def drafts(self, theirs: Drafts) -> Drafts:
        """Return the other side's drafts in this side's tokens. Raise InvalidRequest if they are malformed."""
        size = self.engine.info.vocab_size
        check_ids(theirs.ids, size)
        if theirs.probs is None:
            return Drafts(self._by_text(theirs.ids), took_s=theirs.took_s)
        q_ids, q_probs = checked_probs(theirs.probs, len(theirs.ids), size)
        ids, probs = intersect(theirs.ids, q_ids, q_probs, shared_tokens(self._there, self._here))
        return Drafts(ids, probs, theirs.took_s)

    def _by_text(self, ids: Sequence[int]) -> list[int]:
        """Return this side's tokens of the text up to half a character or a special token that this side lacks."""
        names = [self._there.special_name(token) for token in ids]
        plain = next((n for n, name in enumerate(names) if name is not None), len(ids))
        data = self._there.shown_bytes(ids[:plain])
        whole = len(data) - unfinished_bytes(data)
        drafts = self._here.encode_bytes(data[:whole])
        if plain < len(ids) and whole == len(data):
            with suppress(InvalidRequest):
                drafts.append(self._here.special_id(names[plain] or ""))
        return drafts

    async def stats(self) -> EngineStats:
        return await self.engine.stats()

    async def close(self) -> None:
        await self.engine.close()


def intersect(
    ids: Sequence[int], q_ids: np.ndarray, q_probs: np.ndarray, shared: np.ndarray
) -> tuple[list[int], DraftProbs | None]:
    """Return the drafts up to the first that the target's vocabulary lacks, and their distributions, both in the
    target's tokens.

    A token that is proposed has been drawn from q, on condition that both vocabularies have it; so q is restricted to
    their intersection. Where none is proposed, the target draws its own token as ever. Both leave its distribution as
    it is (Timor et al. 2025, theorem 4).

    q_ids, q_probs: the distributions, [drafts, width], in the drafter's tokens.
    shared: as shared_tokens returns it.
    """
    drafts = shared[np.minimum(ids, len(shared) - 1)]
    count = int(np.argmin(np.append(drafts, -1) >= 0))
    if count == 0:
        return [], None
    here = shared[np.minimum(q_ids[:count], len(shared) - 1)]
    probs = np.where(here >= 0, q_probs[:count], 0.0)
    probs /= probs.sum(axis=1, keepdims=True)
    return drafts[:count].tolist(), DraftProbs.of(np.maximum(here, 0), probs)


@lru_cache(maxsize=16)
def shared_tokens(source: Tokenizer, target: Tokenizer) -> np.ndarray:
    """Return the target's token for each of the source's: that of the same bytes, for a special one that of the same
    name, -1 where there is none; and at the end another -1, for ids that pad a model's matrix.

    Takes some tenths of a second for the vocabularies of large models, the first time.
    """
    by_bytes: dict[bytes, int] = {}
    for token in range(target.vocab_size - 1, -1, -1):  # of several tokens of the same bytes the first
        if target.special_name(token) is None:
            by_bytes[target.token_bytes(token)] = token
    by_bytes.pop(b"", None)
    shared = np.full(source.vocab_size + 1, -1, np.int64)
    for token in range(source.vocab_size):
        if (name := source.special_name(token)) is None:
            shared[token] = by_bytes.get(source.token_bytes(token), -1)
        else:
            with suppress(InvalidRequest):
                shared[token] = target.special_id(name)
    return shared


class Retokeniser:
    """Translates tokens of one vocabulary to another as they come, in whole words."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self._source, self._target = source, target
        self._words = WordEncoder(target)

    def push(self, ids: Sequence[int]) -> list[int]:
        """Return the other vocabulary's tokens that these complete, without special ones that it lacks."""
        translated: list[int] = []
        data = b""
        for token in ids:
            if (name := self._source.special_name(token)) is None:
                data += self._source.token_bytes(token)
                continue
            translated += self._words.flush(data)
            data = b""
            with suppress(InvalidRequest):
                translated.append(self._target.special_id(name))
        return translated + self._words.push(data)

    def held(self) -> list[int]:
        """Return the tokens of the text held back, which stays held back."""
        return self._words.held()

    def flush(self) -> list[int]:
        """Return the tokens of the text held back, at the end."""
        return self._words.flush()


class WordEncoder:
    """Encodes text as it comes.

    A word is held back until the next one begins, or until the end: its pieces may be one token, and a model
    continues badly from tokens that it would not have chosen. Longer text without a space is given out earlier, as are
    scripts without spaces; half a character never is.
    """

    def __init__(self, target: Tokenizer) -> None:
        self._target = target
        self._held = b""

    def push(self, data: bytes) -> list[int]:
        """Return the tokens of the text that these bytes complete."""
        data = self._held + data
        whole = words.end() if (words := _WORDS.match(data)) else 0
        if len(data) - whole > _LONGEST_WORD:
            whole = len(data) - unfinished_bytes(data)
        self._held = data[whole:]
        return self._target.encode_bytes(data[:whole])

    def held(self) -> list[int]:
        """Return the tokens of the text held back, which stays held back."""
        return self._target.encode_bytes(self._held)

    def flush(self, data: bytes = b"") -> list[int]:
        """Return the tokens of the text held back, and of these bytes after it."""
        held, self._held = self._held + data, b""
        return self._target.encode_bytes(held)


_WORDS = re.compile(
    rb"(?s:.*)(?:\S(?= )"  # up to the last space after a word: no token spans it
    rb"|[\xE0-\xEF][\x80-\xBF]{2}|[\xF0-\xF4][\x80-\xBF]{3})"  # scripts that mostly have no spaces, emoji
)
_LONGEST_WORD = 32  # bytes


def translate(ids: Sequence[int], source: Tokenizer, target: Tokenizer) -> list[int]:
    """Return tokens of the target's vocabulary with the same bytes, special tokens by name. Raise InvalidRequest if the
    target lacks such a name."""
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
    """Return the number of bytes at the end that begin a UTF-8 character without completing it."""
    for n in range(1, min(3, len(data)) + 1):
        byte = data[-n]
        if byte & 0xC0 != 0x80:  # begins a character of `size` bytes
            size = 4 if byte >> 3 == 0b11110 else 3 if byte >> 4 == 0b1110 else 2 if byte >> 5 == 0b110 else 1
            return n if n < size else 0
    return 0
