"""A Ray whose own proxy serves the API, as on other clusters: what `serve deploy` refuses, and its TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.app.cli.server.local_ray import free_port
from tests.app.cli.server.test_up import least
from tests.cluster.certificate import make_certificate

pytestmark = [
    pytest.mark.slow,  # another Ray
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("ray"),
]

DEPLOY = """
import json, ssl, sys, time

from tandem.app.cli.server import local_ray

local_ray.ENVIRONMENT["RAY_SERVE_ENABLE_HA_PROXY"] = "0"
misspelt, right, address, authority = json.load(sys.stdin)
with local_ray.local_ray() as cluster:
    import httpx
    from ray import serve
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
    from tandem.app.cli.server.up import UpError, deploy, wait_until_ready

    deploy(misspelt, cluster.dashboard)
    try:
        wait_until_ready("http://127.0.0.1:1", cluster.dashboard, lambda _: None)
    except UpError as error:
        print(json.dumps(str(error)))
    serve.shutdown()
    deploy(right, cluster.dashboard)
    trust = ssl.create_default_context(cafile=authority)
    wait_until_ready(address, cluster.dashboard, lambda _: None, trust)
    print(json.dumps(httpx.get(f"{address}/v1/models", verify=trust, trust_env=False).json()["data"][0]["id"]))
"""


def test_every_interface_by_mistake_is_refused_and_tls_is_serves_own(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    deployment: dict[str, Any] = yaml.safe_load(least(tmp_path).read_text())
    misspelt, right = deployment.copy(), deployment.copy()
    misspelt["http_option"] = misspelt.pop("http_options")
    port = free_port()
    right["http_options"] = {
        "host": "0.0.0.0",
        "port": port,
        "ssl_certfile": str(certificate),
        "ssl_keyfile": str(key),
    }
    asked = [misspelt, right, f"https://127.0.0.1:{port}", str(certificate)]
    done = subprocess.run(
        [sys.executable, "-c", DEPLOY], input=json.dumps(asked), capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    refused, model = map(json.loads, done.stdout.splitlines()[-2:])
    assert "listening on 0.0.0.0, beyond this machine, needs TLS" in refused
    assert model == "tandem"
