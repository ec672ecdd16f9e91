"""The form of a service's answers: asked for where it can be, and checked as the text comes."""

from __future__ import annotations

import json

import pytest

from tandem.engine.base import FormBroken, Grammar, InvalidRequest, Sampling
from tests import engine_contract
from tests.engine.service.fake_service import TOKENIZER, Transport, chunk, engine_of, said, usage

PROMPT = TOKENIZER.encode("Tell me about Marworth.")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PERSON = Grammar("json_schema", json.dumps(SCHEMA))
ANY = Grammar("json_object")


async def answer(
    *texts: str,
    finish: str = "stop",
    grammar: Grammar = PERSON,
    log: bytes = b"",
    stop: tuple[str, ...] = (),
    structured: bool | str = True,
) -> tuple[str, str | None, dict[str, object]]:
    """Return the text and finish of an answer that comes in these pieces, and what the service was asked."""
    transport = Transport(said(*map(chunk, texts), chunk("", finish), usage(3, 9)))
    engine = engine_of(transport, structured=structured)
    known, sampling = TOKENIZER.encode_bytes(log), Sampling(99, grammar=grammar, stop=stop)
    try:
        async with engine_contract.session(engine, PROMPT, sampling, known) as session:
            ids, end = await engine_contract.drain(session)
    finally:
        await engine.close()
    return TOKENIZER.decode(ids), end, transport.seen[0]


@pytest.mark.parametrize("strict", [True, False])
async def test_a_schema_goes_to_the_service(strict: bool) -> None:
    grammar = Grammar("json_schema", json.dumps(SCHEMA), strict)
    text, finish, seen = await answer('{"a": 1}', grammar=grammar)
    assert (text, finish) == ('{"a": 1}', "stop")
    wanted = {"name": "answer", "schema": SCHEMA, "strict": strict}
    assert seen["response_format"] == {"type": "json_schema", "json_schema": wanted}


@pytest.mark.parametrize(("grammar", "schema"), [(PERSON, SCHEMA), (ANY, {"type": "object"})])
async def test_a_schema_may_go_there_as_llama_cpp_takes_it(grammar: Grammar, schema: object) -> None:
    text, finish, seen = await answer('{"a": 1}', grammar=grammar, structured="json_schema")
    assert (text, finish, seen["json_schema"]) == ('{"a": 1}', "stop", schema)
    assert "response_format" not in seen


async def test_any_object_may_be_asked_for() -> None:
    text, _, seen = await answer('{"b":', " [1,", "2]}", grammar=ANY)
    assert (text, seen["response_format"]) == ('{"b": [1,2]}', {"type": "json_object"})


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (["\n\n", ' {"a"', ":1}", "\n", "  "], '{"a":1}'),
        (['{\n  "a": 1\n}\n'], '{\n  "a": 1\n}'),
        (list('  {"a": 1}  '), '{"a": 1}'),
    ],
)
async def test_white_space_is_free_within_and_left_out_around(texts: list[str], left: str) -> None:
    assert (await answer(*texts))[:2] == (left, "stop")


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["Sure! ", '{"a": 1}'], "leaves the form"),
        (['{"a": "one"}'], "leaves the form"),
        (['{"a": 1}', " Anything else?"], "leaves the form"),
        (['{"a": 1'], "ends before"),
        ([], "ends before"),
    ],
)
async def test_a_text_of_another_form_is_an_error(texts: list[str], why: str) -> None:
    with pytest.raises(FormBroken, match=why):
        await answer(*texts)


async def test_what_had_the_form_came_before_the_error() -> None:
    transport = Transport(said(chunk('{"a"'), chunk(": 1"), chunk(" or 2")))
    engine = engine_of(transport, structured=True)
    got: list[int] = []
    async with engine_contract.session(engine, PROMPT, Sampling(99, grammar=PERSON)) as session:

        async def listen() -> None:
            async for tokens in session.generate():
                got.extend(tokens.ids)

        with pytest.raises(FormBroken):
            await listen()
    assert '{"a": 1'.startswith(TOKENIZER.decode(got))
    assert TOKENIZER.decode(got)
    await engine.close()


async def test_an_answer_that_is_cut_off_need_not_be_complete() -> None:
    assert (await answer('{"a": 1', finish="length"))[:2] == ('{"a": 1', "length")
    assert (await answer('{"a": 1', stop=("}",)))[:2] == ('{"a": 1', "stop")


async def test_a_half_answer_is_continued_and_checked_without_being_asked_for() -> None:
    text, finish, seen = await answer(": 7}", log=b'{\n "a"')
    assert (text, finish) == (": 7}", "stop")
    assert "response_format" not in seen
    with pytest.raises(FormBroken):
        await answer('{"a": 7}', log=b'{"a"')
    with pytest.raises(InvalidRequest, match="output so far"):
        await answer(": 7}", log=b"Sure")


@pytest.mark.parametrize(
    ("structured", "grammar", "why"),
    [
        (False, ANY, "knows no grammars"),
        (True, Grammar("regex", "a+"), "knows no form regex"),
        (True, Grammar("choice", '["a"]'), "knows no form choice"),
        (True, Grammar("grammar", "start: /a/"), "knows no form grammar"),
    ],
)
async def test_forms_that_it_does_not_know_are_refused_by_name(
    structured: bool, grammar: Grammar, why: str
) -> None:
    engine = engine_of(Transport(), structured=structured)
    with pytest.raises(InvalidRequest, match=why):
        await engine.open(PROMPT, Sampling(9, grammar=grammar))
    assert (await engine.stats()).sessions == 0
    await engine.close()


@pytest.mark.parametrize("begin", ["", "<think>"])
async def test_a_service_keeps_its_thoughts_to_itself(begin: str) -> None:
    """Thoughts that the prompt has begun end where its text begins."""
    grammar = Grammar("json_schema", json.dumps(SCHEMA), end="</think>", begin=begin)
    opening = "" if begin else "</think>"
    assert (await answer('{"a"', ": 1}", grammar=grammar))[:2] == (opening + '{"a": 1}', "stop")
    with pytest.raises(FormBroken):
        await answer("Well, ", '{"a": 1}', grammar=grammar)
