"""Grammars: the tokens that may follow, so that an output has the form asked for.

They are compiled and matched by llguidance. Beside xgrammar, the other library that vLLM has: its wheel (3 MB, no
dependencies, one for all versions of Python) suits a device, where xgrammar wants transformers, triton and
apache-tvm-ffi; it computes a mask from the matcher's present state without compiling the grammar for the whole
vocabulary first, so that a new schema costs milliseconds; a matcher rolls back any number of
tokens, as tentative drafts need, and a copy takes microseconds; and it refuses a schema's keyword that it cannot
enforce.

A grammar is over bytes. So an engine with another vocabulary can draft by the same one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from tandem.engine.base import Grammar, InvalidRequest, Sampling
from tandem.engine.text.thoughts import Place, Thoughts

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

JSON = ("json_object", "json_schema")
"""Kinds of grammars of JSON."""
KEPT = 64
"""Compiled grammars that an engine keeps, the last used."""
_LIMITS = LLParserLimits(verbose_errors=False)
_SILENT = 0  # its log level; by default it writes to stderr


class Vocabulary(Protocol):
    """The bytes of tokens and back, as `engine.text.tokenizer.Tokenizer` has them."""

    eos: int

    def token_bytes(self, token: int, /) -> bytes:
        """Return one token's bytes."""
        ...

    def special_name(self, token: int, /) -> str | None:
        """Return a special token's name; None for an ordinary token."""
        ...

    def encode_bytes(self, data: bytes, /) -> list[int]:
        """Return ordinary tokens of these bytes."""
        ...


def check(grammar: Grammar) -> None:
    """Raise InvalidRequest for a grammar that does not compile. It may take a tenth of a second."""
    spelt = [json.dumps(name) for name in grammar.tokens]
    failed, said = LLMatcher.validate_grammar_with_warnings(_compiled(grammar, spelt), limits=_LIMITS)
    if failed:
        raise _refusal(grammar, said[0])


def json_options(strict: bool, spaced: bool = False) -> JsonCompileOptions:
    """Return how JSON of a schema is written, and whether a keyword that cannot be enforced is refused.

    On one line, with a space after a separator or none: where white space is free, a model that knows little of JSON
    writes no end of it. spaced: white space is free all the same, for what others have written.
    """
    if spaced:
        return {"whitespace_flexible": True, "lenient": not strict}
    return {
        "whitespace_flexible": False,
        "item_separator": r",\x20?",
        "key_separator": r":\x20?",
        "lenient": not strict,
    }


class Grammars:
    """Grammars over the first `vocab_size` tokens of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._vocabulary, self._vocab_size = vocabulary, vocab_size
        self._begun = lru_cache(KEPT)(self._begin)
        self._thoughts = lru_cache(KEPT)(self._marked)

    def matcher(
        self, grammar: Grammar, ends: frozenset[int], output: Sequence[int] = (), spaced: bool = False
    ) -> Matcher:
        """Return a matcher after `output`. It compiles a new grammar, and so is no work for an event loop.

        ends: tokens that end an output.
        spaced: white space is free in JSON; so it is after an output that uses it.

        Raise InvalidRequest for a grammar that does not compile or does not allow that output.
        """
        form = FormMatcher(self._begun(grammar, spaced).deep_copy(), self._vocab_size, ends)
        matcher = Matcher(form, ends, self._thoughts(grammar.begin, grammar.end) if grammar.end else None)
        if matcher.follow(output):
            return matcher
        if grammar.kind in JSON and not spaced:
            return self.matcher(grammar, ends, output, spaced=True)
        raise InvalidRequest("the output so far does not follow the grammar")

    def _begin(self, grammar: Grammar, spaced: bool) -> LLMatcher:
        """Return a matcher before an output, to be copied."""
        tokens = [self._token(name) for name in grammar.tokens]
        compiled = _compiled(grammar, tokens, spaced)
        matcher = LLMatcher(self._tokenizer, compiled, log_level=_SILENT, limits=_LIMITS)
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        return matcher

    def _token(self, name: str) -> str:
        """Return a special token in llguidance's notation. Raise InvalidRequest if there is none of that name."""
        if name not in self._special:
            raise InvalidRequest(f"this model's vocabulary has no special token {name!r}")
        return f"<[{self._special[name]}]>"

    @cached_property
    def _special(self) -> dict[str, int]:
        """Special tokens by name."""
        names = ((i, self._vocabulary.special_name(i)) for i in range(self._vocab_size))
        return {name: i for i, name in names if name is not None}

    def _marked(self, begin: str, end: str) -> Thoughts:
        """Return the thoughts between two marks."""
        return Thoughts([self._vocabulary.token_bytes(i) for i in range(self._vocab_size)], begin, end)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return LLTokenizer(_Tokens(self._vocabulary, self._vocab_size), n_vocab=self._vocab_size)


async def matcher_for(
    grammars: Grammars | None, sampling: Sampling, eos: int, output: Sequence[int], spaced: bool = False
) -> Matcher | None:
    """Return a request's matcher after `output`, made beside the event loop; None without a grammar. spaced: as of
    Grammars.matcher.

    Raise InvalidRequest as Grammars.matcher does, and without `grammars`.
    """
    if sampling.grammar is None:
        return None
    if grammars is None:
        raise InvalidRequest("this engine follows no grammars")
    ends = frozenset((*sampling.stop_tokens, eos))
    return await asyncio.to_thread(grammars.matcher, sampling.grammar, ends, output, spaced)


class Matcher:
    """One output's way through its grammar, the thoughts before its form included.

    failure: why it can tell no further tokens, such as a grammar too ambiguous to follow; None if it can.
    """

    def __init__(self, form: FormMatcher, ends: frozenset[int], thoughts: Thoughts | None) -> None:
        """form: before the output.
        thoughts: what may come before the form; None for nothing.
        """
        self._form, self._ends, self._thoughts = form, ends, thoughts
        self._read: list[int] = []
        self._places = [Place("form", b"", 0) if thoughts is None else thoughts.start]  # after each token
        self.failure: str | None = None

    def copy(self) -> Matcher:
        """Return a matcher at the same place, which goes on by itself."""
        copied = Matcher(self._form.copy(), self._ends, self._thoughts)
        copied._read, copied._places = self._read.copy(), self._places.copy()
        return copied

    @property
    def complete(self) -> bool:
        """Whether the output may end here."""
        return self._places[-1].kind != "thought" and self._form.complete

    @property
    def followed(self) -> int:
        """Tokens of the output that follow the grammar."""
        place = self._places[-1]
        return place.body + self._form.followed if place.kind == "form" else len(self._read)

    def follow(self, output: Sequence[int]) -> bool:
        """Go to the end of `output`. Return False if that leaves the grammar; the matcher is then where it does."""
        if self._thoughts is None:
            return self._form.follow(output)
        tokens, read = list(output), self._read
        if tokens[: len(read)] != read:
            same = common_length(read, tokens)
            del read[same:], self._places[same + 1 :]
        for token in tokens[len(read) :]:
            place = self._places[-1]
            if place.kind == "thought" and token in self._ends:
                return False
            self._places.append(self._thoughts.after(place, token, len(read)))
            read.append(token)
        place = self._places[-1]
        begun = place.kind in ("start", "form")  # behind thoughts the form has nothing yet
        return self._form.follow(tokens[place.body :] if begun else []) or place.kind != "form"

    def forbidden(self, output: Sequence[int], drafts: Sequence[int] = ()) -> np.ndarray:
        """Return whether a token is forbidden after `output` and each of `drafts` that follow it, [drafts + 1, vocab].

        No token is after a draft that is forbidden itself, or after the end: those masks are not used. Nor is one
        after a failure.
        """
        if self._thoughts is None:
            found = self._form.forbidden(output, drafts)
            self.failure = self._form.failure
            return found
        found = np.zeros((len(drafts) + 1, self._form.vocab_size), bool)
        self.failure = None
        written = list(output)
        for number, draft in enumerate((*drafts, None)):
            if not self.follow(written):
                self.failure = "the output does not follow its grammar"
                return np.zeros_like(found)
            place = self._places[-1]
            if place.kind == "form":
                found[number:] = self._form.forbidden(written[place.body :], drafts[number:])
                self.failure = self._form.failure
                break
            row = found[number]
            row[:] = self._thoughts.forbidden(place)
            row[[end for end in self._ends if end < len(row)]] = True
            if place.kind != "thought":
                self._allow_form(row, written if place.kind == "start" else [])
            if draft is None or row[draft]:
                break
            written.append(draft)
        return found

    def _allow_form(self, row: np.ndarray, body: Sequence[int]) -> None:
        """Allow the tokens that go on with the form after `body`, if that is the form's beginning."""
        if self._form.follow(body):
            np.logical_and(row, self._form.forbidden(body)[0], out=row)
            self.failure = self._form.failure


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens with which both begin."""
    both = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in both if a != b), min(len(one), len(other)))


class FormMatcher:
    """One output's way through its form. It follows wherever the output goes: on, or back to an earlier place.

    failure: why it can tell no further tokens, such as a grammar too ambiguous to follow; None if it can.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, ends: frozenset[int]) -> None:
        """matcher: before the output."""
        self._matcher, self.vocab_size, self._ends = matcher, vocab_size, ends
        self._end_ids = sorted(e for e in ends if e < vocab_size)
        self._read: list[int] = []
        self.failure: str | None = None

    def copy(self) -> FormMatcher:
        """Return a matcher at the same place, which goes on by itself."""
        copied = FormMatcher(self._matcher.deep_copy(), self.vocab_size, self._ends)
        copied._read = self._read.copy()
        return copied

    @property
    def complete(self) -> bool:
        """Whether the output may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def followed(self) -> int:
        """Tokens of the output that follow the grammar."""
        return len(self._read)

    def follow(self, output: Sequence[int]) -> bool:
        """Go to the end of `output`. Return False if that leaves the grammar; the matcher is then where it does."""
        read = self._read
        tokens = list(output)
        if tokens[: len(read)] != read:
            same = common_length(read, tokens)
            self._matcher.rollback(len(read) - same)
            del read[same:]
        news = tokens[len(read) :]
        if not self._ends.isdisjoint(news):  # the end is no part of the text
            news = news[: next(n for n, token in enumerate(news) if token in self._ends)]
        taken = self._matcher.try_consume_tokens(news) if news else 0
        read += news[:taken]
        return taken == len(news)

    def forbidden(self, output: Sequence[int], drafts: Sequence[int] = ()) -> np.ndarray:
        """Return whether a token is forbidden after `output` and each of `drafts` that follow it, [drafts + 1, vocab].

        No token is after a draft that is forbidden itself, or after the end: those masks are not used. Nor is one
        after a failure.
        """
        found = np.zeros((len(drafts) + 1, self.vocab_size), bool)
        self.failure = None
        if not self.follow(output):
            self.failure = "the output does not follow its grammar"
            return found
        for row, draft in zip(found, (*drafts, None), strict=True):
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, count=self.vocab_size, bitorder="little")
            if accepting := self._matcher.is_accepting():
                allowed[self._end_ids] = 1
            if self._matcher.is_error() or not (accepting or allowed.any()):
                self.failure = f"the grammar cannot be followed further: {self._matcher.get_error()[:200]}"
                return np.zeros_like(found)
            np.logical_not(allowed, out=row)
            if draft is None or row[draft] or draft in self._ends:
                break
            self._matcher.consume_token(draft)  # rolled back when the output turns out to be another
            self._read.append(draft)
        return found


class _Tokens(TokenizerWrapper):
    """A vocabulary as llguidance reads it. Its own wrapper would encode a text at once, which takes a second."""

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        self.is_tokenizer_wrapper = True
        self.eos_token_id, self.bos_token_id = vocabulary.eos, None
        self.tokens = [vocabulary.token_bytes(i) for i in range(size)]
        self.special_token_ids = [i for i in range(size) if vocabulary.special_name(i) is not None]
        self._encode = vocabulary.encode_bytes

    def __call__(self, s: str) -> list[int]:
        return self._encode(s.encode())


def _compiled(grammar: Grammar, tokens: Sequence[str] = (), spaced: bool = False) -> str:
    """Return a grammar in llguidance's notation. Raise InvalidRequest for one that is none.

    tokens: its special tokens, in that notation.
    """
    try:
        match grammar.kind:
            case "json_object":
                return LLMatcher.grammar_from_json_schema(
                    '{"type": "object"}', overrides=json_options(True, spaced)
                )
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(
                    grammar.source, overrides=json_options(grammar.strict, spaced)
                )
            case "regex":
                return LLMatcher.grammar_from_regex(grammar.source)
            case "choice":
                texts = [json.dumps(text, ensure_ascii=False) for text in json.loads(grammar.source)]
                return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
            case "grammar":
                rules = "".join(f"\ntoken_{i}: {token}" for i, token in enumerate(tokens))
                return LLMatcher.grammar_from_lark(any_to_lark(grammar.source) + rules)
    except Exception as error:  # any_to_lark raises plain ones
        raise _refusal(grammar, str(error)) from None


def _refusal(grammar: Grammar, why: str) -> InvalidRequest:
    return InvalidRequest(f"the {grammar.kind.replace('_', ' ')} cannot be used: {why[:500].strip()}")
