"""TLS between this application's processes: both sides show a certificate of one authority, the application's own."""

from __future__ import annotations

import ssl
from pathlib import Path


def contexts(certificate: Path, key: Path, authority: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(for whoever listens, for whoever dials), from PEM files. Raises OSError, ValueError."""
    made = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        context = ssl.create_default_context(purpose, cafile=str(authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # processes come and go at any address: the authority vouches for them
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise ValueError(f"{certificate} and {key} are no certificate and its key: {error}") from None
        made.append(context)
    return made[0], made[1]
