"""Live chaos: when everything counts as ready again."""

from __future__ import annotations

import signal
from typing import Any

import httpx
import pytest

from tandem.app.cli.server.processes import Process
from tandem.benchmarks.robustness import chaos_live
from tandem.benchmarks.robustness.chaos_live import POOLS, is_ready
from tandem.benchmarks.robustness.dialled import DIALLED, Site

OLD, NEW = Process(1, 1), Process(2, 2)


class Api:
    """APIs of an application with devices by name, and of one that is connected or not."""

    def __init__(
        self, *devices: str, missing: tuple[str, ...] = (), connected: bool = True, verifiers: int = 2
    ) -> None:
        self.devices, self.missing, self.connected = list(devices), list(missing), connected
        self.pools = POOLS | {"verifier": verifiers}

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(self._reply))

    def _reply(self, request: httpx.Request) -> httpx.Response:
        replies: dict[str, Any] = {
            "/readyz": {
                "missing": self.missing,
                "cloud": self.connected,
                **self.pools,
            },
            "/v1/devices": {"data": [{"name": name} for name in self.devices]},
        }
        return httpx.Response(200, json=replies[request.url.path])


@pytest.mark.parametrize(
    ("api", "now", "sign", "ready"),
    [
        (Api(DIALLED), [NEW], signal.SIGKILL, True),
        (Api(DIALLED), [OLD], signal.SIGKILL, False),
        (Api(DIALLED), [OLD], signal.SIGSTOP, True),
        (Api(DIALLED), [], signal.SIGKILL, False),
        (Api("laptop"), [NEW], signal.SIGKILL, False),
        (Api(DIALLED, connected=False), [NEW], signal.SIGKILL, False),
        (Api(DIALLED, missing=("laptop",)), [NEW], signal.SIGKILL, False),
        (Api(DIALLED, verifiers=1), [NEW], signal.SIGKILL, False),
    ],
)
async def test_everything_is_ready_with_the_device_that_dials_in(
    api: Api, now: list[Process], sign: signal.Signals, ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_live, "processes", lambda title: now)
    async with api.client() as http:
        assert await is_ready(Site(http, http), "a", [OLD], sign) == ready
