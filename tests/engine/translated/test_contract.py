"""An engine of another vocabulary is an engine: the contract, hand-over at every cut, stops and limits."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers

from tandem.engine import family
from tandem.engine.base import (
    ContextOverflow,
    DraftProbs,
    Drafts,
    Engine,
    Extend,
    InvalidRequest,
    Sampling,
    SessionCancelled,
    UnknownSession,
)
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.engine.text.detokenizer import Detokenizer
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.engine.translated.engine import Translated, translate, unfinished_bytes
from tandem.engine.validation import checked_probs
from tandem.training.family.prompts import answer_prompt, heldout
from tests import engine_contract
from tests.effort import slow_after
from tests.engine.torch import tiny_weights
from tests.engine.torch.engines import Engines, runner
from tests.engine.translated.test_engine import OTHER, TARGET, TEXTS, check_every_cut
from tests.engine_contract import CHECKS, close_ends_it, drain, exhaust, greedy, session


def byte_level(
    specials: Sequence[str], order: Sequence[str], merges: Sequence[tuple[str, str]] = ()
) -> Tokenizer:
    """Return a tokenizer with these tokens. Without merges every cut of the text is a cut of the tokens."""
    vocab = {token: i for i, token in enumerate([*specials, *order])}
    tokenizer = RustTokenizer(models.BPE(vocab=vocab, merges=[*merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    return Tokenizer(tokenizer.to_str(), {"eos_token": "<eos>"})


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
LETTERS = "abcde\u0120\u00c3\u00a9"  # five letters, the space, and the two bytes of é
SPECIALS = ["<pad>", "<bos>", "<eos>"]


def toy_tokenizer(size: int, seed: int) -> Tokenizer:
    """Return a tokenizer with `size` tokens, made of the same few letters: byte-level BPE with random merges."""
    chance, tokens, merges = random.Random(seed), [*LETTERS], list[tuple[str, str]]()
    while len(tokens) < size - len(SPECIALS):
        left, right = chance.choice(tokens), chance.choice(tokens)
        if left + right not in tokens:
            merges.append((left, right))
            tokens.append(left + right)
    chance.shuffle(tokens)
    return byte_level(SPECIALS, tokens, merges)


def toy_tokenizers(size: int) -> st.SearchStrategy[Tokenizer]:
    return st.integers(0, 2**32).map(partial(toy_tokenizer, size))


THERE = byte_level(["<pad>", "<bos>", "<eos>"], ALPHABET)
HERE = byte_level(["<eos>", "<pad>", "<bos>"], ALPHABET[::-1])
PROMPT = translate([20, 21, 22], THERE, HERE)
IN_THEIR_TOKENS = {engine_contract.counts}
DRAFTING = {engine_contract.drafts_are_tentative, engine_contract.drafts_no_further_than_the_end}
VERIFYING = {*engine_contract.SPECULATIVE} - DRAFTING
LONG = {engine_contract.cancel_ends_what_runs}  # longer than a tiny model's context
FITTING = [check for check in CHECKS if check not in IN_THEIR_TOKENS | VERIFYING]


@given(toy_tokenizers(31), toy_tokenizers(25), st.data())
def test_bytes_are_conserved_between_any_two_vocabularies(
    here: Tokenizer, there: Tokenizer, data: st.DataObject
) -> None:
    """In logs, streams and drafts, which may end before half a character or an unknown special token."""
    ids = data.draw(st.lists(st.integers(len(SPECIALS), there.vocab_size - 1), max_size=12))
    check_every_cut(ids, there, here)
    said = there.shown_bytes(ids)
    drafts = Translated(NullEngine(vocab_size=there.vocab_size), here, there).drafts(Drafts(ids))
    assert drafts.probs is None
    drafted = here.shown_bytes(drafts.ids)
    assert drafted == said[: len(said) - unfinished_bytes(said)]


@given(toy_tokenizers(31), toy_tokenizers(25), st.data())
def test_sampled_drafts_are_restricted_to_the_tokens_of_both_vocabularies(
    here: Tokenizer, there: Tokenizer, data: st.DataObject
) -> None:
    """Each is proposed with its probability among them, in this side's tokens, up to the first that is not shared."""
    width = data.draw(st.integers(1, 6))
    rows = st.permutations(range(there.vocab_size)).map(lambda ids: ids[:width])
    q_ids = np.array(data.draw(st.lists(rows, min_size=1, max_size=5)))
    weights = np.array(
        [data.draw(st.lists(st.integers(1, 9), min_size=width, max_size=width)) for _ in q_ids]
    )
    q_probs = weights / weights.sum(axis=1, keepdims=True)
    ids = [int(row[data.draw(st.integers(0, width - 1))]) for row in q_ids]
    theirs = Drafts(ids, DraftProbs.of(q_ids, q_probs), took_s=0.5)
    drafts = Translated(NullEngine(vocab_size=there.vocab_size), here, there).drafts(theirs)
    assert drafts.took_s == 0.5
    named = {here.token_bytes(token): token for token in range(here.vocab_size)}
    twins = [named.get(there.token_bytes(token)) for token in range(there.vocab_size)]
    proposed = [twins[token] for token in ids]
    assert drafts.ids == [*itertools.takewhile(lambda token: token is not None, proposed)]
    if not drafts.ids:
        assert drafts.probs is None
        return
    assert drafts.probs is not None
    q_here = checked_probs(drafts.probs, len(drafts.ids), here.vocab_size)
    for n, (now_ids, now) in enumerate(zip(*q_here, strict=True)):
        kept = {twins[i]: p for i, p in zip(q_ids[n], q_probs[n], strict=True) if twins[i] is not None}
        expected = {token: p / sum(kept.values()) for token, p in kept.items()}
        assert {int(i): float(p) for i, p in zip(now_ids, now, strict=True) if p > 0} == pytest.approx(
            expected
        )


@pytest.mark.parametrize(
    ("ids", "probs"),
    [
        ([31], None),
        ([-1], None),
        ([3], DraftProbs.of(np.array([[99]]), np.ones((1, 1)))),
        ([3], DraftProbs.of(np.array([[3]]), np.array([[0.5]]))),
        ([3, 4], DraftProbs.of(np.array([[3]]), np.ones((1, 1)))),
        ([3], DraftProbs(1, b"123", b"")),
    ],
)
def test_malformed_drafts_are_refused(ids: list[int], probs: DraftProbs | None) -> None:
    there = toy_tokenizer(31, 0)
    with pytest.raises(InvalidRequest):
        Translated(NullEngine(vocab_size=31), toy_tokenizer(25, 1), there).drafts(Drafts(ids, probs))


@pytest.fixture(params=["null", "tiny"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    engines = Engines(tmp_path)
    null = NullEngine(vocab_size=THERE.vocab_size, context=2**20)
    yield Translated(engines.start() if request.param == "tiny" else null, HERE, THERE)
    await engines.close()


@pytest.mark.parametrize(
    ("engine", "check"),
    [(kind, c) for kind in ("null", "tiny") for c in FITTING if kind == "null" or c not in LONG],
    indirect=["engine"],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_contract(check: Callable[[Engine, list[int]], Awaitable[None]], engine: Engine) -> None:
    await check(engine, PROMPT)


async def test_contract_of_close(tmp_path: Path) -> None:
    """The other side's engine goes with it."""

    def parts(engine: Translated) -> list[object]:
        return [engine.engine, runner(engine.engine).model]

    await close_ends_it(lambda: Translated(Engines(tmp_path).start(), HERE, THERE), PROMPT, parts)


async def test_it_speaks_this_sides_vocabulary(engine: Engine) -> None:
    assert (engine.info.vocabulary, engine.info.vocab_size) == (HERE.vocabulary, HERE.vocab_size)
    assert (THERE.eos, engine.info.eos) == (tiny_weights.EOS, HERE.eos)
    assert HERE.eos != THERE.eos


async def test_it_does_not_verify(engine: Engine) -> None:
    async with session(engine, PROMPT) as s:
        with pytest.raises(InvalidRequest, match="verify"):
            await s.verify([])
        assert len((await drain(s))[0]) == engine_contract.TOKENS


async def test_what_does_not_translate_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="log-prob"):
        await engine.open(PROMPT, Sampling(max_tokens=4, logprobs=0))
    for wrong in ([-1], [HERE.vocab_size], [5, HERE.vocab_size + 5]):
        with pytest.raises(InvalidRequest, match="token ids"):
            await engine.open([*PROMPT, *wrong], greedy())
        with pytest.raises(InvalidRequest, match="token ids"):
            await engine.open(PROMPT, greedy(), wrong)
    assert (await engine.stats()).sessions == 0


async def test_a_refused_extension_changes_nothing(engine: Engine) -> None:
    async with session(engine, PROMPT) as s:
        whole, _ = await drain(s)
        for position, tokens in (
            (-1, []),
            (len(whole) + 1, []),
            (2, whole),
            (0, [-1]),
            (0, [HERE.vocab_size]),
        ):
            with pytest.raises(InvalidRequest):
                await s.extend(position, tokens)
        await s.extend(4, [])
        assert (await drain(s))[0] == whole[4:]


@pytest.mark.parametrize("how", ["session", "caller"])
async def test_cancelling_while_it_is_extended_leaves_nothing(how: str) -> None:
    """Cancelled by the session, it ends there, too; a caller that leaves finds the output as it was."""
    extends = asyncio.Event()

    class Slow(NullSession):
        async def _extend(self, operation: Extend) -> None:
            extends.set()
            await self._wait(lambda wake: self._loop.call_later(0.01, wake))
            await super()._extend(operation)

    inner = NullEngine(vocab_size=THERE.vocab_size)
    inner.session_class = Slow
    s = await Translated(inner, HERE, THERE).open(PROMPT, greedy())
    extending = asyncio.create_task(s.extend(0, PROMPT))
    await extends.wait()
    if how == "session":
        await s.cancel()
    else:
        extending.cancel()
    with pytest.raises(SessionCancelled if how == "session" else asyncio.CancelledError):
        await extending
    if how == "session":
        with pytest.raises(UnknownSession):
            await s.extend(0, [])
    else:
        assert s.output == []
        await s.extend(0, PROMPT[:1])
        assert s.output == PROMPT[:1]
        await s.cancel()
    assert (await inner.stats()).sessions == 0


async def test_a_text_that_is_longer_there() -> None:
    """25 characters that are a token each here, and over 100 bytes there, where 64 fit."""
    emoji = RustTokenizer(models.BPE(vocab={"<eos>": 0, "🗼": 1}, merges=[]))
    emoji.decoder = decoders.Fuse()
    emoji.add_special_tokens(["<eos>"])
    here = Tokenizer(emoji.to_str(), {"eos_token": "<eos>"})
    engine = Translated(NullEngine(vocab_size=THERE.vocab_size, context=64), here, THERE)
    for prompt, log in ((20, 0), (10, 10)):
        with pytest.raises(ContextOverflow):
            await engine.open([1] * prompt, Sampling(max_tokens=20), [1] * log)
    await engine.open([1] * 10, Sampling(max_tokens=20), [1] * 5)


class Knows(NullEngine):
    """A model that knows one text by heart: it goes on with it wherever it is asked to, then ends the output."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        super().__init__(vocab_size=tokenizer.vocab_size, context=4096)
        self._data, self._tokenizer = text.encode(), tokenizer

    def next_token(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        said = self._tokenizer.shown_bytes(output)
        assert self._data.startswith(said)
        return (*self._tokenizer.encode_bytes(self._data[len(said) :]), self._tokenizer.eos)[0]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize(
    ("here", "there"), slow_after(1, [(TARGET, OTHER), (OTHER, TARGET)]), ids=["other", "target"]
)
async def test_an_answer_goes_on_at_every_cut(here: Tokenizer, there: Tokenizer, text: str) -> None:
    """A log that ends in half a character or half a word is taken over, and ends as this side's own would."""
    engine = Translated(Knows(text, there), here, there)
    ids = here.encode_bytes(text.encode())
    for cut in range(len(ids) + 1):
        async with session(engine, [here.eos], Sampling(max_tokens=500), ids[:cut]) as s:
            new, finish = await drain(s)
            assert (finish, new[-1]) == ("stop", here.eos)
            assert here.shown_bytes([*ids[:cut], *new]) == text.encode()
            assert await drain(s) == ([], "stop")


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize(("here", "there"), [(TARGET, OTHER), (OTHER, TARGET)], ids=["other", "target"])
async def test_drafts_are_the_text_to_come_at_every_cut(here: Tokenizer, there: Tokenizer, text: str) -> None:
    """Drafts are whole characters; a token that a longer draft would merge may be wrong."""
    engine = Translated(Knows(text, there), here, there)
    ids = here.encode_bytes(text.encode())
    async with session(engine, [here.eos], Sampling(max_tokens=500)) as s:
        for cut in range(len(ids)):
            before = here.shown_bytes(ids[:cut])
            rest = text.encode()[len(before) :]
            known = max(0, cut - 1)
            for window in (1, 3, 40):
                drafts = await s.draft(known, ids[known:cut], window)
                drafted = here.shown_bytes(drafts.ids)
                assert drafts.probs is None
                assert len(drafts.ids) <= window
                assert rest.startswith(drafted)
                if len(drafts.ids) < window:
                    assert not unfinished_bytes(before + drafted) or not drafted
            assert drafted
        await s.extend(0, [])
        everything = (await s.draft(0, [], 400)).ids
        assert everything == [*ids, here.eos]


async def test_a_drafter_that_knows_the_answer_has_all_of_it_accepted() -> None:
    """Greedy rounds of a target and a drafter between whose vocabularies whole words merge."""
    text = " ".join(TEXTS)
    target, drafter = Knows(text, TARGET), Translated(Knows(text, OTHER), TARGET, OTHER)
    sampling = Sampling(max_tokens=1000, stop_tokens=(TARGET.eos,))
    async with session(target, [TARGET.eos], sampling) as t, session(drafter, [TARGET.eos], sampling) as d:
        output, new, finish, rounds = list[int](), list[int](), None, 0
        while finish is None:
            draft = await d.draft(len(output) - len(new), new, 8)
            verdict = await t.verify(draft.ids)
            new, finish, rounds = verdict.ids, verdict.finish, rounds + 1
            output += new
    assert output == [*TARGET.encode_bytes(text.encode()), TARGET.eos]
    assert rounds < len(output) / 3


# -- the family --------------------------------------------------------------------------------------------

QUESTION = TARGET.encode(answer_prompt(heldout(1, ["fact"], seed=5)[0].question))
STORY = TARGET.encode(answer_prompt(heldout(1, ["story"], seed=5)[0].question))


@pytest.fixture
async def target() -> AsyncIterator[Engine]:
    engine = load(family.path("target"), EngineConfig(), device="cpu", threads=1)
    yield engine
    await engine.close()


@pytest.fixture
async def other() -> AsyncIterator[CoreEngine]:
    engine = load(family.path("other"), EngineConfig(), device="cpu", threads=1)
    yield engine
    await engine.close()


@pytest.fixture
def translated(other: CoreEngine) -> Translated:
    return Translated(other, TARGET, OTHER)


def said(ids: Sequence[int]) -> bytes:
    return TARGET.shown_bytes(ids)


async def ask(
    engine: Engine, prompt: Sequence[int], log: Sequence[int] = (), **settings: Any
) -> tuple[list[int], str | None]:
    async with session(engine, prompt, Sampling(**({"max_tokens": 60} | settings)), log) as s:
        return await drain(s)


async def test_an_answer_is_handed_over_and_back_at_every_cut(
    target: Engine, other: CoreEngine, translated: Translated
) -> None:
    whole, finish = await ask(target, QUESTION)
    assert (finish, whole[-1]) == ("stop", TARGET.eos)
    prompt = translate(QUESTION, TARGET, OTHER)
    for cut in range(len(whole)):
        log = whole[:cut]
        own, _ = await ask(other, prompt, translate(log, TARGET, OTHER), max_tokens=200)
        new, finish = await ask(translated, QUESTION, log, max_tokens=200)
        assert (finish, new[-1]) == ("stop", TARGET.eos)
        assert said(new) == OTHER.shown_bytes(own)  # what the model itself says there
        detokenizer = Detokenizer(TARGET)
        middle = new[: len(new) // 2]
        last, _ = await ask(target, QUESTION, [*log, *middle], max_tokens=200)
        pieces = [detokenizer.push(part) for part in (log, middle, last)]
        assert "".join([*pieces, detokenizer.flush()]) == TARGET.decode([*log, *middle, *last])


async def test_the_limit_of_tokens_is_this_sides(translated: Translated) -> None:
    whole, _ = await ask(translated, STORY, max_tokens=40)
    assert len(whole) == 40
    for limit in range(1, 40):
        assert await ask(translated, STORY, max_tokens=limit) == (whole[:limit], "length")
        assert await ask(translated, STORY, whole[:limit], max_tokens=limit) == ([], "length")


async def test_any_token_may_stop_it(other: CoreEngine, translated: Translated) -> None:
    whole, _ = await ask(translated, STORY, max_tokens=40)
    theirs, _ = await ask(other, translate(STORY, TARGET, OTHER), max_tokens=40)
    foreign = tuple(set(theirs) - set(whole))  # numbers that mean something else here
    assert foreign
    assert await ask(translated, STORY, max_tokens=40, stop_tokens=foreign) == (whole, "length")
    for stop in set(whole):
        ids, finish = await ask(translated, STORY, stop_tokens=(stop,))
        assert (ids, finish) == (whole[: whole.index(stop) + 1], "stop")
    first, rest = whole[:5], whole[5:]
    assert await ask(translated, STORY, first, stop_tokens=(first[0],)) == ([], "stop")
    later = next(token for token in rest if token not in first)
    ids, finish = await ask(translated, STORY, first, stop_tokens=(later,))
    assert (ids[-1], finish) == (later, "stop")


async def test_the_end_of_sequence_is_this_sides(translated: Translated) -> None:
    whole, finish = await ask(translated, QUESTION)
    assert (finish, whole.index(TARGET.eos)) == ("stop", len(whole) - 1)
    assert await ask(translated, QUESTION, whole) == ([], "stop")
    longer, finish = await ask(translated, QUESTION, ignore_eos=True)
    assert (longer[: len(whole)], len(longer), finish) == (whole, 60, "length")
    assert await ask(translated, QUESTION, ignore_eos=True, stop_tokens=(TARGET.eos,)) == (whole, "stop")


async def test_drafts_follow_neither_biases_nor_a_least_length(translated: Translated) -> None:
    """Their target does; what is generated here would have to."""
    sampling = Sampling(max_tokens=40, min_tokens=3, logit_bias=((20, -100.0),))
    session, plain = (
        await translated.open(STORY, sampling),
        await translated.open(STORY, Sampling(max_tokens=40)),
    )
    assert (await session.draft(0, [], 6)).ids == (await plain.draft(0, [], 6)).ids
    await session.extend(0, [])
    with pytest.raises(InvalidRequest, match="min_tokens and logit_bias do not translate"):
        await exhaust(session.generate())
    for each in (session, plain):
        await each.cancel()


async def test_stop_strings(translated: Translated) -> None:
    """Also one that began before the cut; what is left of the token that completes it stays, as everywhere."""
    whole, _ = await ask(translated, STORY, max_tokens=40)
    text = TARGET.decode(whole)
    for at in range(0, len(text) - 30, 7):
        stop = text[at : at + 9]
        ids, finish = await ask(translated, STORY, stop=(stop,))
        end = text.index(stop) + len(stop)
        stopped = TARGET.decode(ids)
        assert finish == "stop"
        assert text.startswith(stopped)
        assert end <= len(stopped) <= end + 20
    cut = next(k for k in range(8, 40) if TARGET.token_bytes(whole[k]).startswith(b" "))
    at = len(TARGET.decode(whole[:cut]))
    ids, finish = await ask(translated, STORY, whole[:cut], stop=(text[at - 4 : at + 6],))
    assert (finish, ids) == ("stop", whole[cut:][: len(ids)])
    assert at + 6 <= len(TARGET.decode([*whole[:cut], *ids])) <= at + 20


async def test_extending_is_opening_anew(translated: Translated) -> None:
    whole, _ = await ask(translated, STORY, max_tokens=24)
    async with session(translated, STORY, Sampling(max_tokens=24)) as s:
        await drain(s)
        for position in range(0, 24, 3):
            added = whole[position : position + 2] if position % 2 else TARGET.encode_bytes("é!".encode())[:1]
            await s.extend(position, added)
            ids, finish = await drain(s)
            log = [*whole[:position], *added]
            assert (ids, finish) == await ask(translated, STORY, log, max_tokens=24)
            await s.extend(0, whole)


async def test_a_stream_may_be_closed_anywhere_and_resumed(translated: Translated) -> None:
    whole, _ = await ask(translated, STORY, max_tokens=80)
    async with session(translated, STORY, Sampling(max_tokens=80)) as s:
        ids: list[int] = []
        closed = 0
        while len(ids) < 80:
            async with aclosing(s.generate()) as stream:
                ids += (await anext(stream)).ids
            closed += 1
            await s.extend(len(ids), [])
    assert closed > 10
    assert ids == whole


async def test_closing_the_stream_stops_the_engine(other: CoreEngine, translated: Translated) -> None:
    async with session(translated, STORY, Sampling(max_tokens=800)) as s:
        async with aclosing(s.generate()) as stream:
            await anext(stream)
        assert (await other.stats()).running == 0
    assert (await other.stats()).sessions == 0
