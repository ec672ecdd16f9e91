"""Changes under load: whether requests fail, and streams break, while the application becomes another one.

    tandem benchmark redeploy [--streams 16] [--device]

The application with the embedded models, under streams in all modes, is changed four times as `tandem deploy` does it:
in place (replicas, policies, a device more), then with other settings of engines and devices, then to a new version in
which nothing is new; at last to one whose part Access does not come up, so that what ran before has to run on. A client
that has read an answer asks the next question. With `--device` all are asked at the API of a device that dials
in, in mode split: its model's middle, and the gateway to it, are deployed anew with the rest.

failed: requests that got no answer.
broken_streams: answers that began and did not end well, or were not, token for token, what the target says by itself.
answers: that were read while something changed.
longest_wait_s: for the first text of any of them.
changed_s: of each change, from the command to its end.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tandem.app.cli.server.local_ray import free_port
from tandem.benchmarks import report
from tandem.benchmarks.application import application, change, configured
from tandem.benchmarks.robustness.dialled import dialling_in
from tandem.benchmarks.robustness.load import DEVICES, MODES, Way, asking, under_load
from tandem.engine import family
from tandem.engine.torch.split import bundle

LAYERS = 2
"""First layers of the target, at the device that dials in."""
SPLIT: Way = {"mode": "split"}


def settings(folder: Path, max_sessions: int = 64, rtt_ms: float = 5.0, gateway: int = 0) -> dict[str, Any]:
    """Return the application's settings: all devices on one host. folder: for the ledger, which keys are in; gateway:
    port for devices that dial in; 0: none."""
    return {
        "ledger": {"path": str(folder / "ledger.sqlite")},
        "verifier": {"engine": {"kind": "torch", "model": "target", "max_sessions": max_sessions}},
        "hosts": [
            {"name": "edge", "devices": [{"name": name, "link": {"rtt_ms": rtt_ms}} for name in DEVICES]}
        ],
    } | (_for_split(max_sessions, gateway) if gateway else {})


def _for_split(max_sessions: int, gateway: int) -> dict[str, Any]:
    engine = {"model": "target", "first": LAYERS, "max_sessions": max_sessions}
    return {"gateway": {"port": gateway, "replicas": 2}, "middle": {"replicas": 2, "engine": engine}}


FAILING = "one that fails"


def changes(folder: Path, gateway: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings to deploy one after the other, and a name of each change. folder, gateway: as in
    `settings`."""
    in_place = configured(settings(folder, gateway=gateway))
    hosts = settings(folder)["hosts"]
    in_place["applications"][0]["deployments"] = [
        {"name": "Verifier", "num_replicas": 2},
        {"name": "Ingress", "num_replicas": 2, "user_config": {"window": {"name": "dynamic"}}},
        {"name": "Router", "user_config": {"router": {"routing": {"name": "round_robin"}}}},
        {
            "name": "Scheduler",
            "user_config": {"hosts": [*hosts, {"name": "more", "devices": [{"name": "watch"}]}]},
        },
    ]
    yield "in place", in_place
    yield "engines and devices", configured(settings(folder, 48, 6.0, gateway))
    version = configured(settings(folder, 48, 6.0, gateway))
    version["applications"][0]["runtime_env"] = {"env_vars": {"TANDEM_VERSION": "2"}}
    yield "a new version", version
    broken = folder / "broken.sqlite"
    broken.write_text("no database")
    yield FAILING, configured(settings(folder, gateway=gateway) | {"ledger": {"path": str(broken)}})


@asynccontextmanager
async def asked(
    address: tuple[str, int], folder: Path, gateway: int
) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, str], Sequence[Way]]]:
    """Yield a client of the API that is asked, the target's answers by prompt, and the ways to ask."""
    async with asking(address) as (http, right):
        if not gateway:
            yield http, right, MODES
            return
        bundle.write(family.path("target"), LAYERS, folder, family.adapter())
        ends = {"bundle": str(folder), "split": {"wire": "float32"}}
        async with dialling_in(http, folder, **ends) as site:
            yield site.device, right, (SPLIT,)


async def measure(address: tuple[str, int], folder: Path, streams: int, gateway: int = 0) -> dict[str, Any]:
    """Change after change."""
    rows, outcomes, changed_s = [], [], []
    async with asked(address, folder, gateway) as (http, right, modes):
        for name, config in changes(folder, gateway):

            async def deploy(config: dict[str, Any] = config, fails: bool = name == FAILING) -> None:
                began_s, failed = time.perf_counter(), False
                try:
                    await change(config, folder)
                except RuntimeError:
                    failed = True
                assert failed == fails, "it came up" if fails else "it did not come up"
                changed_s.append(time.perf_counter() - began_s)

            outcome = await under_load(http, streams, right, deploy, modes=modes)
            outcomes.append(outcome)
            for what in [*outcome.failures, *outcome.breaks]:
                print(f"{name}: {what}")
            rows.append(
                (
                    name,
                    f"{changed_s[-1]:.1f}",
                    str(len(outcome.waited_s)),
                    str(len(outcome.failures)),
                    str(len(outcome.breaks)),
                    f"{max(outcome.waited_s, default=0.0):.2f}",
                )
            )
    columns = ("what changed", "it took, s", "answers", "failed", "broken", "longest wait, s")
    report.table(f"{streams} streams while the application changes", columns, rows)
    return {
        "failed": sum(len(outcome.failures) for outcome in outcomes),
        "broken_streams": sum(len(outcome.breaks) for outcome in outcomes),
        "answers": sum(len(outcome.waited_s) for outcome in outcomes),
        "longest_wait_s": max(waited_s for outcome in outcomes for waited_s in outcome.waited_s),
        "changed_s": changed_s,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = report.parser("redeploy", __doc__)
    parser.add_argument("--streams", type=int, default=16, help="at once (%(default)s)")
    parser.add_argument("--device", action="store_true", help="ask a device that dials in, in mode split")
    options = parser.parse_args(arguments)
    gateway = free_port() if options.device else 0
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        with application(settings(folder, gateway=gateway), folder) as address:
            report.figures("redeploy", asyncio.run(measure(address, folder, options.streams, gateway)))


if __name__ == "__main__":
    main()
