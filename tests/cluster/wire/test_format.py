"""The wire's format: every frame that a session's operations travel in, byte for byte."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
import numpy as np
import pytest

from tandem.cluster.wire.client import Connection, connect
from tandem.cluster.wire.listener import serve_engines
from tandem.engine.base import (
    CAPABILITIES,
    Draft,
    DraftProbs,
    Drafts,
    EngineStats,
    Forward,
    Forwarded,
    InvalidRequest,
    NoCapacity,
    Sampling,
    Tensor,
    TokenLogprob,
    Tokens,
    Verdict,
    Verify,
)
from tandem.engine.null.engine import NullEngine, NullSession

SCORES = [TokenLogprob(-0.5, [(3, -0.5), (70_000, -2.0)])]
PROBS = DraftProbs.of(np.array([[1, 2], [3, 4]]), np.array([[0.5, 0.5], [0.25, 0.75]]))
STATES = Tensor.of(np.arange(6, dtype=np.float32).reshape(2, 3))


class Scripted(NullSession):
    async def generate(self) -> AsyncGenerator[Tokens, None]:
        yield Tokens([9, 70_000], None, SCORES)
        yield Tokens([2], "stop")

    async def _verify(self, operation: Verify) -> Verdict:
        return Verdict(len(operation.ids), [*operation.ids, 2], "stop", SCORES)

    async def _draft(self, operation: Draft) -> Drafts:
        return Drafts([operation.window] * 2, PROBS, 0.125)

    async def _forward(self, operation: Forward) -> Forwarded:
        return Forwarded(Tensor.of(operation.hidden.numpy()[-operation.wanted :]), 40, 0.25)


class ScriptedEngine(NullEngine):
    session_class = Scripted

    def __init__(self) -> None:
        super().__init__(vocab_size=100_000)
        self.info = msgspec.structs.replace(self.info, capabilities=CAPABILITIES)

    async def stats(self) -> EngineStats:
        raise NoCapacity("full", 2.5)


FRAMES = """
780000000197010101a46e756c6cc40a91020000000002e1a7c0dc001640cb000000000000000000cb3ff0000000000000cb3ff0000000000000cb0000000000000000cb0000000000000000039090c2ffcb0000000000000000c2cb0000000000000000c000cb000000000000000090a0a0a0c4089101000000000380
040000000193210101
090000000194020102a46e756c6c
340000000196220102c40703090000701101c09192cbbfe0000000000000929203cbbfe000000000000092ce00011170cbc000000000000000
0f0000000196220102c403020200a473746f70c0
380000000196030103a46e756c6cc407032c01007011019302c41001000000020000000300000004000000c4100000003f0000003f0000803e0000403f
3c000000019724010302c40a032c0100701101020000a473746f709192cbbfe0000000000000929203cbbfe000000000000092ce00011170cbc000000000000000
0d0000000196030104a46e756c6cc40102c0
35000000019724010400c403020200a473746f709192cbbfe0000000000000929203cbbfe000000000000092ce00011170cbc000000000000000
100000000197040105a46e756c6c03c40302010002
3a0000000196230105c40502020002009302c41001000000020000000300000004000000c4100000003f0000003f0000803e0000403fcb3fc0000000000000
110000000196050106a46e756c6c01c4050400000001
040000000193210106
310000000197070107a46e756c6c0193920203a7666c6f61743332c418000000000000803f0000004000004040000080400000a04001
3200000001942501079493920103a7666c6f61743332c40c00004040000080400000a04028cb3fd0000000000000cb
0d0000000196050108a46e756c6c09c40102
4b0000000196270108af696e76616c69645f72657175657374d92c706f736974696f6e2039206973206f75747369646520746865206f7574707574206f66203220746f6b656e73cb0000000000000000
090000000194080009a46e756c6c
1d0000000196270009aa6f7665726c6f61646564a466756c6ccb4004000000000000
09000000019406010aa46e756c6c
04000000019321010a
"""


async def test_format(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def send(self: Connection, data: bytearray) -> None:
        sent.append(data.hex())
        plainly(self, data)

    plainly = Connection.send
    monkeypatch.setattr(Connection, "send", send)
    async with serve_engines({"null": ScriptedEngine()}) as endpoint:
        connection = await connect(endpoint.address)
        engine = connection.engine("null")
        session = await engine.open([5, 99_999], Sampling(max_tokens=64, seed=3), [7])
        async for _ in session.generate():
            pass
        await session.verify([300, 70_000], PROBS)
        await session.verify([])
        await session.draft(3, [1], 2)
        await session.extend(1, [2**24])
        await session.forward(1, STATES, 1)
        hidden = len(sent) - 1
        with pytest.raises(InvalidRequest):
            await session.extend(9, [])
        with pytest.raises(NoCapacity):
            await engine.stats()
        await session.cancel()
        await connection.close()
    sent[hidden] = sent[hidden][:-16]  # without the seconds that it took
    assert sent == FRAMES.split()


def test_older_peers_without_traces_and_handles_understand_and_are_understood() -> None:
    newer = {"trace", "kept"}
    fields = [(f.name, f.type, f.default) for f in msgspec.structs.fields(Sampling) if f.name not in newer]
    older = msgspec.defstruct("Sampling", fields, array_like=True)
    said = msgspec.msgpack.encode(Sampling(max_tokens=64, adapter="a", trace="00-1-2-01", kept="5a"))
    assert msgspec.msgpack.decode(said, type=older) == older(max_tokens=64, adapter="a")
    theirs = msgspec.msgpack.encode(older(max_tokens=64, adapter="a"))
    assert msgspec.msgpack.decode(theirs, type=Sampling) == Sampling(max_tokens=64, adapter="a")
