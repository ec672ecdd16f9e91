"""Frames of the wire: messages between processes about the sessions of an engine.

On the wire a frame is a header (length of the body in bytes, format version) and a msgpack body. Requests
go to the side that serves the engine and name it; replies repeat the request's session and sequence
number, which is unique among the requests of one side of one connection.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from tandem.engine import base
from tandem.engine.base import (
    DraftProbs,
    EngineError,
    EngineInfo,
    EngineStats,
    Forwarded,
    InvalidRequest,
    NoCapacity,
    Sampling,
    Tensor,
    TokenLogprob,
    Usage,
)

VERSION = 1
HEADER = struct.Struct("<IB")


class ProtocolError(EngineError):
    """A frame that does not follow the protocol; the connection or session it came on is closed."""

    code = "protocol_error"


class Unauthorized(EngineError):
    """The other side does not accept the shared token."""

    code = "unauthorized"


class UnknownEngine(EngineError):
    """The endpoint serves no engine of this name."""

    code = "unknown_engine"


class AlreadyConnected(EngineError):
    """Another process is connected under this side's identity, and answers."""

    code = "already_connected"


class UnknownConnection(EngineError):
    """The side that was dialled does not know, or no longer knows, the connection that is to be resumed."""

    code = "unknown_connection"


Id = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0)]


class Frame(msgspec.Struct, array_like=True, tag_field="type"):
    """session: 0 where a frame is about none; seq: the request's number, 0 where a frame answers none."""

    session: Id
    seq: Id


class RequestFrame(Frame):
    engine: str


class Open(RequestFrame, tag=1):
    prompt: bytes
    sampling: Sampling
    log: bytes


class Generate(RequestFrame, tag=2):
    pass


class Verify(RequestFrame, tag=3):
    ids: bytes
    probs: DraftProbs | None = None


class Draft(RequestFrame, tag=4):
    position: Count
    ids: bytes
    window: Count


class Extend(RequestFrame, tag=5):
    position: Count
    ids: bytes


class Cancel(RequestFrame, tag=6):
    pass


class Forward(RequestFrame, tag=7):
    """Hidden states of prompt and output positions from `position` on, to be run through a part of a model; the last
    `wanted` of them come back."""

    position: Count
    hidden: Tensor
    wanted: Count


class GetStats(RequestFrame, tag=8):
    pass


class Abandon(RequestFrame, tag=9):
    """The caller no longer waits for the operation `seq`: stop it. Has no reply."""


class Ping(Frame, tag=10):
    """Either side asks whether the other lives, and how far it is; the answer is Pong. received: as in Ack."""

    received: Id = 0


class Hello(RequestFrame, tag=11):
    """First frame of a connection, from the side that dialled: who it is and what it serves itself.

    resume_s: how long it would wait for the other side, should the connection break.
    name: of the connection that is to be resumed; empty: a new one.
    received: as in Ack.
    instance: identifies the dialling process, in all its connections; empty: unknown.
    """

    token: str
    engines: dict[str, EngineInfo]
    resume_s: Seconds = 0.0
    name: bytes = b""
    received: Id = 0
    instance: bytes = b""


class Ack(Frame, tag=12):
    """Number of frames of this connection that its sender has received. Only those after hello count, without Ping,
    Pong, Ack and Bye."""

    received: Id


class Bye(Frame, tag=13):
    """Announces that the connection is closed on purpose and will not be resumed."""


class GetInfo(RequestFrame, tag=14):
    """Request of an engine's info, for engines that came after hello."""


class Ask(RequestFrame, tag=15):
    """Request that concerns no engine: a method by name, and its argument, as both sides have agreed."""

    method: str
    body: bytes


class Welcome(Frame, tag=32):
    """Answer to Hello: what the side that was dialled serves.

    resume_s: how long both sides wait for each other, should the connection break; 0: not at all.
    name: the secret with which the side that dialled resumes it.
    received: as in Ack.
    """

    engines: dict[str, EngineInfo]
    resume_s: Seconds = 0.0
    name: bytes = b""
    received: Id = 0


class Done(Frame, tag=33):
    pass


class Tokens(Frame, tag=34):
    ids: bytes
    finish: str | None = None
    logprobs: list[TokenLogprob] | None = None

    @property
    def billed(self) -> Usage | None:
        """Bill of a service for the stream; None if there is none."""
        return None


class LastTokens(Tokens, tag=43):
    """The last tokens of a service's stream, with its bill: only these cost the wire its bytes."""

    usage: Usage | None = None

    @property
    def billed(self) -> Usage | None:
        return self.usage


class Drafts(Frame, tag=35):
    ids: bytes
    probs: DraftProbs | None = None
    took_s: float = 0.0


class Verdict(Frame, tag=36):
    accepted: Count
    ids: bytes
    finish: str | None = None
    logprobs: list[TokenLogprob] | None = None


class Hidden(Frame, tag=37):
    forwarded: Forwarded


class StatsReply(Frame, tag=38):
    stats: EngineStats


class Pong(Frame, tag=40):
    """Answer to Ping. received: as in Ack."""

    received: Id = 0


class Info(Frame, tag=41):
    info: EngineInfo


class AskReply(Frame, tag=42):
    """Result of an Ask's method."""

    body: bytes


class Error(Frame, tag=39):
    """An operation failed; with session and seq 0, the whole connection did and is closed."""

    code: str
    message: str
    retry_after_s: float = 0.0

    @classmethod
    def of(cls, error: EngineError, session: int = 0, seq: int = 0) -> Error:
        return cls(session, seq, error.code, str(error), getattr(error, "retry_after_s", 0.0))

    def exception(self) -> EngineError:
        """The error as the class it was raised as; an unknown code becomes an EngineError that carries it."""
        kind = _ERRORS.get(self.code)
        if kind is not None and issubclass(kind, NoCapacity):
            return kind(self.message, self.retry_after_s)
        if kind is not None:
            return kind(self.message)
        error = EngineError(self.message)
        error.code = self.code
        return error


_ERRORS: dict[str, type[EngineError]] = {
    kind.code: kind
    for kind in [
        *vars(base).values(),
        ProtocolError,
        Unauthorized,
        AlreadyConnected,
        UnknownEngine,
        UnknownConnection,
    ]
    if isinstance(kind, type) and issubclass(kind, EngineError)
}

AnyFrame = (
    Open | Generate | Verify | Draft | Extend | Cancel | Forward | GetStats | GetInfo | Ask | Abandon | Ping | Hello
    | Ack | Bye | Welcome | Done | Tokens | LastTokens | Drafts | Verdict | Hidden | StatsReply | Info | AskReply
    | Pong | Error
)  # fmt: skip

REQUESTS: dict[type[base.Operation[Any]], tuple[Callable[[Any, int, str], RequestFrame], type[Frame]]] = {
    base.Verify: (lambda o, session, engine: Verify(session, 0, engine, pack_ids(o.ids), o.probs), Verdict),
    base.Draft: (lambda o, s, engine: Draft(s, 0, engine, o.position, pack_ids(o.ids), o.window), Drafts),
    base.Extend: (lambda o, session, engine: Extend(session, 0, engine, o.position, pack_ids(o.ids)), Done),
    base.Forward: (lambda o, s, engine: Forward(s, 0, engine, o.position, o.hidden, o.wanted), Hidden),
}
"""The frame of an operation, from it, session and engine; and the kind of frame that answers it."""

REPLIES: dict[type[Any], Callable[[Any, int, int], Frame]] = {
    base.Verdict: lambda r, s, seq: Verdict(s, seq, r.accepted, pack_ids(r.ids), r.finish, r.logprobs),
    base.Drafts: lambda r, session, seq: Drafts(session, seq, pack_ids(r.ids), r.probs, r.took_s),
    type(None): lambda _, session, seq: Done(session, seq),
    Forwarded: lambda r, session, seq: Hidden(session, seq, r),
}
"""The frame of an operation's result, from it, session and sequence number."""

CARRIED: dict[type[Frame], Callable[[Any], Any]] = {
    Verify: lambda f: _checked(base.Verify(unpack_ids(f.ids), f.probs)),
    Draft: lambda f: base.Draft(f.position, unpack_ids(f.ids), f.window),
    Extend: lambda f: base.Extend(f.position, unpack_ids(f.ids)),
    Forward: lambda f: base.Forward(f.position, f.hidden, f.wanted),
    Verdict: lambda f: base.Verdict(f.accepted, unpack_ids(f.ids), f.finish, f.logprobs),
    Drafts: lambda f: base.Drafts(unpack_ids(f.ids), f.probs, f.took_s),
    Done: lambda f: None,
    Hidden: lambda f: f.forwarded,
}
"""The operation or the result of a frame; raises ProtocolError if it is malformed."""


def _checked(verify: base.Verify) -> base.Verify:
    probs, ids = verify.probs, verify.ids
    if probs is not None and not len(probs.ids) == len(probs.probs) == 4 * probs.width * len(ids):
        raise ProtocolError("the draft's distributions do not fit its tokens")
    return verify


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def encode(frame: Frame) -> bytearray:
    """Header and body of a frame, ready to be sent."""
    data = bytearray(HEADER.size)
    _encoder.encode_into(frame, data, HEADER.size)
    HEADER.pack_into(data, 0, len(data) - HEADER.size, VERSION)
    return data


def decode(body: bytes | bytearray | memoryview) -> AnyFrame:
    """The frame of a body; raises ProtocolError. A tensor's data is a view of `body`, not a copy."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"malformed frame: {error}") from None


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids in 2, 3 or 4 bytes each, as the largest needs; raises InvalidRequest beyond 32 bits."""
    try:
        return b"\2" + array("H", ids).tobytes()
    except OverflowError:
        pass
    if min(ids) < 0 or max(ids) >= 2**32:
        raise InvalidRequest("token ids must be between 0 and 2^32 - 1")
    wide = np.asarray(ids, "<u4").view(np.uint8).reshape(-1, 4)
    width = 3 if max(ids) < 2**24 else 4
    return bytes([width]) + wide[:, :width].tobytes()


def pack_bits(ids: Sequence[int], vocab_size: int) -> bytes:
    """Pack token ids of a known vocabulary in ⌈log2 V⌉ bits each, most significant first, for long lists.

    Raises InvalidRequest for an id outside the vocabulary.
    """
    bits = max(1, (vocab_size - 1).bit_length())
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise InvalidRequest(f"token ids must be between 0 and {vocab_size - 1}")
    rows = (np.asarray(ids, np.int64)[:, None] >> np.arange(bits - 1, -1, -1)) & 1
    return _BITS.pack(_IN_BITS | bits, len(ids)) + np.packbits(rows.astype(np.uint8)).tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """The token ids of `pack_ids` or `pack_bits`; raises ProtocolError for anything else."""
    width, size = data[0] if data else 0, len(data) - 1
    if width & _IN_BITS:
        return _unpack_bits(data, width & ~_IN_BITS)
    if width not in (2, 3, 4) or size % width:
        raise ProtocolError("malformed token ids")
    if width == 2:
        ids = array("H")
        ids.frombytes(memoryview(data)[1:])
        return ids.tolist()
    wide = np.zeros((size // width, 4), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8, offset=1).reshape(-1, width)
    return wide.view("<u4").ravel().tolist()


_IN_BITS = 0x80
_BITS = struct.Struct("<BI")


def _unpack_bits(data: bytes, bits: int) -> list[int]:
    if len(data) < _BITS.size or not 1 <= bits <= 32:
        raise ProtocolError("malformed token ids")
    count = _BITS.unpack_from(data)[1]
    if len(data) != _BITS.size + -(-count * bits // 8):
        raise ProtocolError("malformed token ids")
    rows = np.unpackbits(np.frombuffer(data, np.uint8, offset=_BITS.size), count=count * bits)
    ids = rows.reshape(count, bits).astype(np.int64) @ (1 << np.arange(bits - 1, -1, -1))
    unpacked: list[int] = ids.tolist()
    return unpacked
