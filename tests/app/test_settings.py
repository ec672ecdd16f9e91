"""The settings: the checked-in YAML holds, and a mistake is answered with the key and what is allowed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve._private.build_app import build_app
from safetensors import safe_open

from tandem.app.cli.server.up import CONFIG
from tandem.app.main import build
from tandem.app.preflight import check_serve_yaml
from tandem.app.settings import Settings
from tandem.deployments.pools.engines import (
    NullSettings,
    TorchSettings,
    VllmSettings,
    build_engine,
    context_of,
)
from tandem.deployments.pools.models import model_folder
from tandem.engine.base import Sampling
from tandem.engine.config import SchedulingChoice
from tandem.policies.scheduling.batching import Demand, batching


def test_the_checked_in_yaml_holds() -> None:
    deployment = yaml.safe_load(CONFIG.read_text())
    assert deployment["http_options"]["host"] == "127.0.0.1"
    (settings,) = check_serve_yaml(deployment)
    assert settings.endpoint.host == "127.0.0.1"


def test_an_application_without_settings_is_not_built() -> None:
    """Build as `serve deploy` and `serve run` do: for them a misspelt `args` means no settings."""
    with pytest.raises(ValueError, match="is `args` misspelt"):
        call_user_app_builder_with_args_if_necessary(build, {})
    assert call_user_app_builder_with_args_if_necessary(build, {"model": "tandem"})


@pytest.mark.parametrize(
    ("arguments", "key", "allowed"),
    [
        ({"verifer": {}}, "verifer", "Extra inputs are not permitted"),
        ({"verifier": {"replicas": -1}}, "verifier.replicas", "greater than or equal to 0"),
        (
            {"verifier": {"engine": {"kind": "gpu"}}},
            "verifier.engine",
            "'torch', 'vllm', 'llamacpp', 'openai', 'null'",
        ),
        ({"drafter": {"engine": {"kind": "null", "tokens_per_s": 0}}}, "tokens_per_s", "greater than 0"),
        ({"window": {"name": "wide"}}, "window", "static"),
        (
            {"window": {"name": "static", "parameters": {"gamma": 4}}},
            "window",
            "window policy 'static' has no parameter 'gamma'; it has size",
        ),
        (
            {"window": {"name": "static", "parameters": {"size": "four"}}},
            "window",
            "window policy 'static': size: Expected `int`, got `str`",
        ),
        ({"window": {"name": "static", "parameters": {"size": 0}}}, "window", "at least 1"),
        ({"fused_window": -1}, "fused_window", "greater than or equal to 0"),
        ({"router": {"routing": {"name": "best"}}}, "router", "jsq, random, round_robin"),
        ({"router": {"collaboration": {"name": "best"}}}, "router", "explicit"),
        ({"verifier": {"engine": {"kind": "torch", "batching": {"name": "x"}}}}, "verifier.engine", "fifo"),
        ({"hosts": [{"devices": [{"name": "a", "profile": "x"}]}]}, "profile", "native"),
        ({"hosts": [{"devices": [{"name": "drafter"}]}]}, "hosts.0.devices.0.name", "meaning of its own"),
        ({"hosts": [{"devices": [{"name": "a"}, {"name": "a"}]}]}, "hosts", "device names must differ"),
        ({"hosts": [{"devices": []}]}, "hosts.0.devices", "at least 1"),
        (
            {"hosts": [{"devices": [{"name": "a"}], "models": ["tiny", "x/tiny"]}]},
            "hosts.0",
            "names must differ: tiny, tiny",
        ),
        (
            {"hosts": [{"devices": [{"name": "a"}], "models": ["tiny"], "engine": {"kind": "null"}}]},
            "hosts.0",
            "engine null has one model; kind torch can have several",
        ),
        (
            {"hosts": [{"devices": [{"name": "a", "profiles": {"big": "native"}}], "models": ["tiny"]}]},
            "hosts.0",
            "profiles of models that are not there: ['big']",
        ),
        ({"hosts": [{"devices": [{"name": "a", "profiles": {"x": "y"}}]}]}, "profiles", "native"),
        ({"models": {"a": {"price_in": 1.0}}}, "models.a", "go together"),
        (
            {"models": {"a": {"price_in": -1.0, "price_out": 1.0}}},
            "models.a.price_in",
            "greater than or equal",
        ),
        ({"default_reader_rate": -1}, "default_reader_rate", "greater than or equal to 0"),
        ({"limits": {"step_s": 0}}, "limits.step_s", "greater than 0"),
        ({"limits": {"first_s": float("inf")}}, "limits.first_s", "finite"),
    ],
)
def test_a_mistake_names_the_key_and_what_is_allowed(
    arguments: dict[str, Any], key: str, allowed: str
) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(**arguments)
    assert key in str(raised.value)
    assert allowed in str(raised.value)


def test_the_wire_token_is_not_shown() -> None:
    settings = Settings(endpoint={"token": "hush"})  # type: ignore[arg-type]
    assert "hush" not in f"{settings!r} {settings}"
    for endpoint in ({"token": ["hush"]}, {"tokn": "hush"}, "hush"):
        with pytest.raises(ValidationError) as raised:
            Settings(endpoint=endpoint)  # type: ignore[arg-type]
        assert "endpoint" in str(raised.value)
        assert "hush" not in str(raised.value)


async def test_a_null_engine_is_built_from_its_settings() -> None:
    engine = build_engine(NullSettings(kind="null", context=99))
    assert engine.info.context == context_of(NullSettings(kind="null", context=99)) == 99
    await engine.close()


async def test_what_was_loaded_is_in_the_log(serve_log: list[logging.LogRecord]) -> None:
    engine = build_engine(TorchSettings(model="small", kv_blocks=64, threads=1))
    try:
        assert (await engine.stats()).blocks_total == 64
    finally:
        await engine.close()
    (line,) = (vars(record) for record in serve_log if record.msg.startswith("loaded"))
    assert (line["model"], line["threads"], line["dtype"], line["place"]) == ("small", 1, "float32", "cpu")
    assert (line["kv_blocks"], line["kv_tokens"], line["load_s"] > 0) == (64, 64 * 16, True)
    (file,) = model_folder("small").glob("*.safetensors")
    with safe_open(file, framework="pt") as tensors:
        sizes = [tensors.get_tensor(name).numel() for name in tensors.keys()]  # noqa: SIM118 - no dict
    assert line["parameters"] == sum(sizes)
    config = json.loads((model_folder("small") / "config.json").read_text())
    token_bytes = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 4
    assert line["kv_bytes"] == 64 * 16 * token_bytes


@pytest.mark.parametrize(("host_memory", "warnings"), [(None, 1), ({"blocks": 64}, 0)])
async def test_a_policy_that_needs_host_memory_is_warned_of_without_it(
    host_memory: dict[str, int] | None, warnings: int, serve_log: list[logging.LogRecord]
) -> None:
    given = {"model": "small", "kv_blocks": 64, "host_memory": host_memory}
    for name in ("buffer_aware", "fcfs", None):
        serve_log.clear()
        policy = name and {"name": name}
        engine = build_engine(TorchSettings.model_validate({**given, "scheduling": policy}))
        await engine.close()
        warned = [each.getMessage() for each in serve_log if each.levelno == logging.WARNING]
        assert len(warned) == (warnings if name == "buffer_aware" else 0)
        assert all("without a host tier" in line for line in warned)


@pytest.mark.parametrize(("options", "warned"), [({}, True), ({"kv_offloading_size": 4.0}, False)])
def test_vllm_has_host_memory_where_it_offloads(options: dict[str, Any], warned: bool) -> None:
    settings = VllmSettings(
        kind="vllm", model="small", scheduling=SchedulingChoice(name="buffer_aware"), options=options
    )
    assert (settings.scheduling_warning is not None) == warned


@pytest.mark.parametrize("name", list(batching))
async def test_the_batching_policy_of_the_yaml_forms_the_engines_batches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = type(batching.create(name))
    form, asked = policy.form, list[Sequence[Demand]]()

    def noting(self: object, demands: Sequence[Demand], budget: int) -> list[int]:
        asked.append(demands)
        return form(self, demands, budget)  # type: ignore[no-any-return]

    monkeypatch.setattr(policy, "form", noting)
    arguments = yaml.safe_load(CONFIG.read_text())["applications"][0]["args"]
    arguments["verifier"]["engine"] |= {"model": "small", "batching": {"name": name}}
    engine = build_engine(Settings(**arguments).verifier.engine)
    try:
        session = await engine.open([20, 21, 22], Sampling(max_tokens=5, ignore_eos=True))
        ids = [token async for tokens in session.generate() for token in tokens.ids]
    finally:
        await engine.close()
    assert len(ids) == 5
    assert len(asked) >= 5
    assert asked[0][0].pending == 3


@pytest.mark.parametrize(
    ("engine", "limit"),
    [
        ({"kind": "null", "capacity": 9}, 9),
        ({"kind": "torch", "max_sessions": 5}, 5),
        ({"kind": "torch", "max_sessions": 5, "max_running": 3}, 3),
        ({"kind": "torch", "batching": {"name": "lab", "parameters": {"size": 2}}}, 2),
    ],
)
def test_the_queue_is_measured_by_what_a_step_takes(engine: dict[str, Any], limit: int) -> None:
    assert Settings(verifier={"engine": engine}).verifier.engine.batch_limit == limit  # type: ignore[arg-type]


def test_a_model_is_a_family_name_or_a_folder(tmp_path: Any) -> None:
    assert (model_folder("target") / "config.json").exists()
    assert model_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="target, tiny, small"):
        model_folder("gpt-9")


def test_todays_settings_are_one_model() -> None:
    settings = Settings(model="m", drafter={"replicas": 0})  # type: ignore[arg-type]
    assert settings.served == {"m": settings}
    assert [where for where, _ in settings.placed_pools()] == ["verifier"]


def test_pools_of_several_models_have_names_of_their_own() -> None:
    args = {"models": {"first": {}, "org/second": {"drafter": {"replicas": 0}}}}
    settings = Settings.model_validate(args)
    assert [(name, settings.suffix(name)) for name in settings.served] == [
        ("first", ""),
        ("org/second", "org-second"),
    ]
    places = ["models.first.verifier", "models.first.drafter", "models.org/second.verifier"]
    assert [where for where, _ in settings.placed_pools()] == places
    built = build_app(build(settings), name="tandem").deployments
    pools = {each.name for each in built} - {"Scheduler", "Access", "Router", "Ingress"}
    assert pools == {"Verifier", "Drafter", "Verifier-org-second"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"models": {"a": {"aliases": ["b"]}, "b": {}}},
            "models: b: a name, alias or adapter can mean only one model",
        ),
        (
            {"model": "a", "hosts": [{"serves": ["b"], "devices": [{"name": "d"}]}]},
            "hosts: edge: serves: there is no model 'b', but a",
        ),
        ({"model": "a", "gateway": {"model": "b"}}, "gateway.model: there is no model 'b', but a"),
        ({"models": {"a": {}}, "verifier": {}}, "models: each has a verifier of its own"),
        ({"models": {"a": {}}, "model": "a"}, "models: each has a model of its own"),
        ({"models": {"a": {}, "x/y": {}, "x-y": {}}}, "models: the pools of 'x/y' and of another one"),
        ({"models": {"a": {"verifer": {}}}}, "models.a.verifer: no such key, did you mean verifier?"),
        (
            {"models": {"verifier": {"verifier": {"replicas": -1}}}},
            "models.verifier.verifier.replicas: should be greater than or equal to 0, not -1",
        ),
        (
            {"models": {"a": {}, "b": {"verifier": {"engine": {"kind": "torch", "model": "nope"}}}}},
            "models.b.verifier.engine.model: no model 'nope'",
        ),
        ({"models": {"a": {}, "b": {"tokenizer": "other"}}}, "tokenizer: the tokenizer 'other' has another"),
    ],
)
def test_a_mistake_among_several_models_is_named(arguments: dict[str, Any], said: str) -> None:
    content = yaml.safe_load(CONFIG.read_text())
    content["applications"][0]["args"] = arguments
    with pytest.raises(ValueError, match=f"^args: {re.escape(said)}"):
        check_serve_yaml(content)
