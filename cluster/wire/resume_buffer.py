"""Buffer with which one side of a connection survives a break, without clocks and sockets.

Both sides number the frames of each direction, implicitly and from 1. A side keeps sent frames until the other
acknowledges them by number; after a break it sends the remaining ones again.
"""

from __future__ import annotations

from collections import deque

from tandem.cluster.wire.frames import ProtocolError

ACK_BYTES = 64 * 1024  # received bytes after which the other side gets an Ack
_FRAME_BYTES = 64  # that a kept frame takes beside its data


class ResumeBuffer:
    """Buffer of one side of a connection.

    name: secret by which both sides know the connection.
    resume_s: seconds that they wait for each other.
    sent, received: numbers of frames.
    kept_bytes: size of the frames that the other side has not acknowledged; never more than `limit_bytes`.
    """

    def __init__(self, name: bytes, resume_s: float, limit_bytes: int) -> None:
        self.name, self.resume_s, self.limit_bytes = name, resume_s, limit_bytes
        self.sent = self.received = self.kept_bytes = 0
        self._kept: deque[bytearray] = deque()
        self._untold_bytes = 0

    def keep(self, data: bytearray) -> bool:
        """Count a frame that is sent now or later; False, and it is not kept, if there is no room."""
        size = len(data) + _FRAME_BYTES
        if self.kept_bytes + size > self.limit_bytes:
            return False
        self.sent += 1
        self.kept_bytes += size
        self._kept.append(data)
        return True

    def check(self, received: int) -> None:
        """Check that the other side can have received this many frames, and that later ones are still kept; raises
        ProtocolError."""
        if not self.sent - len(self._kept) <= received <= self.sent:
            raise ProtocolError(f"{received} frames cannot have been received of {self.sent}")

    def acknowledged(self, received: int) -> None:
        """Drop the frames that the other side has received. Raises ProtocolError if fewer were sent."""
        self.check(received)
        while self.sent - len(self._kept) < received:
            self.kept_bytes -= len(self._kept.popleft()) + _FRAME_BYTES

    def missing(self) -> bytes:
        """Return the frames that the other side has not acknowledged, to be sent again."""
        return b"".join(self._kept)

    def take(self, size_bytes: int) -> bool:
        """Count a received frame; return whether it is time to tell the other side."""
        self.received += 1
        self._untold_bytes += size_bytes + _FRAME_BYTES
        return self._untold_bytes >= ACK_BYTES

    def tell(self) -> int:
        """Return the number of received frames, for a frame that tells the other side."""
        self._untold_bytes = 0
        return self.received
