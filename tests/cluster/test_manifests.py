"""Files for clusters and machines: what they say exists, in Tandem as in what reads them."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tandem.app.preflight import check_serve_yaml
from tandem.benchmarks.paths import DATA
from tests.cluster.certificate import make_certificate
from tests.docs.documents import ROOT

MANIFESTS = ROOT / "cluster" / "manifests"
KUBERNETES = MANIFESTS / "kubernetes"
UNITS = sorted((MANIFESTS / "systemd").glob("*.service"))
VERSION = metadata.version("tandem-llm")


def documents() -> list[dict[str, Any]]:
    """Return all objects for Kubernetes."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [each for name in names for each in yaml.safe_load_all((KUBERNETES / name).read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in documents() if each["kind"] == kind]


def service() -> dict[str, Any]:
    (found,) = of_kind("RayService")
    spec: dict[str, Any] = found["spec"]
    return spec


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods' templates by Ray's name for their kind."""
    cluster = service()["rayClusterConfig"]
    (workers,) = cluster["workerGroupSpecs"]
    return {"head": cluster["headGroupSpec"]["template"], "worker": workers["template"]}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without room for keys that it does not name, which Kubernetes drops without a word."""
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema = schema | {
            "additionalProperties": False,
            "properties": {key: closed(each) for key, each in schema["properties"].items()},
        }
    if "items" in schema:
        schema = schema | {"items": closed(schema["items"])}
    return schema


@pytest.mark.slow
@cache
def schema_of_services() -> dict[str, Any]:
    """Return KubeRay's schema of the spec of a RayService."""
    file = DATA / "kuberay" / "ray.io_rayservices.yaml.gz"
    versions = yaml.safe_load(gzip.decompress(file.read_bytes()))["spec"]["versions"]
    (schema,) = (v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == "v1")
    spec: dict[str, Any] = schema["properties"]["spec"]
    return spec


@pytest.mark.skipif(not (DATA / "kuberay").is_dir(), reason="KubeRay's schemas are not here")
def test_kuberay_takes_the_service() -> None:
    spec = closed(schema_of_services())
    jsonschema.validate(service(), spec)
    with pytest.raises(jsonschema.ValidationError, match="Additional properties"):
        jsonschema.validate(service() | {"serveConfig": ""}, spec)


def over_redis() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the RayService's spec with the head's store in a Redis, and what comes beside it."""
    folder = MANIFESTS / "kubernetes-redis"
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert overlay["resources"] == ["../kubernetes", "redis.yaml"]
    (patch,) = overlay["patches"]
    assert patch["target"] == {"kind": "RayService", "name": "tandem"}
    (change,) = yaml.safe_load(patch["patch"])
    *way, name = change["path"].removeprefix("/spec/").split("/")
    assert (change["op"], way) == ("add", ["rayClusterConfig"])
    spec = service()
    spec["rayClusterConfig"][name] = change["value"]
    return spec, list(yaml.safe_load_all((folder / "redis.yaml").read_text()))


@pytest.mark.skipif(not (DATA / "kuberay").is_dir(), reason="KubeRay's schemas are not here")
def test_kuberay_takes_the_service_with_a_redis() -> None:
    jsonschema.validate(over_redis()[0], closed(schema_of_services()))


def test_the_redis_is_where_ray_looks_for_it_and_nobody_else_reaches_it() -> None:
    spec, objects = over_redis()
    options = spec["rayClusterConfig"]["gcsFaultToleranceOptions"]
    found, pods, into, out = objects
    name, port = found["metadata"]["name"], found["spec"]["ports"][0]["port"]
    assert options["redisAddress"] == f"redis://{name}:{port}"
    template = pods["spec"]["template"]
    assert (
        found["spec"]["selector"] == pods["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    )
    (container,) = template["spec"]["containers"]
    (password,) = container["env"]
    assert password["valueFrom"] == options["redisPassword"]["valueFrom"]
    assert template["spec"]["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    redis, tandem = {"matchLabels": found["spec"]["selector"]}, {"matchLabels": {"app": "tandem"}}
    assert (into["spec"]["podSelector"], out["spec"]["podSelector"]) == (redis, tandem)
    assert into["spec"]["ingress"][0]["from"] == [{"podSelector": tandem}]
    assert out["spec"]["egress"][0]["to"] == [{"podSelector": redis}]


def test_its_settings_are_tandems(tmp_path: Path) -> None:
    """The files that they name are made here."""
    certificate, key = make_certificate(tmp_path)
    places = {"/var/lib/tandem": tmp_path}
    for mounted in ("wire", "gateway"):
        places |= {f"/etc/tandem/{mounted}/tls.crt": certificate, f"/etc/tandem/{mounted}/tls.key": key}
        places |= {f"/etc/tandem/{mounted}/ca.crt": certificate}
    text = service()["serveConfigV2"]
    for there, here in places.items():
        text = text.replace(there, str(here))
    content = yaml.safe_load(text)
    (settings,) = check_serve_yaml(content)
    assert settings.gateway is not None
    ports = {port["name"]: port["containerPort"] for port in container("head")["ports"]}
    assert ports["gateway"] == settings.gateway.port
    assert ports["serve"] == content["http_options"]["port"]


def container(kind: str) -> dict[str, Any]:
    (found,) = pods()[kind]["spec"]["containers"]
    return dict(found)


def test_what_is_mounted_holds_every_file() -> None:
    """The head has the ledger and the gateway's certificate; whatever else is named, every pod has."""
    named = set(re.findall(r"/(?:etc|var)/[\w./-]+", service()["serveConfigV2"]))
    for kind, pod in pods().items():
        mounts = {mount["mountPath"]: mount["name"] for mount in container(kind)["volumeMounts"]}
        missing = {file for file in named if not any(file.startswith(f"{mount}/") for mount in mounts)}
        assert {Path(file).parent.name for file in missing} == (
            set() if kind == "head" else {"tandem", "gateway"}
        )
        assert set(mounts.values()) == {volume["name"] for volume in pod["spec"]["volumes"]}
    pinned = {d["name"] for d in yaml.safe_load(service()["serveConfigV2"])["applications"][0]["deployments"]}
    assert pinned == {"Access", "Gateway"}, "what needs the head's files runs there"


@pytest.mark.parametrize("kind", ["head", "worker"])
def test_pods_are_confined(kind: str) -> None:
    user, confined = pods()[kind]["spec"]["securityContext"], container(kind)["securityContext"]
    assert user["runAsNonRoot"]
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert confined == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pods()[kind]["spec"]["automountServiceAccountToken"]


def test_policies_speak_of_pods_and_ports_that_exist() -> None:
    labels = {kind: pod["metadata"]["labels"] | {"ray.io/node-type": kind} for kind, pod in pods().items()}
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind("NetworkPolicy")}
    assert policies.pop("tandem-deny") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, policy in policies.items():
        kinds = selected(policy["podSelector"], labels)
        assert kinds, name
        for rule in policy.get("ingress", []):
            asked = {port["port"] for port in rule.get("ports", [])}
            offered = {port["name"] for kind in kinds for port in container(kind)["ports"]}
            assert asked <= offered, name
            for peer in rule.get("from", []):
                assert "podSelector" not in peer or selected(peer["podSelector"], labels) == set(labels)
    gateway, *others = of_kind("Service")
    assert not others
    (port,) = gateway["spec"]["ports"]
    assert selected({"matchLabels": gateway["spec"]["selector"]}, labels) == {"head"}
    assert port["targetPort"] in {each["name"] for each in container("head")["ports"]}


def selected(selector: dict[str, Any], labels: dict[str, dict[str, str]]) -> set[str]:
    wanted = selector.get("matchLabels", {}).items()
    return {kind for kind, found in labels.items() if wanted <= found.items()}


def test_versions_are_those_of_the_project() -> None:
    assert service()["rayClusterConfig"]["rayVersion"] == metadata.version("ray")
    (image,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    assert image["newTag"] == VERSION
    assert container("head")["image"] == container("worker")["image"] == image["name"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_renders_them() -> None:
    command = ["kubectl", "kustomize", str(KUBERNETES)]
    rendered = list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True).stdout))
    assert len(rendered) == len(documents())
    (found,) = (each for each in rendered if each["kind"] == "RayService")
    assert found["metadata"]["namespace"] == "tandem"


def test_ray_takes_the_cluster() -> None:
    config = yaml.safe_load((MANIFESTS / "ray-cluster.yaml").read_text())
    validate_config(prepare_config(config))


def test_the_containers_steps_find_their_files() -> None:
    lines = [
        line
        for line in (MANIFESTS / "Containerfile").read_text().replace("\\\n", "").splitlines()
        if line and not line.startswith("#")
    ]
    stages = [line for line in lines if line.startswith("FROM ")]
    assert len(stages) == 2
    assert all("python:3.11" in stage for stage in stages)
    copied = [
        word
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert all((ROOT / name).exists() for name in copied)
    links = {link.name for link in (ROOT / "tandem").iterdir() if link.is_symlink()}
    assert links <= set(copied), "tandem's links lead to folders that are copied"
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    (torch,) = re.findall(r'^ARG TORCH="(\S+)', "\n".join(lines), re.MULTILINE)
    assert f"TORCH ?= {torch}\n" in (ROOT / "Makefile").read_text()
    assert any("-r requirements.lock" in line for line in lines)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    """Units name a program that is there, or systemd complains."""
    installed = Path(sys.executable).with_name("tandem")
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/tandem/bin/tandem", str(installed)))
    told = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_run_commands_with_options_that_exist(unit: Path) -> None:
    said = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE))
    assert said["DynamicUser"] == said["NoNewPrivileges"] == said["PrivateTmp"] == "yes"
    assert said["ProtectSystem"] == "strict"
    for part in ("ExecStart", "ExecReload"):
        if part in said:
            program, command, *options = said[part].split()
            assert Path(program).name == "tandem"
            told = subprocess.run(
                [Path(sys.executable).with_name("tandem"), command, "--help"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert {o for o in options if o.startswith("--")} <= set(re.findall(r"--[\w-]+", told.stdout))


def test_versions_have_sections_of_the_changelog() -> None:
    assert re.search(rf"^## \[{re.escape(VERSION)}\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
