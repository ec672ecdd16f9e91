"""Devices of one's own at `tandem up --gateway`: the gateway's certificate, and the first device's key."""

from __future__ import annotations

from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from tandem.app.cli.server import invitation
from tandem.app.cli.server.invitation import CERTIFICATE, PRIVATE, invite, named, open_gateway
from tandem.app.client.http import ClientError
from tandem.app.device.settings import DeviceProgram
from tandem.app.settings import Settings
from tandem.cluster.wire.tls import fingerprint


class Api:
    """Keys as the API has them."""

    def __init__(self) -> None:
        self.keys: dict[str, dict[str, Any]] = {}
        self.made = 0

    def __call__(self, address: str) -> Api:
        return self

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/v1/keys"
        return {"data": list(self.keys.values())}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.made += 1
        if path == "/v1/keys":
            self.keys[body["name"]] = {"id": "key-1", **body}
        else:
            assert path == "/v1/keys/key-1/rotate"
        return {"secret": f"tandem-secret{self.made}"}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(invitation, "HttpClient", api := Api())
    return api


def test_the_gateway_has_a_certificate_that_later_starts_keep(api: Api) -> None:
    args: dict[str, Any] = {"model": "tandem"}
    open_gateway(args, 8443)
    settings = Settings.model_validate(args)
    assert settings.gateway is not None
    assert settings.gateway.tls is not None
    settings.gateway.tls.context()  # raises where certificate and key do not belong together
    assert S_IMODE(PRIVATE.stat().st_mode) == 0o600
    before = CERTIFICATE.read_bytes()
    open_gateway(again := {"model": "tandem"}, 8443)
    assert (again, CERTIFICATE.read_bytes()) == (args, before)
    with pytest.raises(ClientError, match="a gateway of its own"):
        open_gateway(args, 8443)


def test_the_first_key_names_the_certificate_and_is_made_once(api: Api) -> None:
    open_gateway(args := {"model": "tandem"}, 8443)
    settings = Settings.model_validate(args)
    file, command = invite("http://127.0.0.1:8000", settings)
    assert S_IMODE(file.stat().st_mode) == 0o600
    words = command.split()
    program = DeviceProgram.model_validate({"connect": words[words.index("--connect") + 1], "key": file})
    assert program.secret() == "tandem-secret1"
    assert file.read_text().strip().endswith(fingerprint(CERTIFICATE))
    assert invite("http://127.0.0.1:8000", settings) == (file, command)
    assert api.made == 1
    file.unlink()  # it is lost, and the ledger has only its hash
    assert invite("http://127.0.0.1:8000", settings)[0].read_text().startswith("tandem-secret2.")
    api.keys.clear()  # another ledger
    assert invite("http://127.0.0.1:8000", settings)[0].read_text().startswith("tandem-secret3.")
    CERTIFICATE.unlink()  # another certificate, which the key does not name
    open_gateway({"model": "tandem"}, 8443)
    assert invite("http://127.0.0.1:8000", settings)[0].read_text().strip().endswith(fingerprint(CERTIFICATE))
    assert api.made == 4


def test_a_certificate_of_an_authority_is_not_named(api: Api, tmp_path: Path) -> None:
    tls = {"certificate": str(tmp_path / "api.pem"), "key": str(tmp_path / "api.key")}
    gateway = {"host": "0.0.0.0", "tls": tls}
    assert named(Settings.model_validate({"model": "tandem", "gateway": gateway})) == ""
    assert named(Settings.model_validate({"model": "tandem"})) == ""
