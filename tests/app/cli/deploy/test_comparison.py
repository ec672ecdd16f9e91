"""Comparison of Serve applications: what Serve does when one becomes the other."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tandem.app.cli.deploy.comparison import Difference, compare, differences

TANDEM: dict[str, Any] = {
    "import_path": "tandem.app.main:build",
    "args": {"model": "tandem", "verifier": {"engine": {"kind": "null"}}, "endpoint": {"token": "hush"}},
    "deployments": [{"name": "Verifier", "num_replicas": 1}],
}


def becomes(**changes: Any) -> list[str]:
    """Return what happens, line by line, when the application's parts change."""
    after = copy.deepcopy(TANDEM) | changes
    lines = []
    for effect in compare({"tandem": TANDEM}, {"tandem": after}):
        lines += [effect.what, *map(str, effect.differences), *([effect.hint] if effect.hint else [])]
    return lines


def test_the_same_changes_nothing() -> None:
    assert becomes() == []
    assert becomes(logging_config=None) == []


def test_options_of_deployments_change_in_place() -> None:
    live = {"window": {"name": "gain"}}
    assert becomes(
        deployments=[{"name": "Verifier", "num_replicas": 2}, {"name": "Ingress", "user_config": live}]
    ) == [
        "tandem: Ingress changes in place",
        "user_config: not said → {window: {name: gain}}",
        "tandem: Verifier changes in place",
        "num_replicas: 1 → 2",
    ]
    assert becomes(route_prefix="/there") == ["tandem changes in place", "route_prefix: / → /there"]


def test_resources_replace_the_replicas_that_have_them() -> None:
    verifier = {"name": "Verifier", "num_replicas": 1, "ray_actor_options": {"num_gpus": 1.5}}
    assert becomes(deployments=[verifier]) == [
        "tandem: the replicas of Verifier are replaced, each when its successor answers",
        "ray_actor_options: not said → {num_gpus: 1.5}",
    ]


def test_settings_replace_everything_and_what_needs_none_is_told() -> None:
    engine = {"kind": "null", "context": 512}
    args = TANDEM["args"] | {"verifier": {"engine": engine}, "window": {"name": "gain"}}
    lines = becomes(args=args)
    assert lines[0].startswith("tandem: all replicas are replaced")
    assert lines[1:] == [
        "args.verifier.engine.context: not said → 512",
        "args.window: not said → {name: gain}",
    ]
    assert becomes(args=TANDEM["args"] | {"window": {"name": "gain"}})[-1].endswith("Ingress: window")
    assert becomes(args=TANDEM["args"] | {"hosts": []})[-1].endswith("Scheduler: hosts")
    assert becomes(runtime_env={"env_vars": {"A": "b"}})[1:] == ["runtime_env.env_vars: another value"]


def test_no_secret_is_shown() -> None:
    lines = becomes(args=TANDEM["args"] | {"endpoint": {"token": "louder"}})
    assert lines[1:] == ["args.endpoint.token: another value"]
    assert "louder" not in str(becomes(args={"endpoint": {"token": "louder"}, "model": "other"}))
    assert "hush" not in str(becomes(args={"model": "other"}))


def test_applications_come_and_go() -> None:
    assert [effect.what for effect in compare({"old": TANDEM}, {"new": TANDEM})] == [
        "new starts",
        "old ends: it is not in the file",
    ]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, [Difference("a.b", [1, 2], [1, 3])]),
        ({"a": {"b": 1}}, {"a": None}, [Difference("a", {"b": 1}, None)]),
    ],
)
def test_differences_are_as_deep_as_both_are(before: Any, after: Any, found: list[Difference]) -> None:
    assert list(differences(before, after)) == found
