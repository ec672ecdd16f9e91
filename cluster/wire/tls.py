"""TLS: between this application's processes, where both sides show a certificate of its own authority; and between
its gateway and devices elsewhere, where the gateway shows one and a device has a key."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import os
import ssl
from pathlib import Path

NAMED = "."
"""Mark in a device's key before the fingerprint of the gateway's certificate."""


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


def pinned(fingerprint: str) -> ssl.SSLContext:
    """Return a device's TLS context that accepts the gateway's certificate with this fingerprint, whatever its name and
    signer, and no other one."""

    class Pinned(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            shown = self.getpeercert(binary_form=True)
            if shown is None or not hmac.compare_digest(_digest(shown), fingerprint):
                raise ssl.SSLCertVerificationError(
                    "the gateway shows another certificate than the one that the key names: it is another server, "
                    "or its certificate was made anew"
                )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.sslobject_class = Pinned
    return context


def fingerprint(certificate: Path) -> str:
    """Return the fingerprint of a PEM file's first certificate: its SHA-256 in URL-safe base64. Raises OSError,
    ValueError."""
    text = certificate.read_text(encoding="ascii")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if end not in text:
        raise ValueError(f"{certificate} is no certificate")
    return _digest(ssl.PEM_cert_to_DER_cert(begin + text.partition(begin)[2].partition(end)[0] + end))


def self_signed(certificate: Path, key: Path, name: str, lasts: datetime.timedelta) -> None:
    """Write a certificate that signs itself, and its key, which only its owner can read, as PEM files.

    name: IP address or host name that it is for. lasts: from now on. Raises OSError.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    try:
        for_name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        for_name = x509.DNSName(name)
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Tandem")])
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + lasts)
        .add_extension(x509.SubjectAlternativeName([for_name]), critical=False)
        .sign(private, hashes.SHA256())
    )
    key.unlink(missing_ok=True)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(private.private_bytes(serialization.Encoding.PEM, *form))
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def _digest(certificate: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(certificate).digest()).decode().rstrip("=")


def _show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def passphrase() -> str:
        raise ValueError(f"{key} needs a passphrase; `openssl pkey -in {key}` writes it without one")

    for file in (certificate, key):
        file.open("rb").close()  # as this error names the file
    try:
        context.load_cert_chain(certificate, key, passphrase)
    except ssl.SSLError as error:
        raise ValueError(f"{certificate} and {key} are no certificate and its key: {error}") from None
