"""Messages of another version: its further fields are left out, and those that it lacks have their defaults."""

from __future__ import annotations

import copyreg
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from ray import cloudpickle

from tandem.deployments.learning.report import Report
from tandem.deployments.messages import carry, carry_messages, made
from tandem.deployments.modes import MODES
from tandem.deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.routing.directory import Snapshot
from tandem.policies.speculation.history import TargetSnapshot


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: int = 2


class Tuple(NamedTuple):
    a: int
    b: int = 2


class Struct(msgspec.Struct):
    a: int
    b: int = 2


@pytest.mark.parametrize("kind", [Frozen, Tuple, Struct])
def test_fields_go_by_name(kind: Any) -> None:
    carry(kind)
    try:
        for pickler in (pickle, cloudpickle):
            assert pickle.loads(pickler.dumps(kind(1, 3))) == kind(1, 3)
    finally:
        del copyreg.dispatch_table[kind]
    assert made(kind, {"a": 1, "c": 7}) == kind(1), "of another version"
    with pytest.raises(TypeError):
        made(kind, {"b": 1})


def test_what_deployments_say_goes_by_name() -> None:
    carry_messages()
    endpoint = EndpointInfo("verifier 0", "v:0", "verifier")
    said = Assignment("cloud", {"target": endpoint}, replaceable=frozenset({"target"}))
    report = Report("key", "phone", 3, False, Bill(requests=1))
    for message in (RoutingRequest("cloud"), said, Snapshot(3, {"verifier": (endpoint,)}), report):
        assert pickle.loads(cloudpickle.dumps(message)) == message
    for kind in (RoutingRequest, Assignment, EndpointInfo, Snapshot, Report, Bill, TargetSnapshot):
        assert kind in copyreg.dispatch_table
    for mode in MODES.values():
        assert mode.briefing is None or mode.briefing in copyreg.dispatch_table
