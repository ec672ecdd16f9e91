"""`tandem up` as a collector of traces and a reader of its logs see it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tandem.app.cli.server.local_ray import free_port
from tandem.app.cli.server.up import CONFIG, RECORD
from tests.app.cli.started import started
from tests.applications import until
from tests.collector import collecting

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("ray")]

NULL = {"engine": {"kind": "null"}}
TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "An open sesame"


def written(folder: Path, port: int) -> Path:
    """Write a configuration without models, whose log lines are JSON."""
    deployment: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    deployment["http_options"]["port"] = port
    deployment["logging_config"]["encoding"] = "JSON"
    deployment["applications"][0]["args"] |= {
        "verifier": NULL,
        "drafter": NULL,
        "hosts": [NULL | {"devices": [{"name": "phone"}]}],
    }
    path = folder / "null.yaml"
    path.write_text(yaml.safe_dump(deployment))
    return path


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of all deployments' logs."""
    logs = Path(json.loads((folder / RECORD).read_text())["folder"], "ray", "session_latest", "logs", "serve")
    files = [path for path in logs.glob("replica_*.log") if path.stat().st_size]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


async def test_traces_and_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with started(tmp_path, written(tmp_path, port)):
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                ready = (await http.get("/readyz")).json()
                assert set(ready["modes"]["tandem"].values()) == {""}
                asked = {
                    "model": "tandem",
                    "messages": [{"role": "user", "content": SECRET}],
                    "max_tokens": 24,
                    "temperature": 0,
                    "tandem": {"mode": "speculative", "device": "phone", "window": 4},
                }
                reply = await http.post(
                    "/v1/chat/completions", json=asked, headers={"traceparent": f"00-{TRACE}-{CLIENT}-01"}
                )
                assert reply.status_code == 200, reply.text

                async def whole() -> bool:
                    names = [span.name for span in collector.spans]
                    return "chat tandem" in names and names.count("session null") == 2

                await until(whole, 30.0)
                said = await asyncio.to_thread(lines, tmp_path)
    assert {
        "chat tandem",
        "chat tandem/gate",
        "chat tandem/assign",
        "chat tandem/speculative",
        "chat tandem/speculative/open",
        "chat tandem/speculative/draft",
        "chat tandem/speculative/verify",
        "chat tandem/speculative/session null/verify",
        "chat tandem/speculative/session null/draft",
    } <= set(collector.paths)
    (draft,) = [
        span for span in collector.spans if span.name == "draft" and "tandem.endpoint" in span.attributes
    ]
    assert draft.attributes["tandem.endpoint"] == "phone"
    inside = {(s.resource["service.instance.id"].split("@")[0], s.name) for s in collector.spans}
    assert inside >= {("ingress", "gate"), ("router", "route"), ("verifier", "verify"), ("edge", "draft")}
    root = collector.named("chat tandem")
    assert (root.trace, root.parent) == (TRACE, CLIENT)
    (line,) = [line for line in said if line.get("answer") == reply.json()["id"]]
    assert (line["trace_id"], line["span_id"], line["levelname"]) == (TRACE, root.id, "INFO")
    assert SECRET not in json.dumps(said) + str(collector.spans)
