"""The registries of all families."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from tandem.policies.base import Registry, UnknownParameter, UnknownPolicy, WrongParameter, families, policy
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tandem.policies.scheduling import scheduling
from tandem.policies.scheduling.batching import batching
from tandem.policies.speculation.window import window


@pytest.mark.parametrize("registry", [batching, collaboration, routing, window], ids=lambda r: r.family)
def test_an_unknown_name_is_told_what_there_is(registry: Registry) -> None:
    assert list(registry) == sorted(registry)
    with pytest.raises(UnknownPolicy) as caught:
        registry.create("no such")
    assert registry.family in str(caught.value)
    assert all(name in str(caught.value) for name in registry)
    for name in registry:
        assert registry.create(name) is not None


def test_a_name_is_given_once() -> None:
    registry: Registry[object] = Registry("test")
    registry.register("one")(object)
    with pytest.raises(ValueError, match="'one' is registered twice"):
        registry.register("one")(object)


class Sized(NamedTuple):
    size: int = 1


class Weighed:
    def __init__(self, weight: float = 1.0, names: Mapping[str, int] | None = None) -> None:
        self.weight, self.names = weight, names


def test_parameters_reach_the_policy() -> None:
    registry: Registry[object] = Registry("test")
    registry.register("sized")(Sized)
    registry.register("plain")(object)
    assert registry.create("sized", size=3) == Sized(3)
    with pytest.raises(UnknownParameter, match="test policy 'sized' has no parameter 'siz'; it has size"):
        registry.create("sized", siz=3, length=4)
    with pytest.raises(UnknownParameter, match="'plain' has no parameter 'size'; it has none"):
        registry.create("plain", size=3)


@pytest.mark.parametrize(
    ("name", "parameters", "complaint"),
    [
        ("sized", {"size": "four"}, "size: Expected `int`, got `str`"),
        ("sized", {"size": 3.5}, "size: Expected `int`, got `float`"),
        ("weighed", {"weight": None}, "weight: Expected `float`, got `null`"),
        ("weighed", {"names": {"a": "b"}}, "names: Expected `int`, got `str`"),
    ],
)
def test_a_parameter_of_another_type_is_named(
    name: str, parameters: dict[str, object], complaint: str
) -> None:
    registry: Registry[object] = Registry("test")
    registry.register("sized")(Sized)
    registry.register("weighed")(Weighed)
    with pytest.raises(WrongParameter, match=f"^test policy '{name}': {complaint}"):
        registry.create(name, **parameters)
    assert registry.create("weighed", weight=2, names={"a": 1}) is not None, "an integer is a number"


def test_a_policy_is_built_by_its_family_and_name() -> None:
    assert type(policy("window", "static", size=3)) is type(window.create("static"))
    with pytest.raises(UnknownPolicy, match=r"no family of policies 'windows'; there are: .*routing.*window"):
        policy("windows", "static")
    assert families()["window"] == list(window)


def test_a_policy_is_found_in_whatever_module_it_lies() -> None:
    """In a process that has imported nothing but the family's own module."""
    script = "from tandem.policies.base import family; print(*family('FAMILY'))"
    for registry, name in ((window, "awc"), (scheduling, "buffer_aware")):
        found = subprocess.run(
            [sys.executable, "-c", script.replace("FAMILY", registry.family)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert name in found.stdout.split()
        assert found.stdout.split() == list(registry)


def test_a_family_is_the_same_object_however_it_travels() -> None:
    assert pickle.loads(pickle.dumps(window)) is window
    assert "awc" in pickle.loads(pickle.dumps(window.create)).__self__
