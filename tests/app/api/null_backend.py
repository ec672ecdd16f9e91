"""Test double of the API's backend, without a model, and what reads and writes its API's connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.trace import Tracer
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from tandem.app.api.http.backend import ModelCard, ModelPart
from tandem.app.api.http.errors import NotReady
from tandem.app.api.http.settings import ApiSettings
from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.access.accounts import Accounts, Statement
from tandem.deployments.access.kept.responses import KeptResponses, KeptSettings
from tandem.deployments.access.kept.streams import StreamCopies
from tandem.deployments.access.key_service import KeyService
from tandem.deployments.access.keys import Caller, Key, Role
from tandem.deployments.access.teams import TeamStatement
from tandem.deployments.access.usage import Usage, UsageQuery
from tandem.deployments.admission.controller import Gate
from tandem.deployments.admission.entry import Entry, Passage
from tandem.deployments.config.settings import GateSettings, LedgerSettings, RouterSettings
from tandem.deployments.control.metrics import Metrics
from tandem.deployments.control.observation import Observation
from tandem.deployments.control.orders import DeviceOrder, Orders, OrdersTold, drain, order
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.speculative.mode import Speculation
from tandem.deployments.modes.split import SplitMode, SplitSettings
from tandem.deployments.request.assignment import EndpointInfo, Load
from tandem.deployments.request.forecast import Forecast
from tandem.deployments.request.job import Delta, Job, JobStats, Move, NoSuchDevice
from tandem.deployments.request.tokenlog import Origin
from tandem.deployments.request.under_way import UnderWay
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.engine.base import Session, TokenLogprob
from tandem.engine.null.engine import NullEngine
from tandem.engine.text.tokenizer import Tokenizer

SPECIAL = ["<bos>", "<pad>", "<eos>", "<|q|>", "<|a|>"]
TEMPLATE = "<bos>{% for m in messages %}<|q|> {{ m.content }}{% endfor %}<|a|>"
EOS = 2


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token a byte, and special tokens."""
    tokenizer = RustTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=0, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([], trainer)
    return Tokenizer(tokenizer.to_str(), {"bos_token": "<bos>", "eos_token": "<eos>"}, TEMPLATE)


TOKENIZER = byte_tokenizer()
ORIGINS = {
    "cloud": (Origin.CLOUD,),
    "device": (Origin.DEVICE,),
    "race": (Origin.DEVICE, Origin.CLOUD),
    "speculative": (Origin.DRAFT, Origin.DRAFT, Origin.DRAFT, Origin.CORRECTED),
}
UP = Snapshot(
    1,
    {
        "verifier": (
            EndpointInfo("verifier 1", "10.0.0.1:1", "verifier", "target", sessions=9, load=Load(2, 24, 96)),
        ),
        "drafter": (EndpointInfo("drafter 1", "10.0.0.2:1", "drafter", "small", sessions=3),),
    },
    {"pixel-1": DeviceRecord(name="pixel-1", address="", profile="", model="small", vocabulary="v")},
    awaited=frozenset({"pixel-2", "pixel-3"}),
)
"""Replicas and devices that are up."""


class NullBackend:
    """Runs jobs on a null engine, which does not sample.

    says: tokens to answer with in place of the engine's.
    burst: tokens of one delta.
    hold_after: number of tokens after which every job waits for `go`.
    held: released by each job that begins to wait.
    fail_after: (tokens, error): every job raises the error after so many tokens.
    origins: of the tokens of each mode, over and over.
    forecast: expectation of every answer.
    moves: times that every answer went on elsewhere, as told.
    parts: models that answer, as told.
    lacks: what each mode lacks, as told; None: nothing is told of modes.
    weighs: names of the objectives that requests may have.
    scores: log-probability of every token, for each job in its order.
    snapshot: replicas and devices that are up.
    working: answers that are under way, as told.
    ordered: orders of operators, which nothing here follows.
    observations: requests that are over.
    missing: reasons for not being ready.
    jobs: jobs that were run.
    closed: released by each job that ends, for whatever reason.
    left: requests that generate no more, and whether all their jobs came to an end by themselves.
    books: whether bills can be booked.
    booking: released by each answer that begins to wait for that.
    """

    def __init__(
        self,
        says: str | None = None,
        burst: int = 1,
        context: int = 512,
        ledger: Path | None = None,
        capacity: int = 64,
    ) -> None:
        """Start without keys.

        says: text to answer with.
        ledger: file that keeps keys.
        capacity: sessions that the admission controller lets run at once.
        """
        self.engine = NullEngine(vocab_size=TOKENIZER.vocab_size, context=context)
        self.says = [*TOKENIZER.encode(says), EOS] if says is not None else None
        self.burst = burst
        self.hold_after: int | None = None
        self.go = asyncio.Event()
        self.held = asyncio.Semaphore(0)
        self.fail_after: tuple[int, Exception] | None = None
        self.origins: dict[str, Sequence[Origin]] = dict(ORIGINS)
        self.moves: list[Move] = []
        self.parts: tuple[ModelPart, ...] = ()
        self.lacks: dict[str, str] | None = None
        self.weighs: list[str] = []
        self.forecast: Forecast | None = None
        self.scores: Iterator[float] = repeat(-0.25)
        self.default_reader_rate = 5.0
        self.tracer: Tracer | None = None
        self.behind_proxy = False
        self.api = ApiSettings()
        self.responses, self.streams = KeptResponses(KeptSettings()), StreamCopies(60.0)
        self.accounts = Accounts()
        policies = RouterSettings()
        assigner = Assigner(policies.collaboration.create(), policies.routing.create, 8)
        self.routing = Routing(assigner, policies)
        self.treasury = KeyService(LedgerSettings(path=ledger), self.accounts)
        self.gate = Gate({"": lambda: capacity}, GateSettings(queue_s=0.2, queue=8))
        self.snapshot = UP
        self.working: list[UnderWay] = []
        self.ordered = Orders()
        self._metrics = Metrics({"null": lambda: self.snapshot}, self.gate.waiting)
        self.observations: list[Observation] = []
        self.missing: list[str] = []
        self.jobs: list[Job] = []
        self.closed = asyncio.Semaphore(0)
        self.left: list[tuple[int, bool]] = []
        self.books = asyncio.Event()
        self.books.set()
        self.booking = asyncio.Semaphore(0)

    def models(self) -> list[ModelCard]:
        context, vocabulary = self.engine.info.context, TOKENIZER.vocabulary
        return [ModelCard(id="null", context=context, vocabulary=vocabulary, parts=self.parts)]

    def tokenizer(self, model: str) -> Tokenizer:
        return TOKENIZER

    async def booked(self) -> None:
        self.booking.release()
        await self.books.wait()

    async def caller(self, hashed: str | None) -> Caller | None:
        return self.treasury.caller(hashed)

    async def enter(self, caller: Caller, entry: Entry, jobs: Sequence[Job]) -> Passage:
        if not caller.keyed:
            return Passage()
        return await self.gate.enter("here", entry)

    def leave(self, caller: Caller, entry: Entry, finished: bool) -> None:
        self.left.append((entry.request, finished))
        self.gate.leave("here", entry.request)

    async def account(self, key: str) -> Statement:
        return replace(self.treasury.statement(key), spent=self.routing.spent(key))

    async def settle(self, key: str, changes: Mapping[str, Any]) -> Statement:
        await self.treasury.settle(key, changes)
        return await self.account(key)

    async def usage(self, query: UsageQuery) -> list[Usage]:
        return await self.treasury.usage(query)

    async def keys(self) -> list[Key]:
        return self.treasury.keys()

    async def make_key(
        self, name: str, role: Role, changes: Mapping[str, Any], team: str = ""
    ) -> tuple[Key, str]:
        return await self.treasury.make(name, role, changes, team)

    async def rotate_key(self, id: str, grace_s: float) -> tuple[Key, str]:
        return await self.treasury.rotate(id, grace_s)

    async def change_key(
        self, id: str, name: str | None, role: Role | None, changes: Mapping[str, Any], team: str | None
    ) -> Key:
        return await self.treasury.change(id, name, role, changes, team)

    async def revoke_key(self, id: str) -> Key:
        return await self.treasury.revoke(id)

    async def teams(self) -> list[TeamStatement]:
        return self.treasury.teams()

    async def make_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        return await self.treasury.make_team(name, changes)

    async def change_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        return await self.treasury.change_team(name, changes)

    async def remove_team(self, name: str) -> None:
        await self.treasury.remove_team(name)

    async def devices(self) -> list[dict[str, object]]:
        return [
            {
                "name": "pixel-1",
                "profile": "pixel7pro-bloom560m",
                "emulated": True,
                "rtt_s": 0.01,
                "sessions": 1,
                "capacity": 4,
                "battery": 0.5,
            }
        ]

    async def fleet(self) -> Snapshot:
        return self.snapshot

    def under_way(self) -> list[UnderWay]:
        return self.working

    async def orders(self) -> OrdersTold:
        pools, drained = self.snapshot.pools, self.ordered.drained
        listed = {
            pool: [each for each in replicas if each.name in drained] for pool, replicas in pools.items()
        }
        return OrdersTold({pool: found for pool, found in listed.items() if found}, self.ordered.devices)

    async def order_replica(self, name: str, drained: bool) -> OrdersTold:
        self.ordered = drain(self.ordered, name, drained, self.snapshot.pools)
        return await self.orders()

    async def order_device(self, name: str, wanted: DeviceOrder) -> OrdersTold:
        self.ordered = order(self.ordered, name, wanted, {"pixel-1", "laptop"}, {"pixel-1"})
        return await self.orders()

    async def ready(self) -> dict[str, object]:
        if self.missing:
            raise NotReady(self.missing, {"verifiers": 0})
        return {"verifiers": 1} | ({} if self.lacks is None else {"modes": {"null": self.lacks}})

    def observe(self, seen: Observation) -> None:
        self.observations.append(seen)
        self._metrics.observe(seen)

    async def metrics(self, openmetrics: bool) -> tuple[bytes, str]:
        return self._metrics.exposition(openmetrics)

    def objectives(self) -> list[str]:
        return self.weighs

    def check(self, mode: str) -> None:
        if mode == SplitMode.name:
            SplitMode(SplitSettings(), Services()).check()

    def stays(self, mode: str | None) -> bool:
        return mode == "device"

    async def run(self, job: Job) -> AsyncIterator[Delta]:
        self.jobs.append(job)
        try:
            if job.device not in (None, "pixel-1"):
                raise NoSuchDevice(f"no device is called {job.device!r}")
            stops = (*job.sampling.stop_tokens, *([] if job.sampling.ignore_eos else [EOS]))
            asked = msgspec.structs.replace(
                job.sampling, temperature=0.0, stop=(), logprobs=-1, stop_tokens=stops, grammar=None
            )
            session = await self.engine.open(job.prompt, asked, job.log.ids)
            try:
                async with aclosing(self._deltas(job, session, stops)) as deltas:
                    async for delta in deltas:
                        yield delta
            finally:
                await session.cancel()
        finally:
            self.closed.release()

    async def _deltas(self, job: Job, session: Session, stops: tuple[int, ...]) -> AsyncIterator[Delta]:
        """Yield the engine's tokens, or those of `says`, in bursts."""
        origins, score = cycle(self.origins[job.mode or "cloud"]), next(self.scores)
        stats = JobStats(mode=job.mode or "cloud", device=job.device, ttft_s=0.001, total_s=0.002)
        stats.forecast, stats.moves = self.forecast, self.moves
        stats.tokens, stats.by_origin = len(job.log), job.log.by_origin()
        stats.figures[Speculation.mode] = Speculation(rounds=2, drafted=8, accepted=6)
        if job.scored:
            yield Delta([], [], prompt_logprobs=[TokenLogprob(-float(token)) for token in job.prompt[1:]])
        delta = Delta([], [], logprobs=[] if job.sampling.logprobs >= 0 else None)
        async for tokens in session.generate():
            token, finish = tokens.ids[0], tokens.finish
            if self.says is not None:
                token = self.says[stats.tokens]
                finish = "stop" if token in stops else finish
            origin = next(origins)
            stats.tokens += 1
            stats.by_origin[origin] = stats.by_origin.get(origin, 0) + 1
            delta.ids.append(token)
            delta.origins.append(origin)
            if delta.logprobs is not None:
                others = [(token - n, score - n) for n in range(job.sampling.logprobs)]
                delta.logprobs.append(TokenLogprob(score, others))
            if len(delta.ids) == self.burst or finish:
                delta.finish, delta.stats = finish, stats
                yield delta
                delta = Delta([], [], logprobs=None if delta.logprobs is None else [])
            if finish:
                return
            await self._interrupt(stats.tokens)

    async def _interrupt(self, tokens: int) -> None:
        if self.hold_after == tokens:
            self.held.release()
            await self.go.wait()
        if self.fail_after and self.fail_after[0] == tokens:
            raise self.fail_after[1]


def events(text: str) -> list[dict[str, Any]]:
    """Return the events of a finished stream; checks their framing."""
    blocks = text.removesuffix("\n\n").split("\n\n")
    assert text.endswith("\n\n")
    assert all(block.startswith("data: ") for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@asynccontextmanager
async def uploading(
    address: str, body: str, length: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Send a chat's body over a connection of its own. length: announced length, if another than the body's."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rsplit(":", 1)[1]))
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(body)}\r\n"
    )
    writer.write(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
    try:
        yield reader, writer
    finally:
        writer.close()


async def times(n: int, semaphore: asyncio.Semaphore, within_s: float = 60.0) -> None:
    """Wait until `semaphore` has been released n times."""
    async with asyncio.timeout(within_s):
        for _ in range(n):
            await semaphore.acquire()
