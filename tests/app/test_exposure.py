"""Refusal of an API that other machines reach without TLS, where Serve already listens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.serve.config import HTTPOptions

from tandem.app.api.http.settings import ApiSettings
from tandem.app.exposure import check_serve
from tandem.app.main import build
from tandem.app.settings import Settings
from tests.conftest import Running

TLS = {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem"}


@pytest.fixture(params=["0"])
def haproxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", request.param)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, haproxy: None) -> dict[str, Any]:
    """Options of a Serve that seems to run."""
    said: dict[str, Any] = {}
    ask = SimpleNamespace(remote=lambda: HTTPOptions(**said))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", lambda *_: SimpleNamespace(get_http_config=ask))
    monkeypatch.setattr(ray, "get", lambda found: found)
    return said


def test_a_misspelt_http_options_shows_the_api_to_nobody(options: dict[str, Any]) -> None:
    """Serve then listens on every interface."""
    options |= {"host": "0.0.0.0"}
    with pytest.raises(ValueError, match=r"^listening on 0\.0\.0\.0, beyond this machine, needs TLS"):
        build(Settings(model="tandem"))
    check_serve(ApiSettings(insecure=True))
    options |= TLS
    check_serve(ApiSettings())


def test_this_machine_needs_none(options: dict[str, Any]) -> None:
    options |= {"host": "127.0.0.1"}
    check_serve(ApiSettings())


@pytest.mark.parametrize("haproxy", ["1"], indirect=True)
def test_serves_own_haproxy_would_speak_plain_http_to_replicas_that_do_not(options: dict[str, Any]) -> None:
    options |= {"host": "0.0.0.0"} | TLS
    with pytest.raises(ValueError, match="HAProxy does not speak TLS"):
        check_serve(ApiSettings())


def test_a_certificate_that_only_tandem_up_shows_is_refused_elsewhere(application: Running) -> None:
    """A real Serve refuses it: `serve deploy` would go on without TLS."""
    with pytest.raises(ValueError, match=r"^api\.tls is for `tandem up`; .*http_options\.ssl_certfile"):
        build(Settings.model_validate({"api": {"tls": {"certificate": "cert.pem", "key": "key.pem"}}}))
