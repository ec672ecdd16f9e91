"""Ports on which the applications of a Serve YAML listen, tried before anything listens there."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tandem.cluster.wire.address import joined

if TYPE_CHECKING:
    from tandem.app.settings import Settings  # imports Ray

Address = tuple[str, int]


def gateways(applications: Mapping[str, Settings]) -> dict[str, Address]:
    """Return where each application's gateway listens, by the application's name; none for a port that it chooses."""
    found = ((name, settings.gateway) for name, settings in applications.items())
    return {name: (gateway.host, gateway.port) for name, gateway in found if gateway and gateway.port}


def check_ports(applications: Mapping[str, Settings], front: Address, ours: Collection[Address] = ()) -> None:
    """Raise ValueError if a gateway cannot listen.

    front: where the API listens.
    ours: where gateways that are replaced listen already; their successors share the port for a moment.
    """
    taken = {front[1]: "the API"}
    for name, (host, port) in gateways(applications).items():
        if port in taken:
            raise ValueError(f"gateway.port: {port} is that of {taken[port]}, too")
        taken[port] = f"the gateway of application {name}"
        if (host, port) in ours:
            continue
        try:
            probe(host, port)
        except OSError as error:
            raise ValueError(
                f"gateway.port: {joined(host, port)} cannot be used ({error.strerror})"
            ) from None


def probe(host: str, port: int) -> None:
    """Raise OSError if the address is taken, or is not this machine's."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
