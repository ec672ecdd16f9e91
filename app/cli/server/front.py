"""Address of the API that `tandem up` starts, and its certificate: what HAProxy needs to know, and Serve need not."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.app.client.http import ClientError
from tandem.app.exposure import check_exposure
from tandem.deployments.config.settings import ServerTls

if TYPE_CHECKING:
    from tandem.app.settings import Settings  # imports Ray

LOOPBACK = {"host": "127.0.0.1", "port": 8000}
"""Default address if the Serve YAML has none: Serve's own default is every interface."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""Address to dial for a server that listens on every interface."""
Trust = ssl.SSLContext | bool
"""Type of httpx's `verify`; True: this machine's authorities."""
UNSERVED = "ssl_keyfile_password", "ssl_ca_certs"
"""Options of Ray's own proxy that HAProxy is not told."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Choices of the command line that go before those of a Serve YAML. None, or False: the YAML's.

    host, port: address of the API.
    tls: its certificate.
    insecure: whether other machines may reach it without TLS.
    """

    host: str | None = None
    port: int | None = None
    tls: ServerTls | None = None
    insecure: bool = False


AS_CONFIGURED = Wishes()


@dataclass(frozen=True, slots=True)
class Front:
    """The address at which the API answers, and its certificate; None: it does not speak TLS."""

    host: str
    port: int
    tls: ServerTls | None = None

    @property
    def address(self) -> str:
        """Address of the API, from this machine."""
        name = EVERYWHERE.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
        return f"{'https' if self.tls else 'http'}://{name}:{self.port}"

    @property
    def bind(self) -> str:
        """Address as HAProxy's configuration has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}{' v4v6' if self.host == '::' else ''}"

    def pem(self) -> bytes:
        """Return key and certificate as HAProxy takes them; empty without TLS."""
        return (
            b"" if self.tls is None else self.tls.key.read_bytes() + b"\n" + self.tls.certificate.read_bytes()
        )

    def as_json(self) -> dict[str, Any]:
        """Return what `of` makes a front of."""
        tls = None if self.tls is None else self.tls.model_dump(mode="json")
        return {"host": self.host, "port": self.port, "tls": tls}

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Front:
        """Return the front that `as_json` describes."""
        return cls(said["host"], said["port"], said["tls"] and ServerTls.model_validate(said["tls"]))

    def trust(self) -> Trust:
        """Return what httpx verifies the API with, from here."""
        return True if self.tls is None else _trusting(self.tls)


def certificate(file: Path | None, key: Path | None) -> ServerTls | None:
    """Return the certificate of --tls-cert and --tls-key. Raises ClientError where one of them is missing."""
    if file is None and key is None:
        return None
    if file is None or key is None:
        raise ClientError("--tls-cert and --tls-key belong together: a certificate, and its key")
    return ServerTls(certificate=file, key=key)


def front_of(deployment: dict[str, Any], applications: Iterable[Settings], wishes: Wishes) -> Front:
    """Return the front of a checked Serve YAML. Raises ValueError, OSError for one that is of no use."""
    options: Mapping[str, Any] = LOOPBACK | deployment.get("http_options", {})
    if wrong := [name for name in UNSERVED if options.get(name)]:
        raise ValueError(
            f"http_options.{wrong[0]}: `tandem up` serves through HAProxy, which does not take it"
        )
    certificates = {settings.api.tls for settings in applications} - {None}
    if options.get("ssl_certfile"):
        certificates.add(ServerTls(certificate=options["ssl_certfile"], key=options["ssl_keyfile"]))
    if len(certificates) > 1:
        raise ValueError("api.tls: one address has one certificate, and here are several")
    tls = wishes.tls or next(iter(certificates), None)
    insecure = wishes.insecure or any(settings.api.insecure for settings in applications)
    front = Front(wishes.host or options["host"], wishes.port or options["port"], tls)
    if tls is not None:
        absolute = ServerTls(certificate=tls.certificate.absolute(), key=tls.key.absolute())
        front = replace(front, tls=absolute)
        try:
            _greet(absolute.context(), _trusting(absolute))
        except (ValueError, OSError) as error:
            raise ValueError(f"api.tls: {error}") from None
    check_exposure(front.host, tls is not None, insecure)
    return front


def behind(front: Front, deployment: dict[str, Any]) -> None:
    """Have Serve itself listen on this machine alone and without TLS, as HAProxy does both for it."""
    options = deployment.get("http_options", {})
    ours = {name: value for name, value in options.items() if not name.startswith("ssl_")}
    deployment["http_options"] = ours | {"host": LOOPBACK["host"], "port": front.port}


def _trusting(tls: ServerTls) -> ssl.SSLContext:
    """Return the context of a client that trusts this certificate itself, for whatever name it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(tls.certificate)
    return context


def _greet(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Have a client accept the server's certificate, in memory. Raises ValueError where it does not."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there),
        server.wrap_bio(there, back, server_side=True),
    ]
    for end in ends * 2:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            raise ValueError(f"clients would refuse the certificate: {error.verify_message}") from None
