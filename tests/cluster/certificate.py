"""A self-signed certificate for an address, 127.0.0.1 if no other."""

from __future__ import annotations

import datetime
from pathlib import Path

from tandem.cluster.wire.tls import self_signed

HOUR = datetime.timedelta(hours=1)


def make_certificate(
    folder: Path, address: str = "127.0.0.1", lasts: datetime.timedelta = HOUR
) -> tuple[Path, Path]:
    """Paths of a new certificate and its key. lasts: from now on."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    self_signed(certificate, key, address, lasts)
    return certificate, key
