"""Small configurations for tests; times are invented."""

from __future__ import annotations

from typing import Any

from tandem.simulator.config.config import Config, parse

TARGET = {"model": "t", "measured": {"base_s": 0.02, "token_s": 0.0002, "context_s": 1e-7}}
MIDDLE = {"model": "m", "first": 2, "measured": {"base_s": 0.02, "token_s": 0.0002}}
ENDS = {"base_s": 0.004, "token_s": 0.0001, "head_s": 0.002}
DEVICE = {"rates": {"prefill_tokens_per_s": 400, "decode_tokens_per_s": 80}}


def raw(**changes: Any) -> dict[str, Any]:
    """Twelve requests over two targets and five devices; `changes` replace top-level keys."""
    document: dict[str, Any] = {
        "name": "small",
        "seed": 3,
        "workload": {
            "count": 12,
            "prompt": {"mean": 40, "cv": 0.5},
            "output": {"mean": 30, "cv": 0.5},
            "arrival": {"kind": "poisson", "rate_per_s": 8.0},
            "acceptance": {"kind": "alpha", "alpha": 0.7},
        },
        "mode": "speculative",
        "window": {"name": "static", "parameters": {"size": 4}},
        "targets": [{**TARGET, "count": 2}],
        "devices": [{**DEVICE, "count": 5, "link": {"rtt_ms": 20, "jitter_ms": 4, "up_mbit_per_s": 1}}],
    }
    return document | changes


def split(**changes: Any) -> dict[str, Any]:
    """Changes of `raw` for mode split. changes: of the policies and the like."""
    link = {"rtt_ms": 4, "up_mbit_per_s": 20, "down_mbit_per_s": 40}
    return {
        "mode": "split",
        "split": changes,
        "targets": [MIDDLE],
        "devices": [{**DEVICE, "count": 5, "ends": ENDS, "link": link}],
    }


def config(**changes: Any) -> Config:
    """Parse the raw configuration."""
    return parse(raw(**changes))
