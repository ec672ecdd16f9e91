"""A request's line in the log: enough to follow it, none of its text, and no warnings about clients' mistakes."""

import asyncio
import logging

import pytest

from tandem.engine.base import EngineError, EngineStopped
from tests.app.api.null_backend import times

CHAT = {"model": "null", "messages": [{"role": "user", "content": "Buzzword?"}], "max_tokens": 9}
PATH = "/v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True])
async def test_one_line_a_request(http, serve_log, stream):
    asked = CHAT | {"stream": stream, "n": 2, "tandem": {"mode": "device", "device": "pixel-1"}}
    reply = await http.post(PATH, json=asked, headers={"x-request-id": "r-1"})
    (line,) = serve_log
    assert line.levelno == logging.INFO
    assert f'"{line.answer}"' in reply.text.replace(": ", ":"), "by which the client can name the answer"
    assert (line.request_id, line.key, line.mode, line.device) == ("r-1", "anonymous", "device", "pixel-1")
    assert (line.status, line.output_tokens, line.replans) == (200, 18, 0)
    assert line.prompt_tokens > 0
    assert 0 < line.queue_s < line.ttft_s < line.total_s
    said = line.getMessage()
    assert said.startswith(
        f"request answer={line.answer} key=anonymous model=null mode=device device=pixel-1 status=200 "
    )
    assert "Buzzword" not in said + str(vars(line))


async def test_a_key_is_logged_without_its_secret(http, serve_log):
    made = (await http.post("/v1/keys", json={"name": "boss", "role": "operator"})).json()
    headers = {"Authorization": f"Bearer {made['secret']}"}
    await http.post(PATH, json=CHAT, headers=headers)
    (line,) = serve_log
    assert line.key == made["id"]
    assert made["secret"] not in str(vars(line))


@pytest.mark.parametrize(
    ("more", "status", "error"),
    [
        ({"tandem": {"mode": "device", "device": "toaster"}}, 404, "device_not_found"),
        ({"tandem": {"mode": "warp"}}, 400, "unknown_mode"),
        ({"model": "gpt-9"}, 404, "model_not_found"),
        ({"temperature": "hot"}, 400, "invalid_value"),
        ({"colour": "red"}, 400, "unsupported_parameter"),
        ({"max_tokens": 10_000}, 400, "context_length_exceeded"),
    ],
)
async def test_a_clients_mistake_is_not_logged_as_a_failure(http, serve_log, caplog, more, status, error):
    await http.post(PATH, json=CHAT | more)
    (line,) = serve_log
    assert (line.levelno, line.status, line.error) == (logging.INFO, status, error)
    assert line.exc_info is None
    for word in ("toaster", "warp", "gpt-9", "hot", "colour"):
        assert word not in str(vars(line)), "a client's value"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_wrong_key_is_not_logged_as_a_failure(http, serve_log):
    await http.post("/v1/keys", json={"name": "boss", "role": "operator"})
    await http.post(PATH, json=CHAT, headers={"Authorization": "Bearer guessed"})
    (line,) = serve_log
    assert (line.levelno, line.status, line.error) == (logging.INFO, 401, "invalid_api_key")
    assert "guessed" not in str(vars(line))


async def test_a_body_that_is_not_json(http, serve_log):
    await http.post(PATH, content=b"Buzzword", headers={"content-type": "application/json"})
    (line,) = serve_log
    assert (line.levelno, line.status, line.error) == (logging.INFO, 400, "invalid_json")
    assert "Buzzword" not in str(vars(line))


async def test_a_client_that_leaves_is_not_logged_as_a_failure(http, backend, serve_log):
    backend.hold_after = 3
    request = asyncio.create_task(http.post(PATH, json=CHAT))
    await times(1, backend.held)
    request.cancel()
    await times(1, backend.closed)
    (line,) = serve_log
    assert (line.levelno, line.status, line.output_tokens) == (logging.INFO, 499, 3)


async def test_a_failure_of_the_server_is_logged_with_its_trace(http, backend, serve_log):
    backend.fail_after = (2, EngineError("odd"))
    await http.post(PATH, json=CHAT)
    failure, line = serve_log
    assert (failure.levelno, failure.exc_info[1]) == (logging.ERROR, backend.fail_after[1])
    assert (line.status, line.error, line.output_tokens) == (500, "engine_error", 2)


async def test_a_stopped_engine_is_not_logged_as_a_failure(http, backend, serve_log):
    backend.fail_after = (2, EngineStopped("no verifier is left"))
    await http.post(PATH, json=CHAT)
    (line,) = serve_log
    assert (line.levelno, line.status, line.error) == (logging.INFO, 503, "engine_stopped")


async def test_a_long_request_id_is_cut(http, serve_log):
    await http.post(PATH, json=CHAT, headers={"x-request-id": "r" * 5000})
    assert serve_log[0].request_id == "r" * 64
