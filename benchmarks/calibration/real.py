"""Answers of `benchmarks real` beside the simulator's: the same prompts, lengths, acceptances and settings.

Step times are those of the models' tables (`real_profile`); acceptances are recorded (`real_record`), but for a drafter
of another vocabulary, whose tokens are accepted as often as the run says, in random places. Each mode is simulated by
itself, one request after the other. Not simulated: what a prompt holds for lookups, prompts that a KV cache still
holds, and two models that compute on the same cores at once, as in races here. Mode sketch and modes that have an API
of their own are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from tandem.benchmarks.calibration.errors import Compared, Figures, show
from tandem.benchmarks.real.live import MODES
from tandem.benchmarks.real.recording import Recorded
from tandem.benchmarks.real.results import Answer, last_run
from tandem.benchmarks.real.tasks import SETS
from tandem.engine.config import EngineConfig
from tandem.engine.llamacpp.config import LlamacppConfig
from tandem.simulator.config.config import Config, parse
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request
from tandem.simulator.workload.acceptance import bernoulli
from tandem.simulator.workload.request import unpack

APART_S = 1000.0  # so that a request finds everything idle
SIMULATED = tuple(mode for mode in MODES if mode != "sketch")
AS_LIVE = ("window", "fused_window", "router", "racing", "accounts", "limits")
"""Sections of the application's settings that a simulation has, too."""


def errors(results: Path, recorded: Sequence[Recorded], tables: Path | None) -> Figures:
    """Print the comparison of a results file's last run; return its figures. tables: folder of the models' tables;
    None for those that the simulator knows. Raises ValueError for a run of another engine."""
    answers = last_run(results, SIMULATED)
    settings = json.loads(answers[0].settings)
    by_mode: dict[str, list[Answer]] = {}
    for answer in answers:
        by_mode.setdefault(answer.mode, []).append(answer)
    return show(
        "Real models, live → simulated (links emulated in both), medians of a mode",
        ["TTFT ms", "tokens/s"],
        compared(settings, by_mode, {(one.set, one.task): one for one in recorded}, tables),
    )


def compared(
    settings: Mapping[str, Any],
    by_mode: Mapping[str, Sequence[Answer]],
    recorded: Mapping[tuple[str, str], Recorded],
    tables: Path | None,
) -> Iterator[Compared]:
    """Yield each mode's figures of both worlds. recorded: by set and task; answers to others are left out."""
    for mode, found in by_mode.items():
        answers = [answer for answer in found if (answer.set, answer.task) in recorded]
        if not answers:
            continue
        shares = acceptance(answers, recorded, foreign=_is_foreign(settings, mode))
        requests = [
            Request(
                APART_S * place,
                recorded[answer.set, answer.task].prompt_tokens,
                answer.tokens,
                accepted,
                max_tokens=max(answer.tokens, SETS[answer.set].tokens),
                reader_rate=msgspec.json.decode(answer.stats)["reader"]["rate"],
            )
            for place, (answer, accepted) in enumerate(zip(answers, shares, strict=True))
        ]
        simulated = simulate(topology(settings, mode, tables), requests=requests).answers
        if failures := {one.failure for one in simulated if not one.finished}:
            raise RuntimeError(f"{mode}: simulated requests failed: {failures}")
        yield Compared(
            mode,
            "real",
            _figures([a.first_s for a in answers], [a.tokens_per_s for a in answers]),
            _figures([a.ttft_s for a in simulated], [a.tokens / a.e2e_s for a in simulated]),
        )


def _figures(ttft_s: Sequence[float], rates: Sequence[float]) -> Figures:
    return {"ttft": median(ttft_s), "rate": median(rates)}


def acceptance(
    answers: Sequence[Answer], recorded: Mapping[tuple[str, str], Recorded], foreign: bool
) -> list[bytes]:
    """Return the acceptance of each answer's tokens; where an answer is longer than what is recorded of it, by the
    recorded rate. foreign: whether the drafter has another vocabulary than the recorded one."""
    lengths = [answer.tokens for answer in answers]
    if foreign:
        rounds = [msgspec.json.decode(answer.stats)["modes"].get("speculative", {}) for answer in answers]
        drafted = sum(one.get("drafted", 0) for one in rounds)
        return bernoulli(lengths, sum(one.get("accepted", 0) for one in rounds) / max(1, drafted), seed=0)
    found = [unpack(recorded[answer.set, answer.task].acceptance) for answer in answers]
    rates = [sum(one) / len(one) for one in found]
    return [
        one[:length] + bernoulli([max(0, length - len(one))], rate, seed=place)[0]
        for place, (one, length, rate) in enumerate(zip(found, lengths, rates, strict=True))
    ]


def _is_foreign(settings: Mapping[str, Any], mode: str) -> bool:
    """Whether the mode's drafter is not the recorded one."""
    if MODES[mode]["mode"] != "speculative" or (name := MODES[mode].get("device")) is None:
        return False
    drafter: str = settings["drafter"]["engine"]["model"]
    return bool(_device(settings, name)[0]["model"] != drafter)


def _device(settings: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the engine of the device's host, and its link."""
    return next(
        (host["engine"], device["link"])
        for host in settings["hosts"]
        for device in host["devices"]
        if device["name"] == name
    )


def topology(settings: Mapping[str, Any], mode: str, tables: Path | None) -> Config:
    """Return the simulation of a mode with the application's settings."""
    options = MODES[mode]
    target = settings["verifier"]["engine"]
    config: dict[str, Any] = {
        "name": mode,
        "mode": options["mode"],
        "reader": "cloud",
        "workload": {"count": 1},  # the run's own requests take its place
        "engine": _limits(target),
        "targets": [{"model": Path(target["model"]).stem, "table": _table(target, tables)}],
        **{key: settings[key] for key in AS_LIVE if key in settings},
    }
    if "budget" in options:
        config["accounts"] = {**config.get("accounts", {}), "budget": options["budget"]}
    if (name := options.get("device")) is not None:
        engine, link = _device(settings, name)
        config["devices"] = [
            {"table": _table(engine, tables), "sessions": engine["max_sessions"], "link": link}
        ]
    elif options["mode"] == "speculative":
        config["targets"][0]["draft_table"] = _table(settings["drafter"]["engine"], tables)
    return parse(config)


def _limits(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's memory and limits, without lookups: simulated tokens repeat nothing."""
    known = {key: value for key, value in engine.items() if key in LlamacppConfig.model_fields}
    return LlamacppConfig(**known).model_dump(include=set(EngineConfig.model_fields)) | {"lookup": 0}


def _table(engine: Mapping[str, Any], tables: Path | None) -> str:
    """Return the name of the table of an engine's model. Raises ValueError."""
    if engine["kind"] != "llamacpp":
        raise ValueError(f"there are step times of llama.cpp, and none of an engine of kind {engine['kind']}")
    name = Path(engine["model"]).stem
    return name if tables is None else str(tables / f"{name}.json")
