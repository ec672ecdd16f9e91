"""Every refusal has its status, and OpenAI's form of an error."""

import asyncio
import json
import logging

import httpx
import openai as sdk
import pytest
from starlette.requests import Request

from tandem.app.api.http.settings import ApiSettings
from tandem.deployments.modes import MODES
from tandem.deployments.request.job import UnknownMode
from tandem.engine.base import EngineError, EngineStopped, NoCapacity, ServiceRefused
from tests.app.api.null_backend import uploading

HELLO = [{"role": "user", "content": "Hello?"}]
CHAT = {"model": "null", "messages": HELLO}
TEXT = {"model": "null", "prompt": "x"}
JSON = {"Content-Type": "application/json"}


async def refused(http: httpx.AsyncClient, body: object, path: str = "/v1/chat/completions") -> tuple:
    content = body if isinstance(body, bytes | str) else json.dumps(body)
    reply = await http.post(path, content=content, headers=JSON)
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return reply.status_code, error["code"], error["param"]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"model": "gpt-9"}, (404, "model_not_found", "model")),
        ({"model": None}, (400, "missing_required_parameter", "model")),
        ({"messages": None}, (400, "missing_required_parameter", "messages")),
        ({"messages": []}, (400, "invalid_value", "messages")),
        ({"messages": [{"role": "oracle", "content": "x"}]}, (400, "invalid_value", "messages[0].role")),
        ({"messages": [{"role": "tool", "content": "x"}]}, (400, "invalid_value", "messages[0]")),
        ({"messages": [{"role": "user", "content": None}]}, (400, "invalid_value", "messages[0]")),
        ({"messages": [{"role": "user", "content": 5}]}, (400, "invalid_value", "messages[0].content")),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            (400, "invalid_value", "messages[0].content"),
        ),
        ({"tandem": {"mode": "split"}}, (400, "prompt_left_device", "tandem.mode")),
        ({"temperature": 2.1}, (400, "invalid_value", "temperature")),
        ({"temperature": "hot"}, (400, "invalid_value", "temperature")),
        ({"top_p": 0}, (400, "invalid_value", "top_p")),
        ({"top_k": -2}, (400, "invalid_value", "top_k")),
        ({"top_k": 2**31}, (400, "invalid_value", "top_k")),
        ({"top_k": 2**70}, (400, "invalid_value", "top_k")),
        ({"presence_penalty": 3}, (400, "invalid_value", "presence_penalty")),
        ({"frequency_penalty": -3}, (400, "invalid_value", "frequency_penalty")),
        ({"repetition_penalty": 0}, (400, "invalid_value", "repetition_penalty")),
        ({"max_tokens": 0}, (400, "invalid_value", "max_tokens")),
        ({"max_completion_tokens": True}, (400, "invalid_value", "max_completion_tokens")),
        ({"n": 0}, (400, "invalid_value", "n")),
        ({"seed": 2**63}, (400, "invalid_value", "seed")),
        ({"stop": ["1", "2", "3", "4", "5"]}, (400, "invalid_value", "stop")),
        ({"stop": ""}, (400, "invalid_value", "stop[0]")),
        ({"stop_token_ids": [-1]}, (400, "invalid_value", "stop_token_ids[0]")),
        ({"stop_token_ids": [7, 2**32]}, (400, "invalid_value", "stop_token_ids[1]")),
        ({"top_logprobs": 2}, (400, "invalid_value", None)),
        ({"logprobs": True, "top_logprobs": 21}, (400, "invalid_value", "top_logprobs")),
        ({"stream_options": {"include_usage": True}}, (400, "invalid_value", None)),
        ({"stream": True, "stream_options": {"x": 1}}, (400, "unsupported_parameter", "stream_options.x")),
        ({"tools": [{"type": "function"}]}, (400, "missing_required_parameter", "tools[0].function")),
        ({"functions": [{"name": "f"}]}, (400, "unsupported_parameter", "functions")),
        ({"response_format": {"type": "xml"}}, (400, "invalid_value", "response_format.type")),
        ({"response_format": {"type": "json_schema"}}, (400, "invalid_value", "response_format")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            (400, "invalid_value", "response_format.json_schema.name"),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "a",
                        "strict": True,
                        "schema": {"type": "array", "uniqueItems": True},
                    },
                }
            },
            (400, "invalid_value", "response_format"),
        ),
        ({"structured_outputs": {}}, (400, "invalid_value", "structured_outputs")),
        ({"structured_outputs": {"regex": "a("}}, (400, "invalid_value", "structured_outputs")),
        ({"structured_outputs": {"json": {"type": 5}}}, (400, "invalid_value", "structured_outputs")),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            (400, "invalid_value", "structured_outputs"),
        ),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            (400, "unsupported_parameter", "structured_outputs.structural_tag"),
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            (400, "invalid_value", None),
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, (400, "invalid_value", None)),
        (
            {"min_tokens": 1, "structured_outputs": {"regex": "a"}},
            (400, "invalid_request", None),
        ),
        ({"logit_bias": {"5": 101}}, (400, "invalid_value", "logit_bias.5")),
        ({"logit_bias": {"x": 1}}, (400, "invalid_value", "logit_bias.x")),
        ({"logit_bias": {"100000": 1}}, (400, "invalid_value", "logit_bias")),
        ({"min_p": 1.5}, (400, "invalid_value", "min_p")),
        ({"min_tokens": -1}, (400, "invalid_value", "min_tokens")),
        ({"min_tokens": 5, "max_tokens": 4}, (400, "invalid_value", "min_tokens")),
        ({"min_tokens": 512}, (400, "invalid_value", "min_tokens")),
        ({"tandem": {"mood": "fast"}}, (400, "unsupported_parameter", "tandem.mood")),
        ({"tandem": {"mode": "warp"}}, (400, "unknown_mode", "tandem.mode")),
        ({"tandem": {"device": "toaster"}}, (404, "device_not_found", "tandem.device")),
        ({"tandem": {"window": 0}}, (400, "invalid_value", "tandem.window")),
        ({"tandem": {"window": 65}}, (400, "invalid_value", "tandem.window")),
        ({"tandem": {"reader_rate": 0}}, (400, "invalid_value", "tandem.reader_rate")),
        ({"tandem": {"paced": True}}, (400, "invalid_value", None)),
        ({"stream": True, "tandem": {"paced": 1}}, (400, "invalid_value", "tandem.paced")),
        ({"tandem": "cloud"}, (400, "invalid_value", "tandem")),
        ({"max_tokens": 512}, (400, "context_length_exceeded", "max_tokens")),
        ({"max_completion_tokens": 512}, (400, "context_length_exceeded", "max_completion_tokens")),
        (
            {"messages": [{"role": "user", "content": "x" * 600}]},
            (400, "context_length_exceeded", "messages"),
        ),
    ],
    ids=lambda case: json.dumps(case)[:50] if isinstance(case, dict) else "",
)
async def test_an_invalid_chat(http, backend, extra, expected):
    assert await refused(http, CHAT | extra) == expected
    assert (await backend.engine.stats()).opened == 0


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"prompt": None}, (400, "missing_required_parameter", "prompt")),
        ({"prompt": []}, (400, "invalid_value", "prompt")),
        ({"prompt": [1.5]}, (400, "invalid_value", "prompt")),
        ({"prompt": [-1]}, (400, "invalid_value", "prompt")),
        ({"prompt": ""}, (400, "invalid_request", None)),
        ({"prompt": [100_000]}, (400, "invalid_request", None)),
        ({"prompt": [2**32]}, (400, "invalid_request", None)),
        ({"prompt": [2**70], "echo": True}, (400, "invalid_request", None)),
        ({"max_tokens": 512}, (400, "context_length_exceeded", "max_tokens")),
        ({"prompt": "x" * 513}, (400, "context_length_exceeded", "prompt")),
        ({"prompt": "x" * 30_000}, (400, "context_length_exceeded", "prompt")),
        ({"prompt": ["x"] * 65, "n": 2}, (400, "invalid_value", None)),
        ({"logprobs": 6}, (400, "invalid_value", "logprobs")),
        ({"suffix": "!"}, (400, "unsupported_parameter", "suffix")),
        ({"best_of": 1, "n": 2}, (400, "invalid_value", None)),
        ({"best_of": 3, "stream": True}, (400, "invalid_value", None)),
        ({"prompt": ["x"] * 65, "best_of": 2}, (400, "invalid_value", None)),
        ({"prompt_logprobs": 21}, (400, "invalid_value", "prompt_logprobs")),
        ({"prompt_logprobs": 1, "stream": True}, (400, "invalid_value", None)),
        ({"prompt_logprobs": 1, "tandem": {"mode": "race"}}, (400, "invalid_value", None)),
        (
            {"stream": True, "tandem": {"paced": True}},
            (400, "missing_required_parameter", "tandem.reader_rate"),
        ),
    ],
)
async def test_an_invalid_completion(http, extra, expected):
    assert await refused(http, TEXT | extra, "/v1/completions") == expected


@pytest.mark.parametrize("elsewhere", [{"split"}, {"split", "race", "sketch"}])
async def test_an_unknown_mode_is_told_what_this_api_serves(http, backend, monkeypatch, elsewhere):
    """And nothing else: each of the others is refused here when it is asked for."""

    def check(mode: str) -> None:
        if mode in elsewhere:
            raise UnknownMode(f"mode {mode!r} is another API's")

    monkeypatch.setattr(backend, "check", check)
    reply = await http.post("/v1/chat/completions", json=CHAT | {"tandem": {"mode": "warp"}})
    listed = reply.json()["error"]["message"].partition("there is ")[2].split(", ")
    assert listed == [mode for mode in MODES if mode not in elsewhere]
    for mode in elsewhere:
        assert await refused(http, CHAT | {"tandem": {"mode": mode}}) == (400, "unknown_mode", "tandem.mode")


async def test_pacing_needs_a_rate_where_the_server_has_no_default(http, backend):
    backend.default_reader_rate = 0.0
    asked = CHAT | {"stream": True, "tandem": {"paced": True}}
    assert await refused(http, asked) == (400, "missing_required_parameter", "tandem.reader_rate")


@pytest.mark.parametrize(
    "body", ["{", "", "nonsense", b"\xff\xfe", '{"model": "\\ud800"}', "[" * 100_000, "[]"]
)
async def test_bad_json(http, body):
    assert await refused(http, body) == (400, "invalid_value" if body == "[]" else "invalid_json", None)


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logit_bias": {}},
        {"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto"},
        {"stop": None, "max_tokens": None, "tandem": None, "tools": None},
    ],
)
async def test_fields_that_ask_for_nothing_are_accepted(http, extra):
    reply = await http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 1} | extra)
    assert reply.status_code == 200


async def test_a_body_that_is_too_large(http):
    assert await refused(http, b" " * (ApiSettings().body_bytes + 1)) == (413, "body_too_large", None)


async def test_a_body_of_unknown_length_that_is_too_large(http):
    async def parts():
        for _ in range(20):
            yield b" " * 65536

    reply = await http.post("/v1/completions", content=parts(), headers=JSON)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")


async def test_a_body_that_does_not_arrive(address, backend):
    backend.api = ApiSettings(body_s=0.05)
    async with uploading(address, "{", 99) as (reader, _), asyncio.timeout(5):
        assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        assert b"did not come within 0.05 s" in await reader.readuntil(b'"body_too_slow"}}')


async def test_a_client_that_leaves_while_it_uploads(address, backend, monkeypatch, caplog):
    """Count the request with status 499, and do not log it as a failure of the server."""
    reading, counted = asyncio.Event(), asyncio.Queue()
    stream = Request.stream

    async def noted(self):
        reading.set()
        async for part in stream(self):
            yield part

    monkeypatch.setattr(Request, "stream", noted)
    monkeypatch.setattr(backend, "observe", lambda seen: counted.put_nowait(seen.status))
    async with uploading(address, "{", 99) as (_, writer), asyncio.timeout(5):
        await reading.wait()
        writer.transport.abort()
        assert await counted.get() == 499
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "code", "retry_after"),
    [
        (NoCapacity("all seats are taken", retry_after_s=2.5), 429, "overloaded", "3"),
        (EngineStopped("no verifier is up"), 503, "engine_stopped", "2"),
        (ServiceRefused("no credit"), 502, "service_refused", None),
        (EngineError("odd"), 500, "engine_error", None),
        (RuntimeError("a secret"), 500, "internal_error", None),
    ],
)
async def test_failures_behind_the_api(http, backend, stream, failure, status, code, retry_after):
    async def run(job):
        raise failure
        yield

    backend.run = run
    reply = await http.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert reply.headers.get("retry-after") == retry_after
    assert reply.headers.get("x-should-retry") == ("false" if code == "service_refused" else None)
    assert "secret" not in reply.text


async def test_no_such_path(http):
    reply = await http.get("/v2/chat")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    assert (await http.get("/v1/completions")).status_code == 405


@pytest.mark.parametrize(
    ("call", "exception"),
    [
        ({"model": "gpt-9"}, sdk.NotFoundError),
        ({"max_tokens": 10_000}, sdk.BadRequestError),
        ({"extra_body": {"tandem": {"mode": "warp"}}}, sdk.BadRequestError),
    ],
)
async def test_the_official_client_understands(openai, call, exception):
    with pytest.raises(exception) as refusal:
        await openai.chat.completions.create(**CHAT | call)
    assert refusal.value.type == "invalid_request_error"
