"""`tandem up`, `deploy` and `down`: a Ray of its own on this machine with the application on it, changes, end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import httpx
import yaml
from rich.console import Console

from tandem.app.cli.server import invitation
from tandem.app.cli.server.front import AS_CONFIGURED, Front, Trust, Wishes, behind, front_of
from tandem.app.cli.server.ledgers import DEFAULT_NAME, check_ledgers, note_ledgers
from tandem.app.cli.server.local_ray import (
    ENVIRONMENT,
    TRIES,
    LocalRay,
    StartFailed,
    StillRunning,
    busy,
    local_ray,
    logs_of,
)
from tandem.app.cli.server.memory import check_memory, in_use, shown
from tandem.app.cli.server.ports import check_ports, probe
from tandem.app.cli.server.processes import Process, alive, descendants, end, myself
from tandem.app.cli.terminal.phases import Tell, line, phases
from tandem.app.client.http import DEFAULT_URL, ClientError
from tandem.deployments.pools.models import model_folder
from tandem.engine import family
from tandem.engine.memory import give_back
from tandem.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tandem.app.settings import Settings  # imports Ray, which takes seconds

CONFIG = Path(__file__).parents[2] / "configs" / "local.yaml"
RECORD = Path(".tandem") / "up.json"
LOGS = RECORD.with_name("logs")
LEDGER = RECORD.with_name("ledger.sqlite")
"""Keys and usage of a server started in this folder, if the Serve YAML names no other file."""
READY_WITHIN_S = 600.0
"""Longest time without progress in a start, seconds: a model of many gigabytes that vLLM compiles takes minutes."""
ANSWER_S = 10.0
"""Longest wait for one answer of the API while it starts, seconds."""
QUESTION = "Tell me about the town of Marworth."
"""Question that the embedded family can answer."""
ANY_QUESTION = "Explain binary search, with an example in Python."
TEXT = "The three laws of motion are"
"""Text that a model without a chat template can continue."""


class UpError(Exception):
    """Why the application cannot be started or stopped, for people."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Deployment to start.

    deployment: contents of the Serve YAML, for a Serve behind `front`.
    front: where the API answers.
    applications: settings of the Tandems in it, by the applications' names; the first one is tried.
    model: its name for clients, of several models the first one's.
    question: one that the model can answer.
    mode: the mode to try beside the default.
    no_chats: reason why the model only continues texts; None if it can chat.
    """

    deployment: dict[str, Any]
    front: Front
    applications: dict[str, Settings]
    model: str
    question: str = QUESTION
    mode: str = "speculative"
    no_chats: str | None = None

    @property
    def chats(self) -> bool:
        """Whether the model can chat."""
        return self.no_chats is None

    @property
    def address(self) -> str:
        """Address of the API, from this machine."""
        return self.front.address

    @property
    def settings(self) -> Settings:
        """Settings of the first Tandem."""
        return next(iter(self.applications.values()))


def up(
    wishes: Wishes = AS_CONFIGURED, config: Path | Mapping[str, Any] = CONFIG, invites: bool = False
) -> None:
    """Start everything, say how to use it, and stay until Ctrl-C, SIGTERM or `down`; then stop everything.

    config: a Serve YAML, or its content.
    wishes: for the API's address and certificate, instead of the configured ones.
    invites: whether to make a key for a device of one's own, and to say how that device joins.

    Raises UpError.
    """
    console = Console()
    began = time.monotonic()
    os.environ.update(ENVIRONMENT)
    line(console, "Reading the settings", began)
    plan = read(config, wishes)
    _check(plan)
    give_back()  # of tokenizers that were looked at
    if not plan.chats:
        console.print(
            f"{plan.model} continues texts (/v1/completions), and refuses chats: {plan.no_chats}. An instruct model "
            "has a chat template.",
            highlight=False,
        )
    front = plan.front
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        _record(front)
        line(console, "Starting Ray", began)
        starting = partial(line, console, began_s=began)
        with local_ray(front.bind, front.pem(), starting, _keep_logs) as ray:
            signal.signal(signal.SIGTERM, _interrupt)  # again, since Ray has set a handler of its own
            try:
                with phases(console, began) as tell:
                    tell("Deploying")
                    deploy(plan.deployment, ray.dashboard)
                    _record(front, ray)
                    note_ledgers(plan.deployment)
                    try:
                        wait_until_ready(front.address, ray.dashboard, tell, front.trust())
                    except UpError as error:
                        raise UpError(f"{error}\nLogs: {_keep_logs(ray.folder)}") from None
                    _record(front, ray, _gateway(plan))
                joins = _invitation(console, plan) if invites else []
                explain(console, plan, time.monotonic() - began, _is_open(front), joins)
                memory = shown(in_use([myself(), *descendants()]))
                console.print(f"Memory: {memory}", highlight=False, soft_wrap=True)
                console.print(f"Logs: {logs_of(ray.folder) / 'serve'}", soft_wrap=True)
                _stay()
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop the stopping
                console.print("Stopping")
    except KeyboardInterrupt:
        console.print("Stopped")
    except StartFailed as error:
        raise UpError(f"{error}\nLogs: {LOGS}") from None
    except StillRunning as error:
        raise UpError(str(error)) from None
    finally:
        RECORD.unlink(missing_ok=True)


def down() -> bool:
    """Stop what `up` has started from this folder; False if nothing runs. Returns when all of it is gone.

    Raises UpError if a process lives on.
    """
    try:
        record = json.loads(RECORD.read_text())
    except FileNotFoundError:
        return False
    foreground, *others = (Process(*process) for process in record["processes"])
    was_running = alive(foreground)
    if stubborn := end([foreground], patience_s=30.0) + end(others):
        raise UpError(f"these processes live on: {', '.join(str(p.pid) for p in stubborn)}")
    if record["folder"]:  # left behind only by one that was killed
        shutil.rmtree(record["folder"], ignore_errors=True)
    RECORD.unlink(missing_ok=True)
    return was_running


def _gateway(plan: Plan) -> tuple[str, str] | None:
    if plan.settings.gateway is None:
        return None
    return invitation.reached_at(plan.settings), invitation.named(plan.settings)


def gateway_here(url: str) -> tuple[str, str] | None:
    """Return where the gateway of the server at this URL is reached, and the end of keys that names its certificate.

    None if it has none, or was not started from this folder."""
    if running() != url:
        return None
    there = json.loads(RECORD.read_text()).get("gateway")
    return None if there is None else (there[0], there[1])


def running() -> str | None:
    """The address of what `up` has started from this folder, if it runs."""
    try:
        record = json.loads(RECORD.read_text())
    except FileNotFoundError:
        return None
    return record["address"] if alive(Process(*record["processes"][0])) else None


def chosen(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked-in Serve YAML with these settings."""
    deployment: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    deployment["applications"][0]["args"] = dict(args)
    return deployment


def content(config: Path) -> dict[str, Any]:
    """Return the content of a Serve YAML. Raises UpError."""
    try:
        found = yaml.safe_load(config.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UpError(f"{config}: {error}") from None
    if not isinstance(found, dict):
        raise UpError(f"{config} is no mapping")
    return found


def open_gateway(deployment: dict[str, Any], port: int) -> None:
    """Add a gateway for devices of one's own to the first Tandem of a Serve YAML. Raises ClientError, UpError."""
    from tandem.app.preflight import IMPORT_PATH

    applications = deployment.get("applications")
    for each in applications if isinstance(applications, list) else ():
        if isinstance(each, dict) and each.get("import_path") == IMPORT_PATH:
            invitation.open_gateway(each.setdefault("args", {}), port)
            return
    raise UpError(f"no application has the import_path {IMPORT_PATH}")


def as_yaml(deployment: Mapping[str, Any]) -> str:
    """Return a Serve YAML of this content."""
    return yaml.safe_dump(dict(deployment), sort_keys=False)


def read(config: Path | Mapping[str, Any], wishes: Wishes = AS_CONFIGURED) -> Plan:
    """Check the Serve YAML and the settings in it here, where the message is readable. Raises UpError."""
    from tandem.app.preflight import IMPORT_PATH, check_serve_yaml

    try:
        deployment = yaml.safe_load(config.read_text()) if isinstance(config, Path) else dict(config)
        settings, *others = check_serve_yaml(deployment)
        front = front_of(deployment, (settings, *others), wishes)
    except (yaml.YAMLError, ValueError) as error:
        raise UpError(f"{config}: {error}" if isinstance(config, Path) else str(error)) from None
    behind(front, deployment)
    names = []
    for each in deployment["applications"]:
        if each["import_path"] == IMPORT_PATH:
            names.append(each.get("name", DEFAULT_NAME))
            arguments = each["args"]
            arguments.get("api", {}).pop("tls", None)  # HAProxy has it
            if not arguments.get("ledger", {}).get("database"):
                arguments["ledger"] = {"path": str(LEDGER.absolute())} | arguments.get("ledger", {})
    name, model = next(iter(settings.served.items()))
    drafted = model.drafter.exists or bool(settings.hosts)
    question = QUESTION if model.text_model in family.NAMES else ANY_QUESTION
    no_chats = Tokenizer.load(model_folder(model.text_model)).chat_problem
    applications = dict(zip(names, (settings, *others), strict=True))
    return Plan(
        deployment, front, applications, name, question, "speculative" if drafted else "cloud", no_chats
    )


def _check(plan: Plan) -> None:
    if address := running():
        raise UpError(f"it is up already, at {address}; `tandem down` (or `make down`) stops it")
    front = plan.front
    try:
        probe(front.host, front.port)
    except OSError as error:
        raise UpError(
            f"{front.host}:{front.port} cannot be used ({error.strerror}); another one: --port"
        ) from None
    try:
        check_ports(plan.applications, (front.host, front.port))
        check_memory(plan.settings)
        check_ledgers(plan.deployment)
    except ValueError as error:
        raise UpError(str(error)) from None


def deploy(deployment: dict[str, Any], dashboard: str) -> None:
    """Deploy as `serve deploy`, without another process. It is tried again if Ray does not take it, as on a machine
    so busy that Serve's controller has not begun in time. Raises UpError."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    for left in reversed(range(TRIES)):
        try:
            ServeSubmissionClient(dashboard).deploy_applications(deployment)
            return
        except (OSError, RuntimeError) as error:
            if not left:
                raise UpError(f"Ray does not deploy the application: {error}; {busy()}") from None


def wait_until_ready(address: str, dashboard: str, tell: Tell, trust: Trust = True) -> None:
    """Return when the API at `address` says that it is ready; `tell` hears of progress. Raises UpError."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    serve = ServeSubmissionClient(dashboard)
    application: dict[str, Any] = {"deployments": {}}
    deadline, before = time.monotonic() + READY_WITHIN_S, ""
    with httpx.Client(timeout=ANSWER_S, trust_env=False, verify=trust) as client:
        while time.monotonic() < deadline:
            try:
                applications = serve.get_serve_details()["applications"].values()
            except (
                OSError,
                RuntimeError,
            ) as error:  # Ray's agent or Serve's controller waits for the processor
                waits = f"Serve does not say how far it is yet ({type(error).__name__}); {busy()}"
            else:
                for application in applications:
                    if application["status"] == "DEPLOY_FAILED":
                        raise UpError(f"the application failed to start: {_reason(application)}")
                runs = bool(applications) and all(a["status"] == "RUNNING" for a in applications)
                if not (waits := _waits(client, address) if runs else progress(applications)):
                    return
            if waits != before:  # it goes on: a busy machine has time
                deadline, before = time.monotonic() + READY_WITHIN_S, waits
            tell(waits)
            time.sleep(0.2)
    raise UpError(f"nothing happened for {READY_WITHIN_S:g} s: {_reason(application)}; {busy()}")


def _waits(client: httpx.Client, address: str) -> str:
    """Return what the API waits for; "" once it answers, and no device is missing."""
    try:
        reply = client.get(f"{address}/readyz")
        told = reply.json()
    except (httpx.TransportError, ValueError):
        return "Waiting for the API"
    if reply.status_code != 200:
        return f"Not ready: {', '.join(told.get('reasons', ['no reason given']))}"
    return f"Waiting for {', '.join(told['missing'])}" if told["missing"] else ""


def _keep_logs(folder: Path) -> Path:
    """Keep the logs of a failed start in place of the previous ones, and return their folder."""
    shutil.rmtree(LOGS, ignore_errors=True)
    if logs_of(folder).exists():
        shutil.copytree(logs_of(folder), LOGS, ignore_dangling_symlinks=True)
    else:  # Ray had not come so far
        LOGS.mkdir(parents=True)
    return LOGS


def _reason(application: dict[str, Any]) -> str:
    """The last line of what the first deployment that is not well has said."""
    for name, deployment in application["deployments"].items():
        if deployment["status"] != "HEALTHY" and (said := deployment.get("message", "").strip()):
            return f"{name}: {said.splitlines()[-1].strip()}"
    return str(application.get("message") or "it does not say why").strip().splitlines()[-1]


def progress(applications: Collection[Mapping[str, Any]]) -> str:
    """Return how many deployments run, and the names of those that do not."""
    deployments = {name: d["status"] for each in applications for name, d in each["deployments"].items()}
    waiting = [name for name, status in deployments.items() if status != "HEALTHY"]
    if not deployments:
        return "Deploying"
    still = f"; starting {', '.join(waiting)}" if waiting else ""
    return f"{len(deployments) - len(waiting)} of {len(deployments)} deployments run{still}"


def _record(front: Front, ray: LocalRay | None = None, gateway: tuple[str, str] | None = None) -> None:
    """Record what was started, so that `down` ends exactly that, even if this process was killed.

    gateway: where it is reached, and the end of keys that names its certificate; None without one.
    """
    RECORD.parent.mkdir(exist_ok=True)
    processes = [myself(), *descendants()]
    record: dict[str, Any] = {"address": front.address, "front": front.as_json(), "processes": processes}
    record["gateway"] = gateway
    record |= {"folder": None, "dashboard": None}
    if ray is not None:
        record |= {"folder": str(ray.folder), "dashboard": ray.dashboard}
    RECORD.write_text(json.dumps(record))


def explain(
    console: Console, plan: Plan, seconds: float, is_open: bool = False, joins: Iterable[str] = ()
) -> None:
    """Print how to use the server. is_open: whether there are no keys. joins: how a device joins, line by line."""
    console.print(f"\n[bold green]Tandem is up[/] at [bold]{plan.address}[/] after {seconds:.0f} s.")
    console.print("Open that in a browser, or try:\n")
    for command in tries(plan):
        console.print(f"    {command}", soft_wrap=True, highlight=False, markup=False)
    console.print()
    if is_open:
        console.print(
            "No API key has been made: only this machine is answered. `tandem keys make NAME --role operator` "
            "makes the first one.\n",
            highlight=False,
            soft_wrap=True,
        )
    if plan.front.tls is not None:
        console.print(
            "Clients need SSL_CERT_FILE, the file of the certificate's authority, unless this machine trusts it; and "
            "an address with the name that the certificate is for.\n",
            highlight=False,
            soft_wrap=True,
        )
    for text in joins:
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    console.print("Ctrl-C here, or [bold]tandem down[/] in this folder, stops it.")


def _invitation(console: Console, plan: Plan) -> list[str]:
    """Return how a device of one's own joins, line by line. The key is shown on a terminal alone: elsewhere it would be
    logged."""
    try:
        file, command = invitation.invite(plan.address, plan.settings)
    except ClientError as error:
        return [f"No key was made for a device: {error}", ""]
    shown = command.replace(str(file), file.read_text().strip()) if console.is_terminal else command
    return [
        "To join with a device of yours, type this there. MODEL is its small model, such as a GGUF file:",
        "",
        f"    {shown} --model MODEL",
        "",
        f"Its key is in {file}, and opens nothing but the gateway; `tandem keys device make NAME` makes more.",
        "",
    ]


def tries(plan: Plan) -> list[str]:
    """Commands to try what runs with, line by line, to be copied into another terminal; the README has the same."""
    command = Path(sys.executable).with_name("tandem")
    command = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    there = "" if plan.address == DEFAULT_URL else f" --url {plan.address}"
    if not plan.chats:
        body = json.dumps({"model": plan.model, "temperature": 0, "max_tokens": 64, "prompt": TEXT})
        return [
            f"curl {plan.address}/v1/completions -H 'Content-Type: application/json' \\",
            f"  -d '{body}'",
        ]
    messages = [{"role": "user", "content": plan.question}]
    body = json.dumps({"model": plan.model, "temperature": 0, "messages": messages})
    return [
        f"curl {plan.address}/v1/chat/completions -H 'Content-Type: application/json' \\",
        f"  -d '{body}'",
        f'{command} chat "{plan.question}" --mode {plan.mode}{there}',
    ]


def _is_open(front: Front) -> bool:
    """Whether it answers without a key."""
    url = f"{front.address}/v1/keys"
    return httpx.get(url, timeout=10.0, trust_env=False, verify=front.trust()).status_code == 200


def _stay() -> NoReturn:
    while True:
        signal.pause()


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
