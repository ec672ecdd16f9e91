"""The whole application over HTTP, driven by the `openai` client: real Ray, real engines, real faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
import ray
from openai import AsyncOpenAI, NotFoundError
from openai.types.chat import ChatCompletionChunk
from ray import serve

from tandem.cluster.wire.peers import Peers
from tandem.deployments.request.assignment import EndpointInfo
from tandem.engine.base import EngineStats
from tests.applications import actors, replicas, until
from tests.conftest import Running
from tests.effort import slow_after, tried

pytestmark = [
    pytest.mark.timeout(240),  # the first test starts Ray
    pytest.mark.asyncio(loop_scope="module"),  # a Serve handle stays on the loop that first used it
]

LONG = "Tell me about the town of Marworth."
QUESTIONS = (LONG, "What do people eat there?", "Compare two machines.", "Who lives in Dunmere?")
SLOW_DEVICE = "jetson-orin"  # slowed to its profile, so that there is time to pull its plug
SPECULATIVE: dict[str, Any] = {"mode": "speculative", "window": 4}  # the policy may let the cloud go on alone
MODES: tuple[dict[str, Any], ...] = (
    {"mode": "cloud"},
    SPECULATIVE,
    SPECULATIVE | {"device": SLOW_DEVICE},
    {"mode": "device", "device": "laptop"},
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def openai(application: Running) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{application.address}/v1", api_key="none", max_retries=0, timeout=90
    ) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(application: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=application.address, timeout=90) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(application: Running) -> AsyncIterator[Callable[[], Any]]:
    """Counters of every engine there is, by what they belong to, read over the wire."""
    peers = Peers(token=application.token)
    handles = {
        name: serve.get_deployment_handle(name.capitalize(), "tandem") for name in ("verifier", "drafter")
    }
    scheduler = serve.get_deployment_handle("Scheduler", "tandem")

    async def counters() -> dict[str, EngineStats]:
        up: list[EndpointInfo] = []
        for handle in handles.values():
            for endpoints in await handle.broadcast("state").results_async():
                up += endpoints
        up += [EndpointInfo.of(device) for device in (await scheduler.snapshot.remote()).devices.values()]
        engines = {e.engine: await peers.engine(e.address, e.engine) for e in up}
        return {name: await engine.stats() for name, engine in engines.items()}

    yield counters
    await peers.close()


async def ask(
    openai: AsyncOpenAI, question: str = LONG, tandem: dict[str, Any] | None = None, max_tokens: int = 200
) -> tuple[str, dict[str, Any]]:
    """The whole answer at temperature 0, and what it cost."""
    answer = await openai.chat.completions.create(
        model="tandem",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=max_tokens,
        extra_body={"tandem": tandem or {}},
    )
    assert answer.model_extra is not None
    return answer.choices[0].message.content or "", answer.model_extra["tandem"]["stats"]


async def stream(openai: AsyncOpenAI, tandem: dict[str, Any], **options: Any) -> Any:
    return await openai.chat.completions.create(
        model="tandem",
        messages=[{"role": "user", "content": LONG}],
        temperature=0,
        stream=True,
        extra_body={"tandem": tandem, **options.pop("extra", {})},
        **options,
    )


async def rest_of(stream: AsyncIterator[ChatCompletionChunk], text: str) -> tuple[str, dict[str, Any]]:
    stats = None
    async for chunk in stream:
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        stats = ((chunk.model_extra or {}).get("tandem") or {}).get("stats") or stats
    assert stats is not None
    return text, stats


async def test_the_replicas_of_the_api_keep_one_account(http: httpx.AsyncClient) -> None:
    phone = {"device": "pixel-7-pro"}
    asked = {
        "model": "tandem",
        "messages": [{"role": "user", "content": LONG}],
        "max_tokens": 1,
        "tandem": {"mode": "cloud", **phone},
    }
    assert (await http.patch("/v1/account", json={"budget": 0.25}, params=phone)).status_code == 200
    for _ in range(16):
        assert (await http.post("/v1/chat/completions", json=asked)).status_code == 200

    async def shown() -> dict[str, Any]:
        return (await http.get("/v1/account", params=phone)).json()

    async def all_booked() -> bool:
        return (await shown())["requests"] == 16

    await until(all_booked)
    assert (await shown())["budget"] == 0.25


async def test_a_conversation_goes_on_at_any_replica_of_the_api(openai: AsyncOpenAI) -> None:
    made = await openai.responses.create(model="tandem", input=LONG, max_output_tokens=4, temperature=0)
    assert made.store is True  # type: ignore[attr-defined]  # not in the client's types
    for _ in range(8):
        assert (await openai.responses.retrieve(made.id)).output_text == made.output_text
    answers = [
        await openai.responses.create(
            model="tandem",
            input="Go on.",
            previous_response_id=made.id,
            max_output_tokens=4,
            temperature=0,
            store=False,
        )
        for _ in range(8)
    ]
    assert len({answer.output_text for answer in answers}) == 1
    assert answers[0].usage.input_tokens > made.usage.input_tokens
    await openai.responses.delete(made.id)
    for _ in range(8):
        with pytest.raises(NotFoundError):
            await openai.responses.retrieve(made.id)


async def test_speculation_says_what_the_cloud_says(openai: AsyncOpenAI) -> None:
    for question in QUESTIONS:
        expected, stats = await ask(openai, question, {"mode": "cloud"})
        assert set(stats["tokens"]["by_origin"]) == {"cloud"}
        for device in (None, "laptop", SLOW_DEVICE if question is LONG else "laptop"):
            text, stats = await ask(openai, question, SPECULATIVE | {"device": device})
            assert text == expected
            assert (stats["mode"], stats["device"]) == ("speculative", device)
            assert stats["modes"]["speculative"]["rounds"] > 0
            assert stats["tokens"]["by_origin"].get("draft", 0) == stats["modes"]["speculative"]["accepted"]


async def test_a_device_answers_alone(openai: AsyncOpenAI) -> None:
    text, stats = await ask(openai, tandem={"mode": "device", "device": "laptop"})
    assert text
    assert stats["tokens"]["by_origin"] == {"device": stats["tokens"]["output"]}


async def test_small_models_write_what_the_large_one_has_sketched(openai: AsyncOpenAI) -> None:
    """A replica of the API that does not know yet how fast the large one is has it answer in full."""
    for _ in range(8):
        text, stats = await ask(openai, LONG, {"mode": "sketch", "show_sketch": True}, max_tokens=400)
        sketch = stats["modes"]["sketch"]
        if sketch["sketches"]:
            break
        assert sum(sketch["in_full"].values()) == 1
        assert set(stats["tokens"]["by_origin"]) == {"cloud"}
    assert stats["tokens"]["by_origin"].keys() >= {"sketch", "expansion"}
    lines, _, answer = text.partition("\n\n")
    assert sketch["notes"] == len(lines.splitlines()) > 2
    assert answer.count(".") >= sketch["notes"]
    assert stats["tokens"]["device_out"] > stats["tokens"]["server_out"] > 0


async def test_a_race_is_run_and_paid_for(openai: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    """Both start, one answers; the slow device decodes dearer than the server, so it ends there."""
    wishes = {"mode": "race", "device": SLOW_DEVICE, "budget": 1.0, "exchange_rate": 1.0}
    own = {"device": SLOW_DEVICE}
    before, elsewhere = [(await http.get("/v1/account", params=p)).json() for p in (own, {})]
    text, stats = await ask(openai, tandem=wishes, max_tokens=40)
    assert text
    assert (stats["mode"], stats["device"], stats["replans"]) == ("race", SLOW_DEVICE, 0)
    assert stats["tokens"]["output"] == sum(stats["tokens"]["by_origin"].values()) == 40
    assert set(stats["tokens"]["by_origin"]) <= {"cloud", "device"}
    # The device takes in the prompt once, or as far as it came before it lost; the server again when it takes over.
    assert stats["tokens"]["server_in"] > 0
    assert stats["tokens"]["device_in"] > 0
    assert stats["cost"]["joules"] > 0

    async def booked() -> bool:
        """Return whether usage is on the account, a moment later, whichever replica shows it."""
        account = (await http.get("/v1/account", params=own)).json()
        joules = account["device_joules"] - before["device_joules"]
        return account["requests"] == before["requests"] + 1 and joules >= stats["cost"]["joules"] * 0.999

    await until(booked)
    assert (await http.get("/v1/account")).json() == elsewhere, "another account"


async def test_several_modes_at_once(openai: AsyncOpenAI) -> None:
    alone = [await ask(openai, tandem=mode) for mode in MODES]
    together = await asyncio.gather(*(ask(openai, tandem=MODES[n % len(MODES)]) for n in range(16)))
    for n, (text, stats) in enumerate(together):
        assert text == alone[n % len(MODES)][0]
        assert stats["replans"] == 0


async def test_a_prompt_is_scored_as_the_answer_was(openai: AsyncOpenAI) -> None:
    """An answer, put to the model again as a prompt, has the log-probabilities that it had."""
    question = "Tell me about the town of Marworth."
    asked: dict[str, Any] = {"model": "tandem", "temperature": 0, "logprobs": 1}
    said = (await openai.completions.create(prompt=question, max_tokens=20, **asked)).choices[0]
    both = question + said.text
    echoed = (await openai.completions.create(prompt=both, max_tokens=1, echo=True, **asked)).choices[0]
    scores, expected = echoed.logprobs, said.logprobs
    assert scores is not None
    assert expected is not None
    assert scores.token_logprobs[0] is None
    assert "".join(scores.tokens[-21:-1]) == said.text
    assert scores.token_logprobs[-21:-1] == pytest.approx(expected.token_logprobs, abs=1e-3)
    assert echoed.text.startswith(both)


async def test_the_operators_endpoints(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).status_code == 200
    ready = (await http.get("/readyz")).json()
    assert (ready["verifier"], ready["drafter"], ready["devices"]) == (1, 1, 4)
    assert "expander" not in ready, "no mode uses it"
    devices = {device["name"]: device for device in (await http.get("/v1/devices")).json()["data"]}
    assert devices[SLOW_DEVICE]["emulated"]
    assert not devices["laptop"]["emulated"]
    assert devices["laptop"]["rtt_s"] == 0.005


async def test_no_such_device(openai: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError, match="no device 'toaster'"):
        await ask(openai, tandem={"mode": "device", "device": "toaster"})


@pytest.mark.parametrize(
    ("tandem", "at_work"),
    slow_after(
        2,
        [
            (SPECULATIVE, {"verifier", "drafter"}),
            ({"mode": "race", "device": SLOW_DEVICE, "budget": 1.0}, {"verifier", SLOW_DEVICE}),
            ({"mode": "cloud"}, {"verifier"}),
            (SPECULATIVE | {"device": SLOW_DEVICE}, {"verifier", SLOW_DEVICE}),
            ({"mode": "device", "device": SLOW_DEVICE}, {SLOW_DEVICE}),
        ],
    ),
)
async def test_a_client_that_leaves_stops_the_work_everywhere(
    openai: AsyncOpenAI, engines: Callable[[], Any], tandem: dict[str, Any], at_work: set[str]
) -> None:
    before = await engines()
    answer = await stream(openai, tandem, max_tokens=400, extra={"ignore_eos": True})
    await anext(aiter(answer))
    during = await engines()
    assert {name for name in during if during[name].opened > before[name].opened} == at_work
    await answer.close()

    async def all_quiet() -> bool:
        """Return whether no session is open and all were counted, which may be a little later."""
        now = await engines()
        return all(
            now[name].sessions == before[name].sessions == 0
            and now[name].opened == now[name].finished + now[name].cancelled
            for name in at_work
        )

    await until(all_quiet)
    after = await engines()
    for name in at_work:
        opened = after[name].opened - before[name].opened
        assert after[name].cancelled - before[name].cancelled == opened >= 1
        assert after[name].tokens_generated - before[name].tokens_generated < 400


@pytest.mark.parametrize("tandem", slow_after(1, [SPECULATIVE, {"mode": "device"}]))
async def test_a_device_dies_and_the_cloud_goes_on(
    openai: AsyncOpenAI, http: httpx.AsyncClient, tandem: dict[str, Any]
) -> None:
    answer = aiter(await stream(openai, tandem | {"device": SLOW_DEVICE}, max_tokens=200))
    begun = ""
    while len(begun.split()) < 3:
        chunk = await anext(answer)
        begun += chunk.choices[0].delta.content or ""
    (host,) = actors("tandem devices/edge").values()
    ray.kill(host, no_restart=False)
    text, stats = await rest_of(answer, begun)
    assert stats["replans"] == 1, "the fault did not reach this answer"
    assert stats["mode"] == "cloud"
    assert [move["words"] for move in stats["moves"]] == [f"device {SLOW_DEVICE} was lost"]
    assert stats["tokens"]["output"] == sum(stats["tokens"]["by_origin"].values())
    if tandem is SPECULATIVE:
        assert text == (await ask(openai, tandem={"mode": "cloud"}))[0]
    else:
        assert text.startswith(begun)
        assert stats["tokens"]["by_origin"]["device"] > 0
        assert stats["tokens"]["by_origin"]["cloud"] > 0

    async def back_again() -> bool:
        devices = (await http.get("/v1/devices")).json()["data"]
        if SLOW_DEVICE not in [device["name"] for device in devices]:
            return False
        _, stats = await ask(openai, tandem={"mode": "device", "device": SLOW_DEVICE}, max_tokens=5)
        return set(stats["tokens"]["by_origin"]) == {"device"}

    await until(back_again)


async def test_the_only_verifier_dies_and_its_successor_goes_on(openai: AsyncOpenAI) -> None:
    expected, _ = await ask(openai, tandem={"mode": "cloud"})
    answer = aiter(await stream(openai, SPECULATIVE | {"device": SLOW_DEVICE}, max_tokens=200))
    begun = ""
    while len(begun.split()) < 3:
        chunk = await anext(answer)
        begun += chunk.choices[0].delta.content or ""
    (verifier,) = replicas("tandem", "Verifier").values()
    ray.kill(verifier)
    text, stats = await rest_of(answer, begun)
    assert (text, stats["replans"]) == (expected, 1)


@pytest.mark.slow
async def test_the_control_plane_dies_and_comes_back(openai: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    """Answers that run go on, those that come wait, and a new router learns anew what requests teach. Terms outlive
    it."""
    own = {"device": "xiaomi-14"}
    assert (await http.patch("/v1/account", json={"budget": 0.125}, params=own)).status_code == 200
    expected, _ = await ask(openai, tandem={"mode": "cloud"})
    for deployment in tried(("Router", "Scheduler"), ("Router", "Scheduler", "Access", "Router")):
        running = aiter(await stream(openai, {"mode": "race", "device": "laptop"}, max_tokens=100))
        await anext(running)
        (victim,) = replicas("tandem", deployment).values()
        ray.kill(victim)
        answers = await asyncio.gather(*(ask(openai, tandem=mode) for mode in MODES))
        assert answers[0][0] == answers[1][0] == answers[2][0] == expected
        assert [stats["replans"] for _, stats in answers] == [0] * len(MODES)
        _, stats = await rest_of(running, "")
        assert (stats["mode"], stats["replans"]) == ("race", 0)
        account = (await http.get("/v1/account", params=own)).json()
        assert account["budget"] == 0.125

    async def ready() -> bool:
        reply = await http.get("/readyz")
        return reply.status_code == 200 and not reply.json()["missing"]

    await until(ready)
    _, stats = await ask(openai, tandem={"mode": "device", "device": "laptop"})
    assert set(stats["tokens"]["by_origin"]) == {"device"}, "the devices registered with the new scheduler"
