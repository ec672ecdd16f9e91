"""Simulations from Python: configurations as files or plain data, results as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from tandem.simulator.config.config import Config, load, parse
from tandem.simulator.config.config import read as read_yaml
from tandem.simulator.results.analysis import Result
from tandem.simulator.runs.mode_map import asked, play, play_all
from tandem.simulator.runs.run import simulate as run
from tandem.simulator.runs.sweep import grid
from tandem.simulator.runs.sweep import sweep as run_sweep
from tandem.simulator.workload import Request

if TYPE_CHECKING:
    import pandas as pd

Source = str | Path | Mapping[str, Any] | Config
"""A configuration: a YAML file, its contents, or a parsed one."""


def simulate(
    config: Source, changes: Mapping[str, Any] | None = None, requests: Sequence[Request] | None = None
) -> Result:
    """Run a simulation in virtual time and return what became of every request.

    changes: values by dotted key, over what `config` says ({"devices.0.count": 50}).
    requests: in order of arrival, in place of the configured workload.
    Raises ConfigError, TraceError.
    """
    overrides = [f"{key}={_inline(value)}" for key, value in (changes or {}).items()]
    match config:
        case Config():
            parsed = parse(config.as_given(), overrides) if overrides else config
        case Mapping():
            parsed = parse(config, overrides)
        case _:
            parsed = load(config, overrides)
    return run(parsed, requests=requests)


def sweep(
    config: str | Path | Mapping[str, Any], vary: Mapping[str, Sequence[Any]], out: Path | None = None
) -> pd.DataFrame:
    """Simulate every combination of values and return a row for each: what was set, then the summary's figures.

    vary: values by dotted key ({"devices.0.count": [10, 50], "window.name": ["static", "awc"]}).
    out: a file that keeps what is done, from which an interrupted sweep goes on.
    The simulations run as Ray tasks. Raises ConfigError before anything runs.
    """
    import pandas as pd

    axes = [f"{key}={','.join(map(_inline, values))}" for key, values in vary.items()]
    variants = grid(read_yaml(config) if not isinstance(config, Mapping) else config, axes)
    found = {point.key: point for point in run_sweep(variants, out)}
    rows = [pd.json_normalize(found[variant.key].summary) for variant in variants]
    settings = pd.DataFrame([variant.settings for variant in variants])
    return pd.concat([settings, pd.concat(rows, ignore_index=True)], axis=1)


def mode_map(
    config: str | Path | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    changes: Mapping[str, Any] | None = None,
    objective: str = "balanced",
    out: Path | None = None,
    in_process: bool = False,
) -> pd.DataFrame:
    """Simulate every mode, and policy `auto`, at every combination of values; return a row for each simulation: what
    was set, then `mode`, `loss_usd`, `usd`, `ttft_s`, `tpot_s`, `finished`, and `picked.NAME`, the shares of the modes
    that answers ended in.

    vary, out: as for `sweep`; changes: as for `simulate`.
    objective: what counts in the losses: balanced, fast, cheap or private.
    in_process: whether the simulations run in this process, without `out`, and not as Ray tasks.
    Raises ConfigError before anything runs.
    """
    import pandas as pd

    axes = [f"{key}={','.join(map(_inline, values))}" for key, values in vary.items()]
    fixed = [f"{key}={_inline(value)}" for key, value in (changes or {}).items()]
    raw = config if isinstance(config, Mapping) else read_yaml(config)
    simulations = asked(raw, axes, objective, fixed=fixed)
    played = map(play, simulations) if in_process else play_all(simulations, out)
    found = {one.key: one for one in played}
    rows = []
    for each in simulations:
        figures = msgspec.to_builtins(found[each.key])
        rows.append(
            {**each.variant.settings, **{k: v for k, v in figures.items() if k not in ("key", "settings")}}
        )
    return pd.json_normalize(rows)


def _inline(value: Any) -> str:
    """Return a value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
