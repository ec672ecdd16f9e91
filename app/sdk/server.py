"""A Tandem of one's own on this machine, for as long as a program needs it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from tandem.app.cli.server.front import Wishes
from tandem.app.cli.server.local_ray import free_port, local_ray
from tandem.app.cli.server.up import CONFIG, LEDGER, UpError, deploy, read, wait_until_ready
from tandem.app.client.client import Client


class Server:
    """A running application; `stop`, or the end of a `with`, stops it and its Ray.

    url: where its API answers.
    """

    def __init__(self, config: Path, port: int) -> None:
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            raise UpError("this process has a Ray already: stop the first server, or call ray.shutdown()")
        plan = read(config, Wishes(port=port))
        self.url = plan.address
        front = plan.front
        with ExitStack() as stack:
            ray = stack.enter_context(local_ray(front.bind, front.pem()))
            for application in plan.deployment["applications"]:
                ledger = application.get("args", {}).get("ledger", {})
                if ledger.get("path") == str(LEDGER.absolute()):  # the file of `tandem up`, not of a program
                    ledger["path"] = str(ray.folder / LEDGER.name)
            deploy(plan.deployment, ray.dashboard)
            wait_until_ready(self.url, ray.dashboard, lambda _: None, front.trust())
            self._stack = stack.pop_all()

    def client(self) -> Client:
        """Return a client of this server."""
        return Client(self.url)

    def stop(self) -> None:
        self._stack.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(config: str | Path = CONFIG, port: int | None = None) -> Server:
    """Start Ray and Tandem on this machine; returns when the API answers.

    config: a Serve YAML; by default the embedded models with an emulated laptop and phones.
    port: of the API on the loopback interface; None takes a free one.
    Raises tandem.UpError, saying what is wrong. One Ray a process: a second server needs the first one stopped.
    """
    return Server(Path(config), free_port() if port is None else port)
