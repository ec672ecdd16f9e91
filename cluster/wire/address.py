"""Addresses, "host:port": loopback hosts, and the address to publish for a listening socket."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether a host name means this machine only."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def joined(host: str, port: int) -> str:
    """Return the address; an IPv6 host has brackets in it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Return host, without brackets, and port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def reachable(address: str) -> str:
    """Return the address to publish for a listening one: the Ray node's host in place of a wildcard."""
    import ray  # not on devices

    host, _, port = address.rpartition(":")
    return f"{ray.util.get_node_ip_address()}:{port}" if host in ("0.0.0.0", "[::]") else address
