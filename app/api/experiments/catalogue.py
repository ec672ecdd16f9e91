"""Experiments that can be run over the API, from catalogue.yaml, and what may be changed in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from math import prod
from typing import Any

import msgspec
import yaml

from tandem.app.api.http.errors import ApiError

MOST_POINTS = 16
"""Most simulations of a sweep."""
MOST_AXES = 2

Value = float | str


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting that can be moved.

    key: dotted key in the simulation's configuration.
    label: its name for people.
    least, most: bounds of a number.
    choices: values of a setting that is none.
    default: where the configuration does not say.
    """

    key: str
    label: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    default: Value | None = None

    def check(self, value: Value, param: str) -> None:
        """Raise ApiError for a value that it may not have. param: the request's field at fault."""
        if self.choices:
            if value not in self.choices:
                raise _refused(f"{self.key} is one of {', '.join(self.choices)}, not {value!r}", param)
        elif isinstance(value, str) or not (self.least or 0) <= value <= (self.most or 0):
            raise _refused(
                f"{self.key} is a number from {self.least:g} to {self.most:g}, not {value!r}", param
            )


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experiment.

    config: of its simulations, as of a file for `tandem simulate`.
    settings: what can be moved, and swept over.
    vary: values that its sweep takes, by key; empty: one simulation.
    labels: names of these for people.
    """

    name: str
    title: str
    about: str
    config: dict[str, Any]
    settings: tuple[Setting, ...] = ()
    vary: dict[str, tuple[Value, ...]] = {}
    labels: dict[str, str] = {}

    def default(self, setting: Setting) -> Value | None:
        """Return a setting's value in the configuration."""
        found: Any = self.config
        for part in setting.key.split("."):
            found = found[int(part)] if isinstance(found, list) else found.get(part)
            if found is None:
                return setting.default
        value: Value = found
        return value

    def check(self, settings: Mapping[str, Value], vary: Mapping[str, Sequence[Value]]) -> None:
        """Raise ApiError for what may not be simulated."""
        known = {setting.key: setting for setting in self.settings}
        for key, value in settings.items():
            if key not in known:
                raise _refused(f"settings: {key} cannot be moved, but {', '.join(known)}", f"settings.{key}")
            known[key].check(value, f"settings.{key}")
        for key, values in vary.items():
            if not values or (key not in known and key not in self.vary):
                raise _refused(f"vary: {key} cannot be varied, or has no values", f"vary.{key}")
            for value in values:
                if key in known:
                    known[key].check(value, f"vary.{key}")
                elif not _alike(value, self.vary[key]):
                    raise _refused(
                        f"vary: {key} may be {_told(self.vary[key])}, not {value!r}", f"vary.{key}"
                    )
        if len(vary) > MOST_AXES or prod(map(len, vary.values())) > MOST_POINTS:
            raise _refused(f"a sweep has at most {MOST_AXES} axes and {MOST_POINTS} simulations", "vary")


@cache
def experiments() -> dict[str, Experiment]:
    """Return the experiments by name."""
    text = resources.files(__package__).joinpath("catalogue.yaml").read_text(encoding="utf-8")
    found = msgspec.convert(yaml.safe_load(text), list[Experiment])
    return {each.name: each for each in found}


def experiment(name: str) -> Experiment:
    """Return the experiment of that name. Raises ApiError."""
    if (found := experiments().get(name)) is None:
        what = f"there is no experiment {name!r}, but {', '.join(experiments())}"
        raise ApiError(404, what, code="experiment_not_found", param="experiment")
    return found


def _alike(value: Value, values: Sequence[Value]) -> bool:
    """Return whether a value is one of these, or a number between 0 and ten times the greatest."""
    numbers = [each for each in values if not isinstance(each, str)]
    if isinstance(value, str) or not numbers:
        return value in values
    return 0 < value <= 10 * max(numbers)


def _told(values: Sequence[Value]) -> str:
    if all(isinstance(each, str) for each in values):
        return " or ".join(map(str, values))
    return f"above 0 and up to {10 * max(each for each in values if not isinstance(each, str)):g}"


def _refused(message: str, param: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)
