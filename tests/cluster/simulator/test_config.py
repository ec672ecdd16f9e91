from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.simulator.config import ConfigError, load, parse
from tests.cluster.simulator.configurations import DRAFTER, TARGET, raw


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"modus": 1}, r"unknown field `modus`.*allowed: name, seed, mode"),
        ({"mode": "telepathy"}, r"telepathy.*\$\.mode"),
        ({"policies": {"window": {"name": "x"}}}, "no window policy 'x'; there are: awc, dynamic, static"),
        ({"policies": {"window": {"name": "static", "parameters": {"size": 0}}}}, "policies.window: .*size"),
        ({"policies": {"batching": {"name": "fifo", "parameters": {"x": 1}}}}, "policies.batching: .*'x'"),
        ({"targets": [{**TARGET, "speed": 1}]}, r"unknown field `speed`.*allowed: .*hardware, count"),
        ({"targets": [{**TARGET, "count": 0}]}, "count must be at least 1"),
        ({"targets": [{"model": "Llama-2-7B", "hardware": "measured"}]}, "goes with the coefficients"),
        ({"targets": []}, "at least one entry"),
        ({"drafters": [{"hardware": "A40"}]}, "either hardware and model, or profile, or rates"),
        ({"drafters": [{**DRAFTER, "link": {"rtt": 1}}]}, r"unknown field `rtt`.*allowed: rtt_ms"),
        (
            {"drafters": [{**DRAFTER, "link": {"rtt_ms": 5, "jitter_ms": 9}}]},
            "jitter_s between 0 and rtt_s / 2",
        ),
        ({"workload": {"count": 0}}, "count must be at least 1"),
        ({"workload": {"kind": "trace"}}, 'kind "trace" needs a path'),
        ({"workload": {"count": 1, "acceptance": {"alpha": 1.5}}}, "alpha must be between 0 and 1"),
        ({"workload": {"count": 1, "arrivals": {}}}, r"unknown field `arrivals`.*allowed: kind, path"),
        ({"fused_window": -1}, "fused_window must be at least 0"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"configuration: .*{complaint}"):
        parse(raw(**changes))


def test_auto_topology_shares_the_counts_out() -> None:
    document = raw(
        auto_topology={
            "targets": 5,
            "drafters": 7,
            "target_mix": [{**TARGET, "model": "a"}, {**TARGET, "model": "b"}],
            "drafter_mix": [DRAFTER, DRAFTER, DRAFTER],
            "link": {"rtt_ms": 30},
        }
    )
    del document["targets"], document["drafters"]
    targets, drafters = parse(document).topology()
    assert [(t.model, t.count) for t in targets] == [("a", 3), ("b", 2)]
    assert [d.count for d in drafters] == [3, 2, 2]
    assert {d.link.rtt_ms for d in drafters} == {30}
    with pytest.raises(ConfigError, match="either auto_topology, or targets and drafters"):
        parse({**document, "targets": [TARGET], "drafters": [DRAFTER]})


def test_settings_can_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(raw()))
    config = load(
        path, ["seed=9", "targets.0.count=4", "policies.window={name: dynamic}", "workload.count=3"]
    )
    assert (config.seed, config.targets[0].count, config.workload.count) == (9, 4, 3)
    assert config.policies.window.name == "dynamic"
    for override, complaint in (
        ("seed", "wants key=value"),
        ("targets.5.count=1", "'5' is no index into a list of 1"),
        ("seed.x=1", "inside a plain value"),
        ("sead=1", r"c\.yaml: .*unknown field `sead`"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            load(path, [override])


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
