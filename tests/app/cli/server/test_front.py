"""Front of the API: what the command line and a Serve YAML say about address and certificate, and what is refused."""

from __future__ import annotations

import datetime
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tandem.app.cli.main import cli
from tandem.app.cli.server.front import Front, Wishes, behind, certificate, front_of
from tandem.app.client.http import ClientError
from tandem.app.settings import Settings
from tandem.deployments.config.settings import ServerTls
from tests.cluster.certificate import make_certificate

EVERYWHERE: dict[str, Any] = {"http_options": {"host": "0.0.0.0", "port": 8443}}
NO_WISHES = Wishes()


@pytest.fixture
def tls(tmp_path: Path) -> ServerTls:
    shown, key = make_certificate(tmp_path)
    return ServerTls(certificate=shown, key=key)


def front(deployment: dict[str, Any], wishes: Wishes = NO_WISHES, **api: Any) -> Front:
    return front_of(deployment, [Settings.model_validate({"api": api})], wishes)


def test_it_imports_no_ray() -> None:
    """Ray reads its environment as it is imported, and `tandem deploy` sets that before it reads the settings."""
    code = "import sys, tandem.app.cli.server.up; print('ray' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_the_default_is_this_machine_without_tls() -> None:
    assert front({}) == Front("127.0.0.1", 8000)
    assert front({}).address == "http://127.0.0.1:8000"
    assert front({}).pem() == b""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "api.example"])
def test_beyond_this_machine_it_needs_tls_unless_told_aloud(host: str, tls: ServerTls) -> None:
    deployment = {"http_options": {"host": host}}
    with pytest.raises(
        ValueError, match=f"^listening on {host}, beyond this machine, needs TLS: .*--tls-cert"
    ):
        front(deployment)
    with pytest.raises(ValueError, match="needs TLS"):
        front({}, Wishes(host=host))
    assert front(deployment, insecure=True).tls is None
    assert front(deployment, Wishes(insecure=True)).tls is None
    assert front(deployment, tls=tls).address.startswith("https://")
    assert front(deployment, Wishes(tls=tls)).tls == tls


def test_the_command_line_goes_before_the_yaml(tls: ServerTls) -> None:
    other = ServerTls(certificate="/nowhere/cert.pem", key="/nowhere/key.pem")
    found = front(EVERYWHERE, Wishes("127.0.0.1", 9000, tls), tls=other)
    assert found == Front("127.0.0.1", 9000, tls)


def test_what_serve_calls_ssl_is_the_same(tls: ServerTls) -> None:
    files = {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
    deployment = {"http_options": {"host": "0.0.0.0", **files}}
    found = front(deployment)
    assert found.tls == tls
    behind(found, deployment)
    assert deployment["http_options"] == {"host": "127.0.0.1", "port": 8000}, "HAProxy does both"
    with pytest.raises(ValueError, match="ssl_ca_certs: .* HAProxy"):
        front({"http_options": {"ssl_ca_certs": "ca.pem"}})


def test_one_address_has_one_certificate(tls: ServerTls, tmp_path: Path) -> None:
    other = ServerTls(certificate=tls.key, key=tls.certificate)
    applications = [Settings.model_validate({"api": {"tls": each}}) for each in (tls, other)]
    with pytest.raises(ValueError, match="one address has one certificate"):
        front_of({}, applications, NO_WISHES)


def test_files_are_found_from_any_folder(
    tls: ServerTls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert front({}, tls={"certificate": "cert.pem", "key": "key.pem"}).tls == tls


@pytest.mark.parametrize(
    ("host", "bind"), [("0.0.0.0", "0.0.0.0:1"), ("::", "[::]:1 v4v6"), ("::1", "[::1]:1")]
)
def test_haproxys_spelling(host: str, bind: str) -> None:
    assert Front(host, 1).bind == bind


def test_a_record_of_it_is_it_again(tls: ServerTls) -> None:
    for each in (Front("::", 8443, tls), Front("127.0.0.1", 8000)):
        assert Front.of(each.as_json()) == each


def test_a_certificate_and_its_key_belong_together(tls: ServerTls) -> None:
    assert certificate(None, None) is None
    assert certificate(tls.certificate, tls.key) == tls
    for pair in ((tls.certificate, None), (None, tls.key)):
        with pytest.raises(ClientError, match="--tls-cert and --tls-key belong together"):
            certificate(*pair)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key belong together"),
        (["--host", "0.0.0.0"], "listening on 0.0.0.0, beyond this machine, needs TLS"),
        (["--tls-cert", "none.pem", "--tls-key", "none.pem"], "api.tls: [Errno 2] No such file or directory"),
        (
            ["--base-url", "http://127.0.0.1:1/v1"],
            "--base-url, --tokenizer and --key-env belong to --engine openai",
        ),
        (["--engine", "openai", "--model", "big"], "give --base-url"),
        (["--drafter", "small"], "--drafter, --device-model, --engine and --print-config belong to --model"),
    ],
)
def test_the_command_is_refused_before_anything_starts(options: list[str], says: str) -> None:
    told = CliRunner().invoke(cli, ["up", *options])
    assert told.exit_code == 1
    assert says in told.stderr


def test_files_of_no_use_are_refused_with_a_remedy(tls: ServerTls, tmp_path: Path) -> None:
    def refusal(shown: Path, key: Path) -> str:
        with pytest.raises(ValueError, match=r"^api\.tls: ") as refused:
            front({}, tls={"certificate": shown, "key": key})
        return str(refused.value)

    assert "No such file or directory: '/nowhere/key.pem'" in refusal(
        tls.certificate, Path("/nowhere/key.pem")
    )
    assert "are no certificate and its key" in refusal(tls.key, tls.key)
    (folder := tmp_path / "other").mkdir()
    assert "are no certificate and its key" in refusal(tls.certificate, make_certificate(folder)[1])
    locked = tmp_path / "locked.pem"
    lock = ["openssl", "pkey", "-in", tls.key, "-aes256", "-passout", "pass:secret", "-out", locked]
    subprocess.run(lock, check=True)
    assert f"{locked} needs a passphrase; `openssl pkey -in" in refusal(tls.certificate, locked)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    shown, key = make_certificate(tmp_path, lasts=datetime.timedelta(seconds=-1))
    with pytest.raises(ValueError, match=r"^api\.tls: clients would refuse the certificate: .*expired"):
        front({}, tls={"certificate": shown, "key": key})


def test_it_is_trusted_from_here_under_any_name(tls: ServerTls) -> None:
    trust = Front("0.0.0.0", 1, tls).trust()
    assert isinstance(trust, ssl.SSLContext)
    assert not trust.check_hostname
    assert trust.verify_mode is ssl.CERT_REQUIRED
