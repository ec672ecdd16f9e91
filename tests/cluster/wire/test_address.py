"""Addresses: which hosts mean this machine only, and what is published of a listening one."""

from __future__ import annotations

import pytest
import ray

from tandem.cluster.wire.address import is_loopback, reachable


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_this_machine_only(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "fe80::1", "example.org", "localhost.example.org", ""]
)
def test_beyond_this_machine(host: str) -> None:
    """Also a name, which may stand for any."""
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("listening", "published"),
    [
        ("0.0.0.0:80", "10.1.2.3:80"),
        ("[::]:80", "10.1.2.3:80"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("[::1]:80", "[::1]:80"),
    ],
)
def test_a_wildcard_is_published_as_the_nodes_host(
    listening: str, published: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.1.2.3")
    assert reachable(listening) == published
