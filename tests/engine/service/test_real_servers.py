"""Real servers with OpenAI's API as engines: llama.cpp's and vLLM's, each in a process of its own, with one model whose
greedy answers are known."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandem.app.cli.server.local_ray import free_port
from tandem.engine import family
from tandem.engine.base import Grammar, Sampling, Tokens
from tandem.engine.config import EngineConfig
from tandem.engine.service.config import Route
from tandem.engine.service.engine import ServiceEngine
from tandem.engine.torch.engine import load
from tandem.engine.vllm import ENVIRONMENT
from tests.engine.service.fake_service import TOKENIZER, config
from tests.engine_contract import session

READY_S = 240.0
LLAMA_CPP = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx = sys.argv[1], int(sys.argv[2]), 2, 1024
p.endpoint_metrics = True
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(p)
while True:
    time.sleep(3600)
"""
VLLM = {
    "dtype": "float32",
    "max-num-seqs": "4",
    "block-size": "32",
    "num-gpu-blocks-override": "64",
    "distributed-executor-backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
}
CHAT = [{"role": "user", "content": "Tell me about the town of Marworth."}]
PROMPT = TOKENIZER.render_chat(CHAT)
ROUTES: list[Route] = ["completions", "chat"]
TOWN = {
    "type": "object",
    "properties": {"river": {"enum": ["Aln", "Tor"]}, "old": {"type": "boolean"}},
    "required": ["river", "old"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Server:
    """A server under its address.

    steps: counter of what it has computed, among its metrics.
    structured: how it takes forms, by route.
    """

    address: str
    steps: re.Pattern[str]
    structured: dict[Route, bool | str]

    async def computed(self) -> float:
        async with httpx.AsyncClient(timeout=30) as http:
            text = (await http.get(f"{self.address}/metrics")).raise_for_status().text
        return sum(float(value) for value in self.steps.findall(text))

    @asynccontextmanager
    async def engine(self, route: Route, **settings: Any) -> AsyncIterator[ServiceEngine]:
        made = ServiceEngine(config(f"{self.address}/v1", model="target", route=route, **settings), TOKENIZER)
        yield made
        await made.close()


@contextmanager
def process(command: list[str], port: int, log: Path, **environment: str) -> Iterator[str]:
    """Yield the address of a server that listens at that port, once it is healthy."""
    with log.open("wb") as out:
        running = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | environment
        )
    address, until_s = f"http://127.0.0.1:{port}", time.monotonic() + READY_S
    try:
        while not healthy(address):
            if running.poll() is not None or time.monotonic() > until_s:
                pytest.fail(f"the server did not come up: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield address
    finally:
        running.terminate()
        running.wait(60)


def healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def llama_cpp(folder: Path) -> Iterator[Server]:
    from tests.engine.llamacpp.family_gguf import write

    port, file = free_port(), write("target", folder / "target.gguf")
    command = [sys.executable, "-c", LLAMA_CPP, str(file), str(port)]
    with process(command, port, folder / "log") as address:
        steps = re.compile(r"^llamacpp:n_decode_total (\S+)", re.MULTILINE)
        yield Server(address, steps, {"completions": "json_schema", "chat": True})


@contextmanager
def vllm(folder: Path) -> Iterator[Server]:
    port = free_port()
    given = VLLM | {"model": str(family.path("target")), "served-model-name": "target", "port": str(port)}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [word for name, value in given.items() for word in (f"--{name}", value)]
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
    with process([*command, "--host", "127.0.0.1"], port, folder / "log", **environment) as address:
        steps = re.compile(r"^vllm:generation_tokens_total\S* (\S+)", re.MULTILINE)
        yield Server(address, steps, {"completions": True, "chat": True})


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            llama_cpp,
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    find_spec("xllamacpp") is None or find_spec("gguf") is None,
                    reason="llama.cpp's server is not installed: pip install xllamacpp gguf",
                ),
            ],
        ),
        pytest.param(vllm, marks=pytest.mark.vllm),
    ],
    ids=["llama.cpp", "vllm"],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with request.param(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(scope="module")
def expected() -> list[int]:
    """Return the tokens of the greedy answer to PROMPT, by the engine here."""

    async def said() -> list[int]:
        engine = load(family.path("target"), EngineConfig(kv_blocks=64), threads=1)
        async with session(engine, PROMPT, Sampling(max_tokens=40)) as s:
            ids = [i async for tokens in s.generate() for i in tokens.ids]
        await engine.close()
        return ids

    return asyncio.run(said())


async def answer(engine: ServiceEngine, sampling: Sampling, log: list[int] | None = None) -> list[Tokens]:
    async with asyncio.timeout(60), session(engine, PROMPT, sampling, log or []) as s:
        return [tokens async for tokens in s.generate()]


def ids_of(items: list[Tokens]) -> list[int]:
    return [i for tokens in items for i in tokens.ids]


pytestmark = pytest.mark.timeout(READY_S + 60)


@pytest.mark.parametrize("route", ROUTES)
async def test_an_answer_is_streamed_and_billed_by_the_servers_count(
    server: Server, route: Route, expected: list[int]
) -> None:
    async with server.engine(route) as engine:
        items = await answer(engine, Sampling(max_tokens=40))
    assert ids_of(items) == expected
    assert sum(bool(tokens.ids) for tokens in items) > 3, "in pieces"
    bill = next(tokens.usage for tokens in items if tokens.usage is not None)
    assert (bill.tokens_in, bill.tokens_out) == (len(PROMPT), len(expected))


async def test_a_half_answer_is_continued(server: Server, expected: list[int]) -> None:
    begun = expected[:15]
    async with server.engine("completions") as engine:
        assert ids_of(await answer(engine, Sampling(max_tokens=40), begun)) == expected[15:]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_form_is_kept(server: Server, route: Route) -> None:
    form = Grammar("json_schema", json.dumps(TOWN))
    sampling = Sampling(
        max_tokens=300, grammar=form, frequency_penalty=1.0
    )  # or it never has enough white space
    async with server.engine(route, structured=server.structured[route]) as engine:
        items = await answer(engine, sampling)
    said = json.loads(TOKENIZER.decode(ids_of(items)))
    assert said.keys() == {"river", "old"}
    assert said["river"] in ("Aln", "Tor")


@pytest.mark.parametrize("route", ROUTES)
async def test_an_answer_that_nobody_wants_any_more_is_not_computed(server: Server, route: Route) -> None:
    before, most = await server.computed(), 400
    async with server.engine(route) as engine, asyncio.timeout(60):
        s = await engine.open(PROMPT, Sampling(max_tokens=most, ignore_eos=True))
        async for tokens in s.generate():
            if tokens.ids:
                break
        await s.cancel()
    computed = await server.computed()
    while (now := await server.computed()) > computed:
        computed = now
    assert 0 < computed - before < most * 0.75
