"""Comparison of two Serve applications: what a change starts, ends, replaces or changes in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.schema import ServeApplicationSchema

from tandem.app.main import LIVE
from tandem.app.preflight import IMPORT_PATH

REPLACED_BY = frozenset(
    {
        "ray_actor_options",
        "placement_group_bundles",
        "placement_group_strategy",
        "placement_group_bundle_label_selector",
        "placement_group_fallback_strategy",
        "max_replicas_per_node",
        "gang_scheduling_config",
    }
)
"""Options of a deployment that Serve does not change without new replicas."""
SECRET = frozenset({"token", "secret", "password", "env_vars"})
"""Keys whose values are not shown."""
UNSAID = object()
"""Value of a setting that a file leaves out."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that differs. where: its place; before, after: its values, UNSAID where it is left out."""

    where: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if SECRET & set(self.where.split(".")):
            return f"{self.where}: another value"
        return f"{self.where}: {_shown(self.before)} → {_shown(self.after)}"


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect of a change.

    what: it in words.
    differences: their causes.
    hint: how it could be had for less; "" if it could not.
    """

    what: str
    differences: tuple[Difference, ...] = ()
    hint: str = ""


def compare(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> list[Effect]:
    """Return the effects of a change of the applications `before` to those of `after`, by their names."""
    effects = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            effects.append(Effect(f"{name} ends: it is not in the file"))
        elif name not in before:
            effects.append(Effect(f"{name} starts"))
        else:
            effects += _effects(name, before[name], after[name])
    return effects


def _effects(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Effect]:
    old, new = _application(before), _application(after)
    parts_before, parts_after = _deployments(old), _deployments(new)
    replaced = get_app_code_version(old) != get_app_code_version(new)
    if replaced:
        causes = tuple(differences(_whole(old), _whole(new)))
        yield Effect(
            f"{name}: all replicas are replaced, each when its successor answers; device hosts with unchanged "
            "settings stay",
            causes,
            _hint(new, causes),
        )
    for part in sorted(parts_before.keys() | parts_after.keys()):
        unsaid = {"name": part}
        found = list(differences(parts_before.get(part, unsaid), parts_after.get(part, unsaid)))
        anew = tuple(each for each in found if each.where.split(".")[0] in REPLACED_BY)
        if anew and not replaced:
            yield Effect(
                f"{name}: the replicas of {part} are replaced, each when its successor answers", anew
            )
        if lightly := tuple(each for each in found if each not in anew):
            yield Effect(f"{name}: {part} changes in place", lightly)
    if old.route_prefix != new.route_prefix:
        route = Difference("route_prefix", old.route_prefix, new.route_prefix)
        yield Effect(f"{name} changes in place", (route,))


def _application(content: Mapping[str, Any]) -> ServeApplicationSchema:
    return ServeApplicationSchema.model_validate({k: v for k, v in content.items() if v is not None})


def _deployments(application: ServeApplicationSchema) -> dict[str, dict[str, Any]]:
    return {each.name: each.model_dump(exclude_unset=True) for each in application.deployments}


def _whole(application: ServeApplicationSchema) -> dict[str, Any]:
    """Return the settings whose change is a new version."""
    return {
        "args": application.args,
        "import_path": application.import_path,
        "runtime_env": application.runtime_env,
    }


def _hint(new: ServeApplicationSchema, causes: tuple[Difference, ...]) -> str:
    """Return how the same comes without replacements: as `user_config`, if every cause is a live setting."""
    if new.import_path != IMPORT_PATH or not causes:
        return ""
    takers: dict[str, list[str]] = {}
    for cause in causes:
        part, _, setting = cause.where.partition(".")
        setting = setting.split(".")[0]
        names = [name for name, live in LIVE.items() if setting in live.model_fields]
        if setting == "hosts":
            names = ["Scheduler"]
        if part != "args" or not names:
            return ""
        for each in names:
            takers.setdefault(each, []).append(setting)
    said = "; ".join(f"{name}: {', '.join(dict.fromkeys(settings))}" for name, settings in takers.items())
    return f"without replacements: args as before, and these as user_config of deployments: {said}"


def differences(before: Any, after: Any, where: str = "") -> Iterator[Difference]:
    """Yield the settings that differ between two mappings, as deep as both have mappings."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            inside = f"{where}.{key}" if where else str(key)
            yield from differences(before.get(key, UNSAID), after.get(key, UNSAID), inside)
    elif before != after:
        yield Difference(where, before, after)


def _shown(value: Any) -> str:
    if value is UNSAID:
        return "not said"
    if isinstance(value, Mapping):
        hidden = {k: "…" if k in SECRET else v for k, v in value.items()}
        return "{" + ", ".join(f"{k}: {_shown(v)}" for k, v in hidden.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)
