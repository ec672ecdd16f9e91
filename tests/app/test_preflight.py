"""Preflight: settings that cannot work are refused before anything starts, in one line."""

from __future__ import annotations

import copy
import functools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.app import preflight
from tandem.app.cli.server.up import CONFIG
from tandem.app.preflight import IMPORT_PATH, check, check_serve_yaml
from tandem.app.settings import Settings
from tandem.engine import family


def settings(**args: Any) -> Settings:
    return Settings.model_validate(args)


def test_the_default_may_start() -> None:
    check(Settings())


def test_models_are_fetched_before_vllm_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's environment forbids asking a hub from then on."""
    asked: list[str] = []

    monkeypatch.setattr(preflight, "require", lambda model, _: asked.append(model))
    monkeypatch.setattr(preflight, "check_options", lambda _: asked.append("vllm"))
    monkeypatch.setattr(preflight, "vocabularies", lambda _: None)
    engine = {"kind": "vllm", "model": "org/name", "options": {"dtype": "float32"}}
    drafter = {"replicas": 1, "engine": {"kind": "torch", "model": "org/other"}}
    check(settings(verifier={"engine": engine}, drafter=drafter, hosts=[]))
    assert asked == ["org/name", "org/other", "vllm"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"verifier": {"engine": {"kind": "torch", "model": "gpt-9"}}},
            r"^verifier\.engine\.model: .*gpt-9.*target",
        ),
        (
            {"drafter": {"engine": {"kind": "torch", "model": "/nowhere"}}},
            r"^drafter\.engine\.model: .*/nowhere",
        ),
        (
            {"hosts": [{"engine": {"kind": "torch", "model": "gpt-9"}, "devices": [{"name": "phone"}]}]},
            r"^hosts\[0\]\.engine\.model: .*gpt-9",
        ),
        (
            {"hosts": [{"models": ["tiny", "gpt-9"], "devices": [{"name": "phone"}]}]},
            r"^hosts\[0\]\.engine\.model: .*gpt-9",
        ),
        ({"middle": {"replicas": 1, "engine": {"model": "gpt-9"}}}, r"^middle\.engine\.model: .*gpt-9"),
        (
            {"middle": {"replicas": 1, "engine": {"first": 12}}},
            r"^middle\.engine\.first: of 12 layers, devices can have 1 to 11, not 12$",
        ),
        ({"middle": {"engine": {"kind": "vllm", "model": "target"}}}, r"vLLM cannot be a middle"),
        ({"tokenizer": "other"}, r"^tokenizer: .*'target'"),
        ({"tokenizer": "gpt-9"}, r"^tokenizer: .*gpt-9"),
        (
            {"endpoint": {"tls": {"certificate": "/nowhere", "key": "/nowhere", "authority": "/nowhere"}}},
            r"^endpoint\.tls: .*No such file",
        ),
        (
            {"gateway": {"tls": {"certificate": "/nowhere.pem", "key": "/nowhere.key"}}},
            r"^gateway\.tls: .*No such file.*/nowhere\.pem",
        ),
        (
            {"api": {"tls": {"certificate": "/nowhere.pem", "key": "/nowhere.key"}}},
            r"^api\.tls: .*No such file.*/nowhere\.pem",
        ),
        (
            {"ledger": {"path": "/nowhere/ledger.sqlite"}},
            r"^ledger\.path: there is no folder /nowhere$",
        ),
    ],
)
def test_what_is_not_there(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(settings(**args))


def test_an_empty_pool_needs_no_model() -> None:
    check(settings(middle={"replicas": 0, "engine": {"model": "gpt-9", "first": 99}}))
    check(settings(expander={"replicas": 0, "engine": {"kind": "torch", "model": "gpt-9"}}))


def test_a_folder_of_another_kind(tmp_path: Path) -> None:
    shutil.copytree(family.path("target"), tmp_path, dirs_exist_ok=True)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel; the torch engine runs LlamaForCausalLM"):
        check(settings(verifier={"engine": {"kind": "torch", "model": str(tmp_path)}}))


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    shutil.copytree(family.path("target"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="^tokenizer: .*tokenizer"):
        check(settings(verifier={"engine": {"kind": "torch", "model": str(tmp_path)}}))


TANDEM: dict[str, Any] = {"import_path": IMPORT_PATH, "args": {"model": "mine", "drafter": {"replicas": 0}}}


def test_the_settings_of_a_serve_yaml() -> None:
    other = {
        "import_path": "other:app",
        "name": "other",
        "route_prefix": "/other",
        "deployments": [{"name": "Its", "user_config": {"a": 1}}],
    }
    deployments = [{"name": "Verifier", "ray_actor_options": {"num_cpus": 1}}, {"name": "Router"}]
    content = {"http_options": {"port": 8123}, "applications": [other, TANDEM | {"deployments": deployments}]}
    (found,) = check_serve_yaml(content)
    assert found.model == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"http_option": {}}, "http_option: no such key, did you mean http_options?"),
        ({"http_options": {"prot": 1}}, "http_options.prot: no such key, did you mean port?"),
        ({"grpc_options": {"prot": 1}}, "grpc_options.prot: no such key, did you mean port?"),
        (
            {"logging_config": {"encodng": "JSON"}},
            "logging_config.encodng: no such key, did you mean encoding?",
        ),
    ],
)
def test_a_misspelt_key_of_a_serve_yaml(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_serve_yaml({"applications": [TANDEM]} | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arg": {}}, "applications.0.arg: no such key, did you mean args?"),
        ({"args": {"modle": "mine"}}, "args: modle: no such key, did you mean model?"),
        ({"args": {}}, "args: no settings, is `args` misspelt?"),
        ({"deployment": []}, "applications.0.deployment: no such key, did you mean deployments?"),
    ],
)
def test_a_misspelt_key_of_an_application(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_serve_yaml({"applications": [TANDEM | change]})


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        ({"name": "Verifyer"}, "deployments: Verifyer: no such deployment, did you mean Verifier?"),
        ({"name": "Drafter"}, "deployments: Drafter: no such deployment"),  # its pool is empty
        (
            {"name": "Router", "num_replica": 2},
            "applications.0.deployments.0.num_replica: no such key, did you mean num_replicas?",
        ),
        (
            {"name": "Router", "ray_actor_options": {"num_cpu": 2}},
            "applications.0.deployments.0.ray_actor_options.num_cpu: no such key, did you mean num_cpus?",
        ),
        (
            {"name": "Ingress", "autoscaling_config": {"max_replica": 2}},
            "Ingress.autoscaling_config: max_replica: no such key, did you mean max_replicas?",
        ),
        (
            {"name": "Router", "user_config": {"gates": {}}},
            "Router.user_config: gates: no such key, did you mean gate?",
        ),
    ],
)
def test_a_misspelt_key_of_a_deployment(deployment: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_serve_yaml({"applications": [TANDEM | {"deployments": [deployment]}]})


SERVE_POLICY = "tandem.deployments.pools.serve_policy:ServePolicy"
ACTOR = {"num_cpus": 1, "runtime_env": {"env_vars": {"A": "1"}}}
INGRESS: dict[str, Any] = {
    "name": "Ingress",
    "logging_config": {"log_level": "INFO"},
    "ray_actor_options": ACTOR,
    "autoscaling_config": {
        "min_replicas": 1,
        "policy": {"policy_function": SERVE_POLICY, "policy_kwargs": {}},
    },
    "request_router_config": {"request_router_class": SERVE_POLICY},
    "user_config": {"default_reader_rate": 5.0, "window": {"name": "static", "parameters": {"size": 4}}},
}
EVERYTHING: dict[str, Any] = {
    "http_options": {"host": "127.0.0.1"},
    "grpc_options": {"port": 9000},
    "logging_config": {"encoding": "JSON"},
    "applications": [
        {
            "import_path": IMPORT_PATH,
            "runtime_env": {"env_vars": {"A": "1"}},
            "logging_config": {"log_level": "INFO"},
            "autoscaling_policy": {"policy_function": SERVE_POLICY, "policy_kwargs": {}},
            "args": yaml.safe_load(CONFIG.with_name("gpu.yaml").read_text())["applications"][0]["args"],
            "deployments": [INGRESS],
        }
    ],
}
FREE = "env_vars", "policy_kwargs", "options"
"""Mappings whose keys are for others to know: programs, policies, vLLM (see `check_options`)."""


def mappings(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the places of the mappings in a Serve YAML that have known keys alone."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict) and path[-1:] not in {(name,) for name in FREE}:
        yield path
    for key, item in items:
        yield from mappings(item, *path, key)


@pytest.mark.parametrize(
    "place", list(mappings(EVERYTHING)), ids=lambda place: ".".join(map(str, place)) or "top"
)
def test_an_unknown_key_is_refused_wherever_it_stands(
    place: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "check", lambda _: None)  # the models are not here
    check_serve_yaml(copy.deepcopy(EVERYTHING))
    content = copy.deepcopy(EVERYTHING)
    functools.reduce(lambda value, key: value[key], place, content)["unheard"] = 1
    with pytest.raises(ValueError, match="unheard"):
        check_serve_yaml(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runtime_env": {"env_var": {}}}, "runtime_env: env_var: no such key, did you mean env_vars?"),
        (
            {"deployments": [{"name": "Router", "ray_actor_options": {"runtime_env": {"pips": []}}}]},
            "Router.ray_actor_options.runtime_env: pips: no such key, did you mean pip?",
        ),
        (
            {"deployments": [{"name": "Ingress", "request_router_config": {"request_router_clas": "a:b"}}]},
            "Ingress.request_router_config: request_router_clas: no such key, did you mean request_router_class?",
        ),
    ],
)
def test_a_misspelt_key_of_a_mapping_that_serve_takes_as_it_is(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_serve_yaml({"applications": [TANDEM | change]})
