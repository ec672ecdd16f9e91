"""Devices of one's own at a server that `tandem up --gateway` starts: the gateway's certificate, and a first key.

No authority signs the certificate. Its fingerprint stands in the device's key, so that a device accepts this gateway
and no other one, at whatever address it reaches it.
"""

from __future__ import annotations

import datetime
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.app.cli.terminal.secret import place_for
from tandem.app.client.http import ClientError, HttpClient
from tandem.cluster.wire.address import is_loopback, joined
from tandem.cluster.wire.tls import NAMED, fingerprint, self_signed
from tandem.deployments.access.keys import Role

if TYPE_CHECKING:
    from tandem.app.settings import Settings  # imports Ray

FOLDER = Path(".tandem")
CERTIFICATE, PRIVATE = FOLDER / "gateway.pem", FOLDER / "gateway.key"
EVERY_INTERFACE = "0.0.0.0"
DEVICE = "my-laptop"
"""Name of the first device."""
VALID = datetime.timedelta(days=3650)


def open_gateway(args: dict[str, Any], port: int) -> None:
    """Add a gateway to the settings of a Tandem, at every interface of this machine. Raises ClientError if there is
    one."""
    if args.get("gateway") is not None:
        raise ClientError("--gateway: the Serve YAML has a gateway of its own; leave out one of the two")
    if not (CERTIFICATE.exists() and PRIVATE.exists()):
        FOLDER.mkdir(exist_ok=True)
        self_signed(CERTIFICATE, PRIVATE, socket.gethostname(), VALID)
    tls = {"certificate": str(CERTIFICATE.absolute()), "key": str(PRIVATE.absolute())}
    args["gateway"] = {"host": EVERY_INTERFACE, "port": port, "tls": tls}


def invite(address: str, settings: Settings) -> tuple[Path, str]:
    """Return the file with the first device's key, made if it is not there, and the command that starts the device.

    address: of the API. Raises ClientError.
    """
    assert settings.gateway is not None
    file = FOLDER / f"{DEVICE}.key"
    with HttpClient(address) as client:
        known = {key["name"] for key in client.get("/v1/keys")["data"] if key["role"] == Role.DEVICE}
        end = named(settings)
        if DEVICE not in known or not file.exists() or not file.read_text().strip().endswith(end):
            file.unlink(missing_ok=True)  # of a ledger, or a certificate, that is gone
            with place_for(file) as put:
                put(_secret(client, DEVICE in known) + end)
    return file, f"tandem device --connect {reached_at(settings)} --key {shlex.quote(str(file))}"


def named(settings: Settings) -> str:
    """Return the end of a key that names the certificate of this gateway; "" if an authority signed it."""
    gateway = settings.gateway
    if gateway is None or gateway.tls is None or gateway.tls.certificate != CERTIFICATE.absolute():
        return ""
    return NAMED + fingerprint(gateway.tls.certificate)


def reached_at(settings: Settings) -> str:
    """Return the gateway's address for devices, "host:port"."""
    assert settings.gateway is not None
    host = settings.gateway.host
    return joined(host if host not in (EVERY_INTERFACE, "::") else _own_address(), settings.gateway.port)


def _secret(client: HttpClient, exists: bool) -> str:
    """Make the first device's key, or give it another secret, as the last one is lost."""
    if not exists:
        made: Mapping[str, Any] = client.post(
            "/v1/keys", {"name": DEVICE, "role": str(Role.DEVICE), "team": None}
        )
    else:
        (key,) = (key for key in client.get("/v1/keys")["data"] if key["name"] == DEVICE)
        made = client.post(f"/v1/keys/{key['id']}/rotate", {"grace_s": 0.0})
    return str(made["secret"])


def _own_address() -> str:
    """Return this machine's address for others: the one with which it would reach the internet, or its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of an example network; nothing is sent
            found = str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
    return socket.gethostname() if is_loopback(found) else found
