from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.wire import frames
from tandem.cluster.wire.frames import (
    HEADER,
    VERSION,
    ProtocolError,
    decode,
    encode,
    pack_bits,
    pack_ids,
    unpack_ids,
)
from tandem.engine.base import (
    ContextOverflow,
    DraftProbs,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Forwarded,
    HandedOver,
    InvalidRequest,
    NoCapacity,
    Sampling,
    SessionCancelled,
    SplitInfo,
    Tensor,
    TokenLogprob,
    UnknownSession,
)

ids = st.one_of(
    st.lists(st.integers(0, 2**bits - 1), max_size=40) for bits in (8, 16, 24, 32)
)  # each width, and lists that need none
header = {
    "session": st.integers(0, 9) | st.integers(0, 2**63 - 1),
    "seq": st.integers(0, 99) | st.integers(0, 2**63 - 1),
}
request = header | {"engine": st.just("null") | st.text(max_size=12)}
packed = ids.map(pack_ids)
count = st.integers(0, 2**31 - 1)
number = st.integers(0, 9) | st.integers(0, 2**63 - 1)
resumption = {
    "resume_s": st.sampled_from([0.0, 0.5, 300.0]),
    "name": st.binary(max_size=16),
    "received": number,
}
finish = st.sampled_from([None, "stop", "length"])
logprobs = st.none() | st.lists(st.just(TokenLogprob(-0.5, [(3, -0.5), (4, -2.0)])), max_size=3)
probs = st.none() | st.just(DraftProbs(2, b"12345678", b"abcdefgh"))
KINDS = [
    EngineInfo("m", "v", 100, 64, 2),
    EngineInfo("m", "v", 100, 64, 2, ("forward",), SplitInfo("c0de", 2, 12, 192), False),
]
infos = st.dictionaries(st.text(max_size=5), st.sampled_from(KINDS), max_size=3)
TENSOR = Tensor.of(np.arange(6, dtype=np.float32).reshape(2, 3))
tensor = st.just(TENSOR)
ANY = st.one_of(
    st.builds(frames.Open, **request, prompt=packed, sampling=st.just(Sampling(seed=2**62)), log=packed),
    st.builds(frames.Generate, **request),
    st.builds(frames.Verify, **request, ids=packed, probs=probs),
    st.builds(frames.Draft, **request, position=count, ids=packed, window=count),
    st.builds(frames.Extend, **request, position=count, ids=packed),
    st.builds(frames.Cancel, **request),
    st.builds(frames.Forward, **request, position=count, hidden=tensor, wanted=count),
    st.builds(frames.GetStats, **request),
    st.builds(frames.Abandon, **request),
    st.builds(frames.Hello, **request, **resumption, token=st.text(max_size=9), engines=infos),
    st.builds(frames.Welcome, **header, **resumption, engines=infos),
    st.builds(frames.Ping, **header, received=number),
    st.builds(frames.Pong, **header, received=number),
    st.builds(frames.Ack, **header, received=number),
    st.builds(frames.Bye, **header),
    st.builds(frames.Done, **header),
    st.builds(frames.Tokens, **header, ids=packed, finish=finish, logprobs=logprobs),
    st.builds(frames.Drafts, **header, ids=packed, probs=probs),
    st.builds(frames.Verdict, **header, accepted=count, ids=packed, finish=finish, logprobs=logprobs),
    st.builds(frames.Hidden, **header, forwarded=st.just(Forwarded(TENSOR, 40, 0.02, 0.5))),
    st.builds(frames.StatsReply, **header, stats=st.just(EngineStats(steps=3, energy_j=0.5))),
    st.builds(frames.Error, **header, code=st.text(max_size=9), message=st.text(max_size=9)),
)


@given(ANY)
def test_round_trip(frame: frames.Frame) -> None:
    data = encode(frame)
    assert HEADER.unpack_from(data) == (len(data) - HEADER.size, VERSION)
    assert decode(bytes(data[HEADER.size :])) == frame


@given(st.binary(max_size=200))
def test_decoder_takes_any_bytes(data: bytes) -> None:
    check_decodes_or_refuses(data)


def check_decodes_or_refuses(data: bytes) -> None:
    try:
        frame = decode(data)
    except ProtocolError:
        return
    assert isinstance(frame, frames.Frame)


@given(ANY, st.data())
def test_decoder_takes_damaged_frames(frame: frames.Frame, data: st.DataObject) -> None:
    body = encode(frame)[HEADER.size :]
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check_decodes_or_refuses(bytes(body))


def test_an_engine_info_without_the_newest_field_is_understood() -> None:
    info = KINDS[0]
    old = {field: value for field, value in msgspec.to_builtins(info).items() if field != "takes_probs"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=EngineInfo) == info
    assert info.takes_probs


def test_decoder_takes_deep_nesting() -> None:
    with pytest.raises(ProtocolError):
        decode(b"\x91" * 100_000)


@given(ids)
def test_ids_round_trip(values: list[int]) -> None:
    data = pack_ids(values)
    assert unpack_ids(data) == values
    width = 2 if max(values, default=0) < 2**16 else 3 if max(values) < 2**24 else 4
    assert len(data) == 1 + width * len(values)


@pytest.mark.parametrize("values", [[-1], [2**32], [5, -3, 2**20]])
def test_ids_out_of_range(values: list[int]) -> None:
    with pytest.raises(InvalidRequest):
        pack_ids(values)


vocab_sizes = st.integers(1, 2**31) | st.integers(0, 31).map(lambda bits: 2**bits)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[list[int], int]:
    """(token ids, the size of their vocabulary); its ends come up often."""
    vocab_size = draw(vocab_sizes)
    token = st.integers(0, vocab_size - 1) | st.sampled_from([0, vocab_size - 1])
    return draw(st.lists(token, max_size=40)), vocab_size


@given(outputs())
def test_bits_round_trip(output: tuple[list[int], int]) -> None:
    values, vocab_size = output
    assert unpack_ids(pack_bits(values, vocab_size)) == values


@pytest.mark.parametrize(
    ("vocab_size", "bits"), [(1, 1), (2, 1), (3, 2), (2048, 11), (2049, 12), (100_277, 17), (2**31, 31)]
)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 100, 1000])
def test_a_token_takes_as_many_bits_as_its_vocabulary_needs(vocab_size: int, bits: int, count: int) -> None:
    assert len(pack_bits([vocab_size - 1] * count, vocab_size)) == 5 + -(-count * bits // 8)


@given(outputs(), st.integers(0), st.booleans())
def test_ids_outside_the_vocabulary(output: tuple[list[int], int], beyond: int, below: bool) -> None:
    values, vocab_size = output
    values.insert(len(values) // 2, -1 - beyond if below else vocab_size + beyond)
    with pytest.raises(InvalidRequest):
        pack_bits(values, vocab_size)


@given(outputs(), st.data())
def test_cut_or_lengthened_bits_are_malformed(output: tuple[list[int], int], data: st.DataObject) -> None:
    packed = pack_bits(*output)
    cut = data.draw(st.integers(0, len(packed) - 1))
    for wrong in (packed[:cut], packed + bytes(1 + cut)):
        with pytest.raises(ProtocolError):
            unpack_ids(wrong)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"\x01ab", b"\x05abcde", b"\x80" + bytes(4), b"\xa1\1" + bytes(8), b"\xff" + bytes(4),
     b"\x8b\xff\xff\xff\xff", b"\xa0\xff\xff\xff\xff" + bytes(64), b"\x81\1\0\0"],
    ids=["empty", "width 0", "width 1", "width 5", "0 bits", "33 bits", "127 bits",
         "4 billion tokens", "4 billion wide tokens", "half a count"],
)  # fmt: skip
def test_malformed_ids(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_ids(data)


packings = st.sampled_from([b"", b"\2", b"\3", b"\4", b"\x8b\2\0\0\0", b"\xa0\1\0\0\0"])


@given(packings, st.binary(max_size=30))
def test_unpacking_takes_any_bytes(begin: bytes, data: bytes) -> None:
    try:
        values = unpack_ids(begin + data)
    except ProtocolError:
        return
    assert all(0 <= value < 2**32 for value in values)


@pytest.mark.parametrize(
    "kind", [InvalidRequest, ContextOverflow, UnknownSession, SessionCancelled, EngineStopped, ProtocolError]
)
def test_errors_keep_their_class(kind: type[EngineError]) -> None:
    error = frames.Error.of(kind("why"), 3, 4).exception()
    assert type(error) is kind
    assert str(error) == "why"


@pytest.mark.parametrize("kind", [NoCapacity, HandedOver])
def test_no_capacity_keeps_its_time(kind: type[NoCapacity]) -> None:
    error = frames.Error.of(kind("full", 2.5)).exception()
    assert type(error) is kind
    assert error.retry_after_s == 2.5


def test_a_foreign_code_is_kept() -> None:
    error = frames.Error(0, 1, "from_the_future", "what").exception()
    assert (type(error), error.code, EngineError.code) == (EngineError, "from_the_future", "engine_error")


def test_tensor_keeps_its_memory() -> None:
    array = np.arange(12, dtype=np.float16).reshape(3, 4)
    assert np.shares_memory(Tensor.of(array).numpy(), array)
    assert (Tensor.of(array.T).numpy() == array.T).all()


@pytest.mark.parametrize("shape_dtype", [((5,), "float32"), ((2, 3), "nonsense"), ((2, 3), "object")])
def test_tensor_that_does_not_fit(shape_dtype: tuple[tuple[int, ...], str]) -> None:
    with pytest.raises(InvalidRequest):
        Tensor(*shape_dtype, memoryview(b"x" * 24)).numpy()


def test_only_frames_are_frames() -> None:
    with pytest.raises(ProtocolError):
        decode(msgspec.msgpack.encode([99, 1, 1]))
