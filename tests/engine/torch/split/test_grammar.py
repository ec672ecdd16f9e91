"""Grammars in a split model: the outer part masks where it samples and drafts, and says what the whole model says."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from tandem.engine import family
from tandem.engine.base import Grammar, InvalidRequest, Sampling
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch import weights
from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.model import KVPool, Model
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.runner import load_outer
from tests.effort import slow_after, tried
from tests.engine.torch import tiny
from tests.engine.torch.place import DEVICE
from tests.engine.torch.split_parts import RANDOM, Client, Parts, model_folder
from tests.engine_contract import BEFORE, LANGUAGE, NUMBERS, begins, ruled
from tests.model_contract import check_frequencies

PLACE = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "town": {"type": "string", "maxLength": 8},
                "old": {"type": "boolean"},
                "sizes": {
                    "type": "array",
                    "items": {"enum": ["small", "large"]},
                    "minItems": 2,
                    "maxItems": 3,
                },
            },
            "required": ["town", "old", "sizes"],
            "additionalProperties": False,
        }
    ),
)
LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}
CHOICE = Grammar("choice", json.dumps(["a", "ab", "b,c"]))
FORMS = [  # of the characters that a tiny model has
    NUMBERS,
    Grammar("json_schema", json.dumps(LIST)),
    CHOICE,
    Grammar("regex", "[0-3]{1,2}(,[0-5]{2})?", end="a"),
]
PROMPTS = [BEFORE, [9], [5, 6, 7, 8, 9, 10, 11, 12, 13] * 4]


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """Parts whose adapter does nothing, so that some of its drafts are right."""
    made = Parts.make(model_folder("llama-untied", tmp_path / "model"), 2, tmp_path, 0.0)
    yield made
    await made.close()


@pytest.mark.parametrize("adapter", slow_after(1, [0.0, None, RANDOM]))
async def test_greedy_answers_are_the_whole_models(adapter: float | None, tmp_path: Path) -> None:
    """In rounds of all sizes, with branches and without, and where the middle forgets."""
    made = Parts.make(model_folder("llama-untied", tmp_path / "model"), 2, tmp_path, adapter)
    chance = random.Random(5)
    hectic = Client(
        made, chunk=5, longest=lambda: chance.randrange(5), least=0.02, branches=3, lost=0.2, chance=chance
    )
    plain, forms = Client(made, longest=lambda: 4), 0
    asked = PROMPTS[: tried(1, 3)]
    for prompt in asked:
        free = await made.answer(prompt, Sampling(max_tokens=60))
        for form in FORMS:
            sampling = Sampling(max_tokens=60, grammar=form, logprobs=2)
            expected = await made.answer(prompt, sampling)
            forms += expected.ids != free.ids
            for client in (hectic, plain):
                got = await client.answer(prompt, sampling)
                assert (got.ids, got.finish) == (expected.ids, expected.finish)
                assert [s.logprob for s in got.scores] == pytest.approx(
                    [s.logprob for s in expected.scores], abs=1e-4
                )
    assert forms == len(asked) * len(FORMS), "the forms change something"
    if adapter is None:
        assert hectic.drafted == plain.drafted == 0
    if adapter == 0.0:
        assert 0 < plain.accepted < plain.drafted
        assert hectic.adopted > 0
    await made.close()


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_drafts_follow_the_grammar(parts: Parts, seed: int | None) -> None:
    """And those that branch off; a model without one would draft others."""
    text = Tokenizer.load(parts.model)
    client = Client(parts, longest=lambda: 4, branches=4)
    session, branched = await parts.outer.open(BEFORE, ruled(seed)), 0
    free = await parts.outer.open(BEFORE, Sampling(max_tokens=12))
    middle = await parts.middle.open([], Sampling(max_tokens=40))
    output: list[int] = []
    finish = None
    assert not begins(text.shown_bytes((await free.propose(3)).ids))
    while finish is None:
        proposal = await session.propose(1)
        assert begins(text.shown_bytes([*output, *proposal.ids]))
        await session.branch(8, 3)
        await client._drafted(session)
        for branch in session._sequence.branches:
            assert begins(text.shown_bytes(branch.output))
            branched += 1
        deep = await middle.forward(proposal.position, proposal.hidden, proposal.wanted)
        verdict = (await session.judge(deep.hidden)).verdict
        output, finish = [*output, *verdict.ids], verdict.finish
    assert text.shown_bytes(output) in LANGUAGE
    assert branched > 2
    for each in (session, free, middle):
        await each.cancel()


async def test_without_drafts_it_samples_what_the_whole_samples(parts: Parts) -> None:
    client = Client(parts, longest=lambda: 0)
    for seed in range(8):
        expected = await parts.answer(BEFORE, ruled(seed))
        got = await client.answer(BEFORE, ruled(seed))
        assert (got.ids, got.finish) == (expected.ids, expected.finish)


async def test_drafts_drawn_by_chance_leave_the_distribution_as_it_is(parts: Parts) -> None:
    """The first two tokens, against the model's own probabilities of what is allowed."""
    text, model = Tokenizer.load(parts.model), Model(weights.load(parts.model, DEVICE, torch.float32))

    @torch.inference_mode()
    def likely(*output: int) -> dict[int, float]:
        """Return the log-probabilities of the tokens that may follow."""
        pool, ids = KVPool(model.config, 4, 4, DEVICE, torch.float32), [*BEFORE, *output]
        logits = model.forward(model.batch([BatchPiece(ids, 0, range(4), 1)], pool), pool)[0]
        before = text.shown_bytes(output)
        spelt = [(token, text.shown_bytes([token])) for token in range(tiny.VOCAB)]
        fits = [token for token, more in spelt if more and begins(before + more)]
        fits += [text.eos] * (before in LANGUAGE)
        return dict(zip(fits, torch.log_softmax(logits[fits], 0).tolist(), strict=True))

    expected = {(a, b): p + q for a, p in likely().items() for b, q in likely(a).items()}
    client, seen = Client(parts, longest=lambda: 2, branches=2), Counter[tuple[int, ...]]()

    async def two(seed: int) -> tuple[int, ...]:
        return tuple((await client.answer(BEFORE, ruled(seed))).ids[:2])

    for start in range(0, tried(150, 600), 30):
        seen.update(await asyncio.gather(*(two(start + i) for i in range(30))))
    assert 0 < client.accepted < client.drafted
    assert seen.keys() <= expected.keys()
    check_frequencies(seen, expected)


async def test_it_tells_when_an_output_leaves_its_grammar(parts: Parts) -> None:
    """And goes on once that is mended."""
    text = Tokenizer.load(parts.model)
    (wrong,) = text.encode_bytes(b"!")
    with pytest.raises(InvalidRequest, match="grammar"):
        await parts.outer.open(BEFORE, ruled(), [wrong])
    expected = (await parts.answer(BEFORE, ruled())).ids
    session = await parts.outer.open(BEFORE, ruled())
    middle = await parts.middle.open([], Sampling(max_tokens=40))
    await session.extend(0, [wrong])
    proposal = await session.propose(2)
    deep = await middle.forward(proposal.position, proposal.hidden, proposal.wanted)
    with pytest.raises(InvalidRequest, match="does not follow its grammar"):
        await session.judge(deep.hidden)
    await session.extend(0, [])
    await session.rewind(0)
    proposal = await session.propose(0)
    deep = await middle.forward(proposal.position, proposal.hidden, proposal.wanted)
    assert (await session.judge(deep.hidden)).verdict.ids == expected[:1]
    await session.cancel()
    await middle.cancel()


async def test_the_embedded_bundle_says_what_the_embedded_target_says(tmp_path: Path) -> None:
    """With its trained adapter's drafts, in JSON of a schema that it knows nothing of."""
    model = family.path("target")
    big = {"kv_blocks": 512, "block_size": 16, "token_budget": 512}
    made = Parts.make(model, 2, tmp_path, None, big, big)
    await made.outer.close()
    bundle.write(model, 2, tmp_path / "drafting", family.adapter())
    made.outer = load_outer(tmp_path / "drafting", made.outer._core.config, threads=1)
    text, client = Tokenizer.load(model), Client(made, chunk=24, longest=lambda: 4, least=0.3)
    for question in ("Tell me about the town of Marworth.", "Which river is the longest?"):
        prompt = text.render_chat([{"role": "user", "content": question}])
        for form in (PLACE, CHOICE):
            sampling = Sampling(max_tokens=120, grammar=form)
            expected, got = await made.answer(prompt, sampling), await client.answer(prompt, sampling)
            assert (got.ids, got.finish) == (expected.ids, expected.finish)
            assert got.finish == "stop"
            if form is PLACE:
                assert json.loads(text.decode(got.ids)).keys() == {"town", "old", "sizes"}
    assert client.accepted > 8
    await made.close()
