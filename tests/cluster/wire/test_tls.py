"""TLS contexts: who must show a certificate, and which files are refused with their names."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tandem.cluster.wire.tls import contexts, fingerprint, pinned, serving, trusting
from tests.cluster.certificate import make_certificate


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path)


def test_between_processes_both_show_a_certificate(files: tuple[Path, Path]) -> None:
    listener, dialler = contexts(*files, files[0])
    for context in (listener, dialler):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert not context.check_hostname, "processes come and go at any address"
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.cert_store_stats()["x509"] == 1, "of this authority alone"
    assert (listener.protocol, dialler.protocol) == (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)


def test_a_gateway_asks_for_no_certificate(files: tuple[Path, Path]) -> None:
    context = serving(*files)
    assert context.protocol is ssl.PROTOCOL_TLS_SERVER
    assert context.verify_mode is ssl.CERT_NONE
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_a_device_checks_the_gateways_name(files: tuple[Path, Path]) -> None:
    ours, any_of_this_machines = trusting(files[0]), trusting(None)
    for context in (ours, any_of_this_machines):
        assert context.protocol is ssl.PROTOCOL_TLS_CLIENT
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert ours.cert_store_stats()["x509"] == 1


async def greet(listening: ssl.SSLContext, dialling: ssl.SSLContext) -> bytes:
    """Return what a server says to a client, over TLS."""

    def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_server(serve, "localhost", 0, ssl=listening) as server:
        host, port = server.sockets[0].getsockname()[:2]
        reader, writer = await asyncio.open_connection(host, port, ssl=dialling)
        said = await reader.read()
        writer.close()
        return said


async def test_a_pinned_certificate_is_accepted_by_any_name_and_no_other_one_is(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        make_certificate(folder, address="203.0.113.7")
    dialling = pinned(fingerprint(ours / "cert.pem"))
    assert await greet(serving(ours / "cert.pem", ours / "key.pem"), dialling) == b"hello"
    with pytest.raises(ssl.SSLCertVerificationError, match="another certificate"):
        await greet(serving(theirs / "cert.pem", theirs / "key.pem"), dialling)
    with pytest.raises(ValueError, match="is no certificate"):
        fingerprint(ours / "key.pem")


def test_what_is_no_certificate_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("not one")
    with pytest.raises(ValueError, match="wrong.pem is no certificate of an authority"):
        trusting(wrong)
    with pytest.raises(ValueError, match="are no certificate and its key"):
        serving(files[0], wrong)
    with pytest.raises(OSError, match="none.pem"):
        trusting(tmp_path / "none.pem")
    for pair in ((tmp_path / "none.pem", files[1]), (files[0], tmp_path / "none.pem")):
        with pytest.raises(OSError, match="none.pem"):
            serving(*pair)
