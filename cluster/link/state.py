"""State of a link, as operators see it."""

from __future__ import annotations

import msgspec


class LinkState(msgspec.Struct, frozen=True):
    """Bandwidth and loss of a link, as emulated, or as measured.

    up_bytes_per_s, down_bytes_per_s: bandwidth from and to the device; as measured, the rate at which it last took
        frames; None: no limit, or not known.
    loss: share of frames that are lost and sent again.
    """

    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    loss: float = 0.0
