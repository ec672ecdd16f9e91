"""Mode split over the real wire: what travels, in which order and how large, and what the device learns of the link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire import frames
from tandem.cluster.wire.client import connect
from tandem.cluster.wire.frames import AnyFrame, decode, pack_bits, pack_ids
from tandem.cluster.wire.listener import serve_engines
from tandem.deployments.modes.split import SplitMode, Splitting
from tandem.deployments.request.timeouts import Limits
from tandem.engine import family
from tandem.engine.base import Engine, Sampling
from tandem.engine.split import coded
from tandem.engine.split.hidden_states import KINDS, Kind, row_bytes
from tandem.engine.text.tokenizer import Tokenizer
from tandem.policies.split.chunking import FixedChunks
from tandem.training.family.prompts import heldout_questions
from tests.deployments.faults import World
from tests.deployments.modes.test_split import LONG, answer, ids_of, job, made, nothing_is_left, told
from tests.effort import tried
from tests.engine.torch.split_parts import Parts

Report = Callable[[str, object], None]


class Tap:
    """A relay that notes all that passes.

    seen: (it came from the device, frame), in order; wire: the bytes.
    hold: hidden states that must have come from the device before any go back.
    """

    def __init__(self, upstream: str) -> None:
        self.seen: list[tuple[bool, AnyFrame]] = []
        self.wire = bytearray()
        self.hold = 0
        self._enough = asyncio.Event()
        self._upstream = upstream

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._upstream.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._carry(reader, there_writer, True))
            group.create_task(self._carry(there_reader, writer, False))

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, from_device: bool
    ) -> None:
        try:
            while True:
                header = await source.readexactly(frames.HEADER.size)
                body = await source.readexactly(frames.HEADER.unpack(header)[0])
                self.wire += header + body
                frame = decode(body)
                if isinstance(frame, frames.Forward):
                    self.hold -= 1
                    if self.hold <= 0:
                        self._enough.set()
                elif isinstance(frame, frames.Hidden):
                    await self._enough.wait()
                self.seen.append((from_device, frame))
                sink.write(header + body)
        except (asyncio.IncompleteReadError, OSError):
            sink.close()


@asynccontextmanager
async def tapped(engine: Engine, link: Link | None = None) -> AsyncIterator[tuple[Engine, Tap]]:
    async with serve_engines({"middle": engine}) as endpoint:
        tap = Tap(endpoint.address)
        server = await asyncio.start_server(tap.accept, "127.0.0.1", 0)
        connection = await connect("{}:{}".format(*server.sockets[0].getsockname()))
        try:
            yield connection.engine("middle", link), tap
        finally:
            await connection.close()
            server.close()
            await server.wait_closed()


@asynccontextmanager
async def embedded(folder: Path, **options: Any) -> AsyncIterator[Parts]:
    """The parts of the embedded target."""
    big = {"kv_blocks": 1024, "block_size": 16, "token_budget": 512}
    parts = Parts.make(family.path("target"), 2, folder, 0.0, big, big, **options)
    yield parts
    await parts.close()


def packings(ids: Sequence[int], vocab_size: int) -> list[bytes]:
    """The ways in which this wire, or a careless one, would say these tokens."""
    wide = [b"".join(i.to_bytes(width, "little") for i in ids) for width in (2, 4)]
    return [*wide, pack_ids(ids)[1:], pack_bits(ids, vocab_size)]


async def test_no_frame_has_a_token_or_a_word(tmp_path: Path) -> None:
    """Between device and middle there are hidden states, positions and counts."""
    async with embedded(tmp_path) as parts, tapped(parts.middle) as (remote, tap):
        text = Tokenizer.load(parts.model)
        words = "Tell me about the town of Marworth."
        prompt = text.render_chat([{"role": "user", "content": words}])
        sampling = Sampling(max_tokens=20, ignore_eos=True, stop=("qqq",), seed=12345, reader_rate=5.0)
        world = World(middles=[remote], limits=Limits(), **told(parts))
        deltas, stats = await answer(world.executor, job(prompt, sampling))
        await nothing_is_left(world, parts)
        said = ids_of(deltas)
        kinds = {type(frame).__name__ for _, frame in tap.seen}
        assert {"Open", "Forward", "Hidden"} <= kinds
        assert kinds <= {"Hello", "Welcome", "Open", "Done", "Forward", "Hidden", "Cancel", "GetStats", "StatsReply",
                         "Ping", "Pong"}  # fmt: skip
        sent = Sampling(max_tokens=len(prompt) + 20, reader_rate=5.0)
        for _, frame in tap.seen:
            if isinstance(frame, frames.Open):
                assert (frames.unpack_ids(frame.prompt), frames.unpack_ids(frame.log)) == ([], [])
                assert msgspec.structs.replace(frame.sampling, kept="") == sent
                assert len(bytes.fromhex(frame.sampling.kept)) == 16, "a handle drawn at random"
            elif isinstance(frame, frames.Forward):
                assert frame.hidden.shape[1] == parts.outer.split.hidden
        wire = bytes(tap.wire)
        assert len(wire) > Splitting.of(stats).up_bytes + Splitting.of(stats).down_bytes
        for ids in (prompt, said):
            for at in range(len(ids) - 4):
                assert not any(
                    packed in wire for packed in packings(ids[at : at + 5], parts.outer.info.vocab_size)
                )
        for word in [*words.split(), text.decode(said)]:
            if len(word) > 3:
                assert word.encode() not in wire


@pytest.mark.parametrize("overlap", [True, False])
async def test_chunks_travel_while_others_are_computed(overlap: bool, tmp_path: Path) -> None:
    """If overlap is allowed, the next ones arrive before one is answered: three for a middle in one stage."""
    async with made(tmp_path) as parts, tapped(parts.middle) as (remote, tap):
        world = World(middles=[remote], limits=Limits(), **told(parts, lambda: FixedChunks(4, overlap)))
        tap.hold = expected = 3 if overlap else 1
        await answer(world.executor, job(LONG))
        under_way, most = 0, 0
        for from_device, frame in tap.seen:
            if isinstance(frame, frames.Forward) and from_device:
                under_way += 1
            elif isinstance(frame, frames.Hidden):
                under_way -= 1
            most = max(most, under_way)
        assert most == expected


@pytest.mark.slow
@pytest.mark.alone  # it measures time
async def test_what_is_known_of_the_link(tmp_path: Path) -> None:
    """Bandwidths and latency, from round trips and what the middle says of its own part in them."""
    link = Link(LinkProfile(rtt_s=0.04, up_bytes_per_s=400e3, down_bytes_per_s=400e3))
    async with embedded(tmp_path) as parts, tapped(parts.middle, link) as (remote, _):
        world = World(middles=[remote], limits=Limits(), **told(parts, lambda: FixedChunks(48, overlap=True)))
        for _ in range(2):
            await answer(world.executor, job([20 + i for i in range(200)], Sampling(max_tokens=8)))
        mode = world.executor.mode("split")
        assert isinstance(mode, SplitMode)
        assert mode._device is not None
        known = mode._device.link
        assert known.rtt_s == pytest.approx(0.04, rel=0.5)
        assert known.up_bytes_s == pytest.approx(400e3, rel=0.25)


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "float32" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
async def test_kinds_of_hidden_states(kind: Kind, tmp_path: Path, record_property: Report) -> None:
    """Answer greedily with the embedded target: float32 is exact; the others are smaller, and may differ."""
    text, count = Tokenizer.load(family.path("target")), tried(4, 12) if kind == "float32" else 12
    prompts = [
        text.render_chat([{"role": "user", "content": question}])
        for question in heldout_questions(count, seed=3)
    ]
    sampling = Sampling(max_tokens=24)
    async with embedded(tmp_path, kind=kind) as parts, tapped(parts.middle) as (remote, _):
        world = World(middles=[remote], limits=Limits(), **told(parts, lambda: FixedChunks(16, overlap=True)))
        same = bytes_ = tokens = 0
        for prompt in prompts:
            expected = await parts.answer(prompt, sampling)
            deltas, stats = await answer(world.executor, job(prompt, sampling))
            same += ids_of(deltas) == expected.ids
            bytes_ += Splitting.of(stats).up_bytes
            tokens += stats.used.server_in
        hidden = parts.outer.split.hidden
    record_property("same", same)
    print(f"{kind}: {same} of {count} answers are the whole model's")
    row = row_bytes(hidden, kind)
    assert bytes_ / tokens <= 1.2 * row, "short frames have tables of their own"
    assert kind in coded.BITS or bytes_ / tokens == row
    assert same >= {"float32": count, "float16": 11, "bfloat16": 10, "int8": 8, "int6": 7, "int4": 3}[kind]
