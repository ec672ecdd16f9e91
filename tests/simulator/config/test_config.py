from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.simulator.config.config import load, parse
from tandem.simulator.config.errors import ConfigError
from tests.simulator.configurations import DEVICE, TARGET, raw

A100 = {"hardware": "4xA100", "model": "Llama-2-70B"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"modus": 1}, r"modus: no such key, did you mean mode\? \(allowed: name, seed, mode"),
        (
            {"mode": "telepathy"},
            r"mode: no mode 'telepathy' \(allowed: cloud, device, speculative, race, split, sketch, null",
        ),
        ({"reader": "moon"}, r"reader: cannot be 'moon' \(allowed: 'device' or 'cloud'\)"),
        (
            {"window": {"name": "x"}},
            "window: no window policy 'x'; there are: awc, awc-paper, dynamic, gain, static",
        ),
        ({"window": {"name": "static", "parameters": {"size": 0}}}, "window: .*size"),
        (
            {"engine": {"batching": {"name": "fifo", "parameters": {"x": 1}}}},
            "engine.batching: batching policy 'fifo' has no parameter 'x'; it has size",
        ),
        (
            {"engine": {"batching": {"name": "fifo", "parameters": {"size": 1.5}}}},
            "engine.batching: batching policy 'fifo': size: Expected `int`, got `float`",
        ),
        ({"engine": {"tokenbudget": 1}}, r"engine.tokenbudget: no such key, did you mean token_budget\?"),
        ({"engine": {"host_memory": {"blocks": 9}}}, "engine.host_memory: needs copy_mb_per_s"),
        (
            {"engine": {"host_memory": {"copy_mb_per_s": 9}}},
            "target t: a measured engine with host memory needs kv_bytes",
        ),
        ({"router": {"routing": {"name": "x"}}}, "router.routing: no routing policy 'x'"),
        ({"accounts": {"budget": 2}}, "accounts.budget: should be less than or equal to 1, not 2"),
        ({"targets": [{**TARGET, "speed": 1}]}, r"targets.0.speed: no such key.*allowed: count, hardware"),
        (
            {"targets": [{**TARGET, "count": 0}]},
            "targets.0.count: should be greater than or equal to 1, not 0",
        ),
        ({"targets": [{"model": "Llama-2-7B"}]}, "targets.0: a target needs either hardware, or measured"),
        ({"targets": [{**A100, **TARGET}]}, "targets.0: a target needs either hardware, or measured"),
        ({"targets": [{**TARGET, "table": "x"}]}, "targets.0: a target needs either hardware, or measured"),
        ({"targets": [{"model": "t", "table": "abacus"}]}, "targets.0: no table 'abacus'; there are"),
        ({"targets": [{**TARGET, "draft_table": "abacus"}]}, "targets.0: no table 'abacus'; there are"),
        ({"devices": [{"table": "abacus"}]}, "devices.0: no table 'abacus'; there are"),
        ({"targets": [{"model": "t", "measured": {}}]}, "targets.0.measured.base_s: is missing"),
        (
            {"targets": [{"model": "t", "measured": {"base": 1}}]},
            r"targets.0.measured.base: no such key, did you mean base_s\?",
        ),
        (
            {"targets": [{"model": "t", "measured": {"base_s": 1, "tokens": 1}}]},
            r"targets.0.measured.tokens: no such key, did you mean token_s\? \(allowed: base_s, token_s",
        ),
        ({"targets": [{"model": "t", "measured": {"base_s": -1}}]}, "targets.0.measured: .*at least 0"),
        ({"targets": [{"hardware": "9xB7", "model": "x"}]}, "targets.0: no hardware '9xB7'; there are"),
        ({"targets": [{**A100, "hardware": "A30"}]}, "Llama-2-70B .* does not fit into A30"),
        ({"targets": []}, "targets need at least one entry"),
        ({"devices": [{"hardware": "A40"}]}, "devices.0: .*either hardware and model, or profile, or rates"),
        ({"devices": [{"profile": "abacus"}]}, "devices.0: no device profile 'abacus'; there are"),
        ({"devices": [{**DEVICE, "link": {"rtt": 1}}]}, r"devices.0.link.rtt: .*did you mean rtt_ms"),
        (
            {"devices": [{**DEVICE, "link": {"rtt_ms": 5, "jitter_ms": 9}}]},
            r"devices.0.link: .*\(5 ms\), not 9",
        ),
        (
            {"workload": {"count": 9, "arrival": {"kind": "closed", "users": 6}}},
            "workload.arrival.users: 6 need a device each, and there are 5",
        ),
        ({"devices": []}, "mode speculative needs devices, or targets with a draft_model"),
        ({"devices": [], "mode": "race"}, "mode race needs devices"),
        ({"devices": [], "mode": "cloud", "reader": "device"}, "reader device needs devices"),
        ({"workload": {"count": 0}}, "workload.count: should be greater than or equal to 1, not 0"),
        (
            {"workload": {"kind": "magic"}},
            r"workload.kind: cannot be 'magic' \(allowed: 'trace' or 'synthetic'\)",
        ),
        ({"workload": {"kind": "trace"}}, 'workload: kind "trace" needs a path'),
        ({"workload": {"count": 1, "acceptance": {"alpha": 1.5}}}, "workload.acceptance.alpha: .*not 1.5"),
        ({"workload": {"count": 1, "arrivals": {}}}, r"workload.arrivals: .*did you mean arrival\?"),
        (
            {"workload": {"count": 1, "modes": [[1, "fax"]]}},
            r"workload: modes: no mode 'fax' \(allowed: cloud",
        ),
        (
            {"workload": {"count": 1, "modes": [[0.5, "cloud"]]}},
            "workload: the shares of modes must sum to 1",
        ),
        ({"workload": {"count": 1, "readers": [[1.0, 0.0]]}}, "workload: the rates of readers"),
        ({"fused_window": -1}, "fused_window: should be greater than or equal to 0, not -1"),
        ({"data": "/typo/path"}, "data: /typo/path: there are no profiled tables"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^configuration: {complaint}") as error:
        parse(raw(**changes))
    assert "\n" not in str(error.value)


def test_auto_topology_shares_the_counts_out() -> None:
    document = raw(
        auto_topology={
            "targets": 5,
            "devices": 7,
            "target_mix": [{**TARGET, "model": "a"}, {**TARGET, "model": "b"}],
            "device_mix": [DEVICE, DEVICE, {**DEVICE, "link": {"rtt_ms": 3}}],
            "link": {"rtt_ms": 30},
        }
    )
    del document["targets"], document["devices"]
    targets, devices = parse(document).topology()
    assert [(t.model, t.count) for t in targets] == [("a", 3), ("b", 2)]
    assert [(d.count, d.link.rtt_ms) for d in devices] == [(3, 30), (2, 30), (2, 3)]
    with pytest.raises(ConfigError, match="either auto_topology, or targets and devices"):
        parse({**document, "targets": [TARGET], "devices": [DEVICE]})


def test_what_is_said_of_all_engines_holds_where_a_targets_own_says_nothing() -> None:
    own = {**TARGET, "engine": {"max_sessions": 3}}
    (first, second), _ = parse(
        raw(engine={"max_sessions": 9, "token_budget": 77}, targets=[TARGET, own])
    ).topology()
    assert (first.engine.max_sessions, first.engine.token_budget) == (9, 77)
    assert (second.engine.max_sessions, second.engine.token_budget) == (3, 77)


def test_an_engine_of_named_hardware_gets_what_nobody_said_from_it() -> None:
    (target, measured), _ = parse(raw(targets=[A100, TARGET])).topology()
    engine = target.complete_engine(None)
    assert engine.kv_tokens > 400_000  # 4 · 80 GiB, less the weights
    assert engine.max_sessions == 256
    assert engine.batching.parameters["chunk"] >= 256
    assert engine.token_budget == engine.batching.parameters["chunk"] + 256
    assert measured.complete_engine(None) == measured.engine  # as the application has it


def test_what_was_said_of_an_engine_stays() -> None:
    said = {
        "kv_blocks": 1000,
        "max_sessions": 5,
        "batching": {"name": "buffered", "parameters": {"chunk": 64}},
        "token_budget": None,
    }
    (target,), _ = parse(raw(targets=[{**A100, "engine": said}])).topology()
    engine = target.complete_engine(None)
    assert (engine.kv_blocks, engine.max_sessions, engine.token_budget) == (1000, 5, 64 + 5)
    assert engine.batching.parameters["chunk"] == 64
    assert engine.batching.parameters["context_doubles"] > 1024
    assert "from step times: context_doubles, token_budget" in target.batching_source(None)


def test_without_devices_the_reader_is_in_the_cloud() -> None:
    alone = parse(raw(devices=[], mode="cloud"))
    assert not alone.reader_at_device
    assert parse(raw()).reader_at_device


def test_a_configuration_comes_back_as_it_was_given() -> None:
    config = parse(raw(targets=[{**A100, "engine": {"max_sessions": 7}}]))
    given = config.as_given()
    assert parse(given) == config
    assert given["targets"] == [{**A100, "engine": {"max_sessions": 7}}]


def test_settings_can_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(raw()))
    config = load(path, ["seed=9", "targets.0.count=4", "window={name: dynamic}", "workload.count=3"])
    assert (config.seed, config.targets[0].count, config.workload.count) == (9, 4, 3)
    assert config.window.name == "dynamic"  # type: ignore[attr-defined]  # a field of each mode's
    for override, complaint in (
        ("seed", "wants key=value"),
        ("targets.5.count=1", "'5' is no index into a list of 1"),
        ("seed.x=1", "inside a plain value"),
        ("sead=1", r"c\.yaml: sead: no such key"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            load(path, [override])


def test_files_lie_relative_to_the_one_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those of an override, as the shell has them."""
    folder, elsewhere = tmp_path / "a", tmp_path / "b"
    for each in (folder, elsewhere):
        each.mkdir()
    trace = {
        "kind": "trace",
        "path": "t.csv",
        "acceptance": {"kind": "recorded", "path": "../accepted.jsonl"},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(raw(workload=trace)))
    monkeypatch.chdir(elsewhere)
    named = load("../a/c.yaml").workload
    assert named.path is not None
    assert named.acceptance.path is not None
    assert Path(named.path).resolve() == folder / "t.csv"
    assert Path(named.acceptance.path).resolve() == tmp_path / "accepted.jsonl"
    assert load("../a/c.yaml", ["workload.path=other.csv"]).workload.path == "other.csv"
    (folder / "c.yaml").write_text(yaml.safe_dump(raw(workload=trace | {"path": str(tmp_path / "t.csv")})))
    assert load("../a/c.yaml").workload.path == str(tmp_path / "t.csv")


def test_a_file_that_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load(path)
    path.write_text("[1, 2]")
    with pytest.raises(ConfigError, match="a mapping of name, seed"):
        load(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load(path)


def test_without_vllm_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ConfigError, match="engine: engine kind vllm needs vLLM .* it is not installed"):
        parse(raw(engine={"kind": "vllm"}))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="engine: .*'sglang'.*'torch', 'vllm'"):
        parse(raw(engine={"kind": "sglang"}))
