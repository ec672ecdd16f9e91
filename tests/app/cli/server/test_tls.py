"""`tandem up` with a certificate, on every interface: clients over TLS, and a certificate that is renewed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import yaml

from tandem.app.cli.server.local_ray import free_port
from tandem.app.cli.server.up import RECORD
from tests.app.cli.server.test_up import least, listening, whole
from tests.app.cli.started import started
from tests.cluster.certificate import make_certificate

pytestmark = [
    pytest.mark.slow,  # another Ray
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("ray"),
]
TANDEM = str(Path(sys.executable).with_name("tandem"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module", autouse=True)
def server(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`tandem up` in that folder, which has its certificate's files."""
    config = least(folder)
    certificate, key = make_certificate(folder)
    deployment = yaml.safe_load(config.read_text())
    deployment["http_options"] |= {"host": "0.0.0.0", "port": free_port()}
    deployment["applications"][0]["args"]["api"] = {"tls": {"certificate": str(certificate), "key": str(key)}}
    config.write_text(yaml.safe_dump(deployment))
    with started(folder, config) as process:
        yield process


@pytest.fixture
def url(folder: Path) -> str:
    return str(json.loads((folder / RECORD).read_text())["address"])


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a `tandem` command there."""
    return subprocess.run(
        [TANDEM, *arguments], cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )


def test_clients_that_have_the_authoritys_file(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = str(folder / "cert.pem")
    assert url.startswith("https://127.0.0.1:")
    trusting = command(folder, "usage", "--json", SSL_CERT_FILE=authority)
    assert trusting.returncode == 0, trusting.stderr
    assert json.loads(trusting.stdout) == []
    refused = command(folder, "usage")
    assert refused.returncode == 1
    assert re.search(r"is not trusted .*SSL_CERT_FILE", refused.stderr)
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "Hi"}]
        stream = client.chat.completions.create(
            model="tandem", messages=messages, max_tokens=5, temperature=0, stream=True
        )  # type: ignore[call-overload]
        assert "length" in [choice.finish_reason for chunk in stream for choice in chunk.choices]
    assert "<title>Tandem</title>" in httpx.get(url).text


def test_nothing_answers_without_tls(server: subprocess.Popen[str], url: str) -> None:
    """Replicas, which speak plain HTTP to HAProxy, least of all."""
    plain = url.replace("https", "http")
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(plain)
    found = listening(whole(server))
    everywhere = {program for program, addresses in found.items() if addresses & {"00000000", "0" * 32}}
    assert "haproxy" in everywhere
    assert everywhere <= {"haproxy", "ray::ServeRepli"}


def test_a_renewed_certificate_is_shown_after_deploy(folder: Path, url: str) -> None:
    old = (folder / "cert.pem").read_bytes()
    host, port = url.removeprefix("https://").split(":")
    (renewed := folder / "renewed").mkdir()
    for file in make_certificate(renewed):
        shutil.copy(file, folder)
    done = command(folder, "deploy", "--config", "least.yaml")
    assert done.returncode == 0, done.stderr
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    with (
        socket.create_connection((host, int(port))) as tcp,
        context.wrap_socket(tcp, server_hostname=host) as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
    assert shown is not None
    assert ssl.DER_cert_to_PEM_cert(shown).encode() == (folder / "cert.pem").read_bytes() != old


def test_tls_does_not_end_or_begin_with_a_deploy(folder: Path) -> None:
    """Without the setting it goes on with the certificate that it has."""
    config = yaml.safe_load((folder / "least.yaml").read_text())
    del config["applications"][0]["args"]["api"]
    (folder / "plain.yaml").write_text(yaml.safe_dump(config))
    done = command(folder, "deploy", "--config", "plain.yaml")
    assert done.returncode == 0, done.stderr
