"""`tandem deploy`: the change of what `tandem up` has started to what a Serve YAML says, checked before, undone if it
fails."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import ValidationError
from rich.console import Console

from tandem.app.cli.server.front import Front, Wishes
from tandem.app.cli.server.ledgers import DEFAULT_NAME, check_ledgers, note_ledgers
from tandem.app.cli.server.local_ray import ENVIRONMENT, logs_of, token_of
from tandem.app.cli.server.memory import check_memory
from tandem.app.cli.server.ports import Address, check_ports
from tandem.app.cli.server.proxy import haproxy
from tandem.app.cli.server.up import (
    CONFIG,
    RECORD,
    Plan,
    UpError,
    deploy,
    read,
    running,
    wait_until_ready,
)
from tandem.app.cli.terminal.phases import Tell, phases

if TYPE_CHECKING:
    from tandem.app.cli.deploy.comparison import Effect
    from tandem.app.settings import Settings  # imports Ray, which reads its environment then

Applications = Mapping[str, Mapping[str, Any]]
"""Applications of a Serve YAML, by their names."""


def change(config: Path = CONFIG, dry_run: bool = False) -> None:
    """Change what `up` has started from this folder to the Serve YAML `config` without a failed request: some settings
    change in place, the rest is replaced one by one. Returns when that is done.

    Everything that can be checked is checked before anything changes. If a part does not come up, what ran before is
    deployed again: its replicas were kept until their successors answered.

    dry_run: check, and show what would happen, alone.

    Raises UpError; what ran before then still does, or it says that it does not.
    """
    console = Console()
    address, began = running(), time.monotonic()
    if address is None:
        raise UpError("nothing runs that was started in this folder; `tandem up` starts it")
    record = json.loads(RECORD.read_text())
    if record["folder"] is None:
        raise UpError("it is still starting")
    folder, front = Path(record["folder"]), Front.of(record["front"])
    os.environ.update(ENVIRONMENT | token_of(folder) | {"RAY_AUTH_MODE": "token"})
    plan = read(config, Wishes(front.host, front.port, front.tls, insecure=True))
    if plan.front != front:
        raise UpError(
            "api.tls: it runs without TLS; `tandem down`, and `tandem up` starts it with the certificate"
        )
    from tandem.app.cli.deploy.comparison import compare

    before = _running_applications(record["dashboard"])
    _check(plan, before or {})
    _show(console, compare(before, _named(plan.deployment)) if before else [])
    if dry_run:
        return
    with phases(console, began) as tell:
        tell("Deploying")
        if front.tls is not None:
            _renew(folder, front)
        try:
            deploy(plan.deployment, record["dashboard"])
            wait_until_ready(address, record["dashboard"], tell, front.trust())
        except UpError as error:
            again = plan.deployment | {"applications": list((before or {}).values())}
            undone = (
                _undo(again, plan, record["dashboard"], tell)
                if before
                else "Not everything ran before, so that there is nothing to go back to"
            )
            raise UpError(f"{error}\nLogs: {logs_of(folder) / 'serve'}\n{undone}") from None
        note_ledgers(plan.deployment)
    console.print(f"[bold green]Changed[/] after {time.monotonic() - began:.0f} s")


def _named(deployment: Mapping[str, Any]) -> Applications:
    return {each.get("name", DEFAULT_NAME): each for each in deployment["applications"]}


def _running_applications(dashboard: str) -> Applications | None:
    """Return the applications as they were deployed; None unless all of them run."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    applications = ServeSubmissionClient(dashboard).get_serve_details()["applications"]
    if any(each["status"] != "RUNNING" for each in applications.values()):
        return None
    return {name: each["deployed_app_config"] for name, each in applications.items()}


def _check(plan: Plan, before: Applications) -> None:
    """Raise UpError where ports, memory or ledgers do not allow the change."""
    ours = [address for each in before.values() if (address := _gateway(each.get("args", {})))]
    name, settings = next(iter(plan.applications.items()))
    there = before.get(name, {}).get("args")
    try:
        check_ports(plan.applications, (plan.front.host, plan.front.port), ours)
        if there != _named(plan.deployment)[name].get("args"):
            check_memory(settings, running=_settings(there))
        check_ledgers(plan.deployment)
    except ValueError as error:
        raise UpError(str(error)) from None


def _settings(args: Any) -> Settings | None:
    """Return the settings of a running application; None if they are another version's."""
    from tandem.app.settings import Settings

    try:
        return Settings.model_validate(args)
    except ValidationError:
        return None


def _gateway(args: Mapping[str, Any]) -> Address | None:
    """Return where the gateway of a running application listens, in whatever version's settings."""
    from tandem.deployments.gateway.deployment import GatewaySettings

    said, default = args.get("gateway"), GatewaySettings()
    return said and (said.get("host", default.host), said.get("port", default.port))


def _show(console: Console, effects: list[Effect]) -> None:
    if not effects:
        console.print("Nothing changes", highlight=False)
    for effect in effects:
        console.print(effect.what, markup=False, highlight=False, soft_wrap=True)
        for line in (*map(str, effect.differences), *([effect.hint] if effect.hint else [])):
            console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)


def _undo(deployment: dict[str, Any], plan: Plan, dashboard: str, tell: Tell) -> str:
    """Deploy again what ran before; returns how that went."""
    tell("It failed: what ran before is deployed again")
    try:
        deploy(deployment, dashboard)
        wait_until_ready(plan.address, dashboard, tell, plan.front.trust())
    except (UpError, httpx.HTTPError, RuntimeError) as error:
        return f"What ran before could not be deployed again: {error}"
    return "Nothing has changed: what ran before runs on"


def _renew(folder: Path, front: Front) -> None:
    try:
        haproxy.show(folder, front.pem())
    except (OSError, RuntimeError) as error:
        raise UpError(str(error)) from None
