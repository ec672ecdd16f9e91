"""Addresses: which are this machine's alone, and under which others reach what listens here."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether a host name means this machine only."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def reachable(address: str) -> str:
    """The address to publish for one that listens: a wildcard host is no address to dial, the Ray node's is."""
    import ray  # not on devices

    host, _, port = address.rpartition(":")
    return f"{ray.util.get_node_ip_address()}:{port}" if host in ("0.0.0.0", "[::]") else address
