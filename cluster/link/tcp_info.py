"""Measurements that the kernel has of a connection: the rate at which its frames were taken, and how many were lost."""

from __future__ import annotations

import asyncio
import socket
import struct

from tandem.cluster.link.state import LinkState

_SIZE = 216
_RETRANSMITTED = struct.Struct("=I"), 100  # segments
_SENT = struct.Struct("=I"), 156  # segments with data
_DELIVERY_RATE = struct.Struct("=Q"), 160  # bytes/s
"""Fields of Linux's struct tcp_info (include/uapi/linux/tcp.h), and where they begin."""


def measured(transport: asyncio.BaseTransport | None) -> LinkState | None:
    """Return rate and loss towards a device at the other end; None without a connection, or if the kernel is silent."""
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None or not hasattr(socket, "TCP_INFO"):
        return None
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:  # it is closed, or no TCP
        return None
    return parsed(told)


def parsed(told: bytes) -> LinkState | None:
    """Return rate and loss of a struct tcp_info, to two digits, so that noise is no news; None for an old kernel's."""
    if len(told) < _DELIVERY_RATE[1] + _DELIVERY_RATE[0].size:
        return None
    (again,), (sent,), (rate,) = (
        field.unpack_from(told, at) for field, at in (_RETRANSMITTED, _SENT, _DELIVERY_RATE)
    )
    loss = float(f"{again / sent:.2g}") if sent else 0.0
    return LinkState(down_bytes_per_s=float(f"{rate:.2g}") or None, loss=min(loss, 1.0))
