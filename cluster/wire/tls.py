"""TLS: between this application's processes, where both sides show a certificate of its own authority; and between
its gateway and devices elsewhere, where the gateway shows one and a device has a key."""

from __future__ import annotations

import ssl
from pathlib import Path


def contexts(certificate: Path, key: Path, authority: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS contexts of listener and dialler, from PEM files. Raises OSError, ValueError."""
    made = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        context = ssl.create_default_context(purpose, cafile=str(authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # processes come and go at any address: the authority vouches for them
        context.verify_mode = ssl.CERT_REQUIRED
        _show(context, certificate, key)
        made.append(context)
    return made[0], made[1]


def serving(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a server's TLS context, from PEM files. Raises OSError, ValueError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _show(context, certificate, key)
    return context


def trusting(authority: Path | None) -> ssl.SSLContext:
    """Return a device's TLS context: the gateway's certificate must match the dialled name, and be signed by this
    authority (None: by one that this machine trusts). Raises OSError, ValueError."""
    try:
        said = None if authority is None else authority.read_text(encoding="ascii")
        context = ssl.create_default_context(cadata=said)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise ValueError(f"{authority} is no certificate of an authority: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def passphrase() -> str:
        raise ValueError(f"{key} needs a passphrase; `openssl pkey -in {key}` writes it without one")

    for file in (certificate, key):
        file.open("rb").close()  # as this error names the file
    try:
        context.load_cert_chain(certificate, key, passphrase)
    except ssl.SSLError as error:
        raise ValueError(f"{certificate} and {key} are no certificate and its key: {error}") from None
