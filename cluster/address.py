"""The address under which others reach what listens here."""

from __future__ import annotations

import ray


def reachable(address: str) -> str:
    """The address to publish for one that listens: a wildcard host is no address to dial, the Ray node's is."""
    host, _, port = address.rpartition(":")
    return f"{ray.util.get_node_ip_address()}:{port}" if host in ("0.0.0.0", "[::]") else address
