"""Ports that gateways need, tried before anything starts."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tandem.app.cli.server.local_ray import free_port
from tandem.app.cli.server.ports import check_ports
from tandem.app.settings import Settings

API = ("127.0.0.1", 1)


def with_gateway(**gateway: Any) -> Settings:
    return Settings.model_validate({"gateway": gateway})


def test_what_is_free_or_ours_is_not_refused() -> None:
    check_ports({"one": with_gateway(port=free_port()), "two": with_gateway(port=0), "none": Settings()}, API)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = other.getsockname()
        check_ports({"one": with_gateway(port=address[1])}, API, ours=[address])


def test_what_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ValueError, match=rf"gateway.port: 127.0.0.1:{port} cannot be used \(Address already"
        ):
            check_ports({"one": with_gateway(port=port)}, API)


def test_no_two_have_one_port() -> None:
    both = with_gateway(port=(port := free_port()))
    with pytest.raises(
        ValueError, match=f"gateway.port: {port} is that of the gateway of application one, too"
    ):
        check_ports({"one": both, "two": both}, API)
    with pytest.raises(ValueError, match=f"gateway.port: {port} is that of the API, too"):
        check_ports({"one": both}, ("127.0.0.1", port))
