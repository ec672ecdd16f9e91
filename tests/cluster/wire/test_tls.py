"""TLS contexts: who must show a certificate, and which files are refused with their names."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tandem.cluster.wire.tls import contexts, serving, trusting
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
