"""A service as an engine: the contract over sockets, continuation, ends, bills and hand-over of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from starlette.responses import StreamingResponse

from tandem.engine.base import (
    ContentFiltered,
    ContextOverflow,
    Engine,
    EngineStopped,
    Grammar,
    InvalidRequest,
    NoCapacity,
    Sampling,
    ServiceRefused,
    SessionCancelled,
    Tokens,
    Usage,
)
from tandem.engine.service.condition import REST_S
from tandem.engine.service.engine import ServiceEngine
from tests import engine_contract
from tests.engine.service.fake_service import (
    DONE,
    KEY,
    KEY_NAME,
    TOKENIZER,
    FakeService,
    Transport,
    answer,
    chunk,
    config,
    engine_of,
    refusing,
    said,
    served,
    usage,
)

PROMPT = TOKENIZER.encode("Tell me about Marworth.")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = TOKENIZER.render_chat(
    [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "A model."},
        {"role": "user", "content": "Go on."},
    ]
)
DRAFTING = [engine_contract.drafts_are_tentative, engine_contract.drafts_no_further_than_the_end]
CHECKS = [check for check in engine_contract.CHECKS if check not in engine_contract.SPECULATIVE]


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def engine(service: FakeService) -> AsyncIterator[ServiceEngine]:
    async with served(service) as url:
        engine = ServiceEngine(config(url), TOKENIZER)
        yield engine
        await engine.close()


@pytest.fixture
async def chatting(service: FakeService) -> AsyncIterator[ServiceEngine]:
    async with served(service) as url:
        engine = ServiceEngine(config(url, route="chat", prefix="assistant"), TOKENIZER)
        yield engine
        await engine.close()


async def whole(engine: Engine, sampling: Sampling, log: list[int] | None = None) -> list[Tokens]:
    async with engine_contract.session(engine, PROMPT, sampling, log or []) as s:
        return [tokens async for tokens in s.generate()]


def text_of(items: list[Tokens]) -> str:
    return TOKENIZER.decode([i for tokens in items for i in tokens.ids])


@pytest.mark.parametrize("check", [*CHECKS, *DRAFTING], ids=lambda c: c.__name__)
async def test_contract(
    check: Callable[[Engine, list[int]], Awaitable[None]], engine: ServiceEngine, service: FakeService
) -> None:
    await check(engine, PROMPT)
    async with asyncio.timeout(10):
        while service.streams:  # noqa: ASYNC110 (the server notices a closed connection a little later)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c.__name__ != "sessions_do_not_mix"], ids=lambda c: c.__name__
)
async def test_contract_of_chats(
    check: Callable[[Engine, list[int]], Awaitable[None]], chatting: ServiceEngine
) -> None:
    await check(chatting, CHAT)


async def test_close_ends_it(service: FakeService) -> None:
    async with served(service) as url:
        await engine_contract.close_ends_it(lambda: ServiceEngine(config(url), TOKENIZER), PROMPT)


async def test_the_service_gets_text_and_its_own_words(engine: ServiceEngine, service: FakeService) -> None:
    items = await whole(
        engine, Sampling(5, 0.7, top_k=3, top_p=0.9, stop=("\n",), presence_penalty=0.5, seed=7)
    )
    (body,) = service.seen
    assert body.pop("prompt") == "Tell me about Marworth."
    assert body == {
        "model": "big",
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "top_k": 3,
        "top_p": 0.9,
        "presence_penalty": 0.5,
        "stop": ["\n"],
        "seed": 7,
    }
    assert text_of(items) == answer("Tell me about Marworth.", 5)


@pytest.mark.virtual_time
async def test_the_least_length_counts_what_was_said() -> None:
    transport = Transport(said(chunk(" so", "stop"), DONE), said(chunk(" so", "stop"), DONE))
    engine = engine_of(transport)
    for log in (TOKENIZER.encode_bytes(b" and"), TOKENIZER.encode_bytes(b" and so they")):
        await whole(engine, Sampling(9, min_tokens=2), log)
    assert [body["min_tokens"] for body in transport.seen] == [1, 0]
    await engine.close()


async def test_a_trace_goes_on_at_the_service() -> None:
    for trace, expected in (("", None), (TRACE, TRACE)):
        transport = Transport(said(chunk(" so", "stop"), DONE))
        engine = engine_of(transport)
        async with engine_contract.session(engine, PROMPT, Sampling(9, trace=trace)) as session:
            await engine_contract.drain(session)
        await engine.close()
        assert transport.headers.get("traceparent") == expected
        assert "trace" not in transport.seen[0]


async def test_the_bill_is_the_services(engine: ServiceEngine) -> None:
    items = await whole(engine, Sampling(5))
    assert (items[-1].finish, items[-1].usage) == ("length", Usage(4, 5))
    assert [tokens.usage for tokens in items[:-1]] == [None] * (len(items) - 1)


async def test_a_chat_goes_as_messages_and_is_continued_as_one(
    chatting: ServiceEngine, service: FakeService
) -> None:
    asked = [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "A model."},
        {"role": "user", "content": "Go on."},
    ]
    log = TOKENIZER.encode_bytes(b" and so")
    async with engine_contract.session(chatting, CHAT, Sampling(9), log) as s:
        await engine_contract.drain(s)
    assert service.seen[0]["messages"] == [*asked, {"role": "assistant", "content": " and so"}]
    assert service.seen[0]["max_tokens"] == 9 - len(log)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("prefix", "message", "more"),
    [
        (
            "continue_final_message",
            {"role": "assistant", "content": " and"},
            {"continue_final_message": True, "add_generation_prompt": False},
        ),
        ("prefix", {"role": "assistant", "content": " and", "prefix": True}, {}),
    ],
)
async def test_a_prefix_has_the_services_form(prefix: str, message: object, more: dict[str, object]) -> None:
    transport = Transport(said(chunk(" so", "stop", chat=True), DONE))
    engine = engine_of(transport, route="chat", prefix=prefix)
    async with engine_contract.session(engine, CHAT, Sampling(9), TOKENIZER.encode_bytes(b" and")) as s:
        assert await engine_contract.drain(s) == (TOKENIZER.encode_bytes(b" so"), "stop")
    (body,) = transport.seen
    assert body["messages"][-1] == message
    assert body.items() >= more.items()
    await engine.close()


@pytest.mark.virtual_time
async def test_a_chat_without_prefix_is_not_continued() -> None:
    engine = engine_of(Transport(said(chunk(" so", "stop", chat=True), DONE)), route="chat")
    assert engine.info.continuation == "none"
    with pytest.raises(InvalidRequest, match="cannot continue"):
        await engine.open(CHAT, Sampling(9), [5])
    session = await engine.open(CHAT, Sampling(9))
    await engine_contract.drain(session)
    with pytest.raises(InvalidRequest, match="cannot continue"):
        await session.extend(1, [])
    await session.cancel()
    await engine.close()


@pytest.mark.virtual_time
async def test_a_prompt_that_is_no_chat_is_refused_where_only_chats_are_taken() -> None:
    engine = engine_of(Transport(), route="chat")
    with pytest.raises(InvalidRequest, match="only chats"):
        await engine.open(PROMPT, Sampling(9))
    assert (await engine.stats()).sessions == 0
    await engine.close()


@pytest.mark.virtual_time
async def test_half_characters_are_conserved() -> None:
    data = "naïve 🙂 text".encode()
    ids = TOKENIZER.encode_bytes(data)
    for cut in range(len(ids)):
        known = b"".join(map(TOKENIZER.token_bytes, ids[:cut]))
        half = len(known) - len(known.decode("utf-8", "ignore").encode())
        rest = data[len(known) - half :].decode()
        transport = Transport(said(chunk(rest), chunk("", "stop"), DONE))
        engine = engine_of(transport)
        async with engine_contract.session(engine, PROMPT, Sampling(60), ids[:cut]) as s:
            more, _ = await engine_contract.drain(s)
        assert b"".join(map(TOKENIZER.token_bytes, [*ids[:cut], *more])) == data
        assert transport.seen[0]["prompt"] == "Tell me about Marworth." + data[: len(known) - half].decode()
        await engine.close()


async def test_a_connection_that_breaks_is_a_lost_endpoint(
    engine: ServiceEngine, service: FakeService
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield chunk(" one") + chunk(" two") + chunk(" three")[:-9]
        raise ConnectionResetError

    service.faults.append(lambda _: StreamingResponse(broken(), media_type="text/event-stream"))
    session = await engine.open(PROMPT, Sampling(9))
    stream = session.generate()
    assert TOKENIZER.decode((await anext(stream)).ids) == " one"
    with pytest.raises(EngineStopped, match="failed: RemoteProtocolError"):
        await anext(stream)
    await session.cancel()


async def test_drafts_are_what_the_service_would_say(engine: ServiceEngine, service: FakeService) -> None:
    expected = await engine_contract.answer(engine, PROMPT)
    async with engine_contract.session(engine, PROMPT, Sampling(12, 0.8, seed=3, ignore_eos=True)) as s:
        drafts = await s.draft(0, expected[:3], 4)
        assert (drafts.ids, drafts.probs) == (expected[3:7], None)
    assert (service.seen[-1]["max_tokens"], service.seen[-1]["temperature"]) == (4, 0.0)


@pytest.mark.virtual_time
async def test_cancel_ends_a_draft() -> None:
    transport = Transport(said(1e6))
    engine = engine_of(transport)
    session = await engine.open(PROMPT, Sampling(9))
    drafting = asyncio.create_task(session.draft(0, [], 4))
    await asyncio.sleep(1.0)
    await session.cancel()
    with pytest.raises(SessionCancelled):
        await drafting
    assert transport.closed == 1
    await engine.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("finish", "expected"),
    [("stop", "stop"), ("content_filter", "content_filter"), ("tool_calls", "stop"), ("length", "length")],
)
async def test_the_end_is_the_services(finish: str, expected: str) -> None:
    engine = engine_of(Transport(said(chunk(" one"), chunk("", finish), usage(5, 2), DONE)))
    items = await whole(engine, Sampling(9))
    assert (text_of(items), items[-1].finish, items[-1].usage) == (" one", expected, Usage(5, 2))
    await engine.close()


@pytest.mark.virtual_time
async def test_a_stop_string_ends_the_answer_also_across_the_log() -> None:
    transport = Transport(said(chunk("ND it"), chunk(" goes"), 1e6))
    engine = engine_of(transport)
    items = await whole(engine, Sampling(20, stop=("END",)), TOKENIZER.encode_bytes(b" so E"))
    assert (text_of(items), items[-1].finish) == ("", "stop")
    assert transport.closed == 1, "the rest is not read, nor waited for"
    await engine.close()


@pytest.mark.virtual_time
async def test_a_service_that_says_more_than_asked_for_is_cut() -> None:
    loop = asyncio.get_running_loop()
    engine = engine_of(Transport(said(chunk(answer("x", 8)), chunk(" more"), 1e6)))
    began_s = loop.time()
    items = await whole(engine, Sampling(4))
    assert [len(tokens.ids) for tokens in items] == [4, 0]
    assert (items[-1].finish, items[-1].usage) == ("length", None)
    assert loop.time() - began_s == pytest.approx(2.0), "the bill is not waited for any longer"
    await engine.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        (Sampling(4, logprobs=0), "log-probabilities"),
        (Sampling(4, forced=True), "log-probabilities"),
        (Sampling(4, 1.0, top_k=3), "top_k"),
        (Sampling(4, 1.0, min_p=0.1), "min_p"),
        (Sampling(4, min_tokens=2), "min_tokens"),
        (Sampling(4, ignore_eos=True), "ignore_eos"),
        (Sampling(4, logit_bias=((5, 1.0),)), "logit_bias"),
        (Sampling(4, grammar=Grammar("json_object")), "grammar"),
    ],
)
async def test_what_the_service_lacks_is_refused_by_name(sampling: Sampling, why: str) -> None:
    engine = engine_of(Transport(), extensions={})
    with pytest.raises(InvalidRequest, match=why):
        await engine.open(PROMPT, sampling)
    await engine.close()


@pytest.mark.virtual_time
async def test_text_that_spells_a_special_token_is_refused() -> None:
    """The service would read the token, and somebody's text would become a turn of the chat."""
    engine = engine_of(Transport())
    with pytest.raises(InvalidRequest, match="special token"):
        await engine.open(TOKENIZER.render_chat([{"role": "user", "content": "x<eos>y"}]), Sampling(4))
    await engine.close()


async def test_the_key_comes_from_the_environment_and_is_in_no_error(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=KEY_NAME):
        ServiceEngine(config(api_key_env=KEY_NAME), TOKENIZER)
    monkeypatch.setenv(KEY_NAME, KEY)
    service.faults.append(refusing(401, {"message": f"wrong {KEY[:5]}***", "code": "invalid_api_key"}))
    service.faults.append(refusing(400, {"message": f"strange key {KEY}"}))
    async with served(service) as url:
        engine = ServiceEngine(config(url, api_key_env=KEY_NAME), TOKENIZER)
        with pytest.raises(ServiceRefused, match=r"does not accept the key \(HTTP 401\)$"):
            await whole(engine, Sampling(4))
        with pytest.raises(InvalidRequest, match="strange key …"):
            await whole(engine, Sampling(4))
        assert service.keys == [f"Bearer {KEY}"] * 2
        await engine.close()
    assert f"{url}, code invalid_api_key" in caplog.text
    assert KEY[:5] not in caplog.text


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "no", "code": "content_filter"}, ContentFiltered),
        (400, {"message": "no", "code": "context_length_exceeded"}, ContextOverflow),
        (400, {"message": "no", "code": 400, "type": "exceed_context_size_error"}, ContextOverflow),
        (422, {"message": "no"}, InvalidRequest),
        (500, {"message": "no"}, EngineStopped),
        (503, {"message": "no"}, NoCapacity),
    ],
)
async def test_a_refusal_has_its_kind(
    engine: ServiceEngine, service: FakeService, status: int, error: dict[str, object], kind: type[Exception]
) -> None:
    service.faults.extend([refusing(status, error, retry_after="7")])
    with pytest.raises(kind, match="the service says: no") as caught:
        await whole(engine, Sampling(4))
    assert type(caught.value) is kind
    if isinstance(caught.value, NoCapacity):
        assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize(
    ("status", "error", "why"),
    [
        (401, {"message": "no"}, "does not accept the key"),
        (402, {"message": "no"}, "no credit left"),
        (403, {"message": "no", "code": 403}, "may not use it"),
        (404, {"message": "no", "code": "model_not_found"}, "does not know the model"),
        (429, {"message": "no", "code": "insufficient_quota"}, "no credit left"),
        (429, {"message": "no", "code": None, "type": "insufficient_quota"}, "no credit left"),
    ],
)
async def test_a_refusal_of_everything_is_final_and_told_until_the_service_serves_again(
    engine: ServiceEngine, service: FakeService, status: int, error: dict[str, object], why: str
) -> None:
    assert (await engine.stats()).refusal == ""
    service.faults.append(refusing(status, error, retry_after="7"))
    with pytest.raises(ServiceRefused, match=why):
        await whole(engine, Sampling(4))
    assert len(service.seen) == 1
    stats = await engine.stats()
    assert stats.refusal is not None
    assert why in stats.refusal
    assert 0 < stats.rest_s <= REST_S
    await whole(engine, Sampling(4))
    stats = await engine.stats()
    assert (stats.refusal, stats.rest_s) == ("", 0.0)
