"""What a simulation says: a row per request, figures of the whole system, as JSON and as a pandas frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from cluster.simulator.config import Config
from cluster.simulator.log import Log
from cluster.simulator.server import Server

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Result:
    """logs: one a request, in order of arrival. link_waits_s: what frames waited for bandwidth or each other,
    in sum; estimates: where the hardware model's times come from; setup_s, run_s: real seconds it took."""

    config: Config
    logs: Sequence[Log]
    servers: Sequence[Server]
    events: int
    link_waits_s: float
    sent_bytes: int
    estimates: Mapping[str, Mapping[str, str]]
    setup_s: float
    run_s: float

    def frame(self) -> pd.DataFrame:
        """One row a request: arrival_s, prompt_tokens, output_tokens, ttft_s, tpot_s, e2e_s, rounds, drafted,
        accepted, acceptance, window (mean γ of distributed rounds), fused_share, switches, server, device."""
        import pandas as pd

        return pd.DataFrame([_row(log) for log in self.logs])

    def summary(self) -> dict[str, Any]:
        """Figures of the whole system; seconds, tokens/s, requests/s. Equal for equal configurations."""
        logs = self.logs
        if not logs:
            return {"requests": 0}
        begin_s, end_s = logs[0].arrival_s, max(log.last_s for log in logs)
        span_s = max(end_s - begin_s, 1e-12)
        drafted = sum(log.drafted for log in logs)
        rounds = sum(log.rounds for log in logs)
        fused = sum(log.fused_rounds for log in logs)
        origins: dict[str, int] = {}
        for log in logs:
            for origin, count in log.origins.items():
                origins[str(origin)] = origins.get(str(origin), 0) + count
        return {
            "requests": len(logs),
            "finished": sum(log.finished for log in logs),
            "span_s": span_s,
            "requests_per_s": len(logs) / span_s,
            "tokens_per_s": sum(log.tokens for log in logs) / span_s,
            "ttft_s": _spread([log.first_s - log.arrival_s for log in logs]),
            "tpot_s": _spread([_tpot_s(log) for log in logs if log.tokens > 1]),
            "e2e_s": _spread([log.last_s - log.arrival_s for log in logs]),
            "acceptance": sum(log.accepted for log in logs) / drafted if drafted else None,
            "rounds": rounds,
            "drafted": drafted,
            "window": sum(log.device_drafted for log in logs) / (rounds - fused) if rounds > fused else None,
            "fused_share": fused / rounds if rounds else None,
            "switches": sum(log.switches for log in logs),
            "migrations": sum(log.migrations for log in logs),
            "tokens_by_origin": dict(sorted(origins.items())),
            "network_wait_s": self.link_waits_s / len(logs),
            "sent_bytes": self.sent_bytes,
            "utilisation": [round(server.busy_s / span_s, 6) for server in self.servers],
            "steps": sum(server.steps for server in self.servers),
            "preempted": sum(server.preempted for server in self.servers),
            "events": self.events,
        }

    def json(self, requests: bool = True) -> bytes:
        """Configuration, summary, where the times come from, and (with `requests`) a row per request; the same
        bytes for the same configuration in any process."""
        document: dict[str, Any] = {
            "config": msgspec.to_builtins(self.config),
            "times": "simulated",
            "sources": self.estimates,
            "summary": self.summary(),
        }
        if requests:
            document["requests"] = [_row(log) for log in self.logs]
        return msgspec.json.format(msgspec.json.encode(document), indent=1)

    def write(self, path: str | Path) -> None:
        """Write `json()` to a file."""
        Path(path).write_bytes(self.json())


def _tpot_s(log: Log) -> float:
    return (log.last_s - log.first_s) / (log.tokens - 1)


def _row(log: Log) -> dict[str, Any]:
    distributed = log.rounds - log.fused_rounds
    return {
        "arrival_s": log.arrival_s,
        "prompt_tokens": log.prompt_tokens,
        "output_tokens": log.tokens,
        "ttft_s": log.first_s - log.arrival_s,
        "tpot_s": _tpot_s(log) if log.tokens > 1 else None,
        "e2e_s": log.last_s - log.arrival_s,
        "rounds": log.rounds,
        "drafted": log.drafted,
        "accepted": log.accepted,
        "acceptance": log.accepted / log.drafted if log.drafted else None,
        "window": log.device_drafted / distributed if distributed else None,
        "fused_share": 1 - distributed / log.rounds if log.rounds else None,
        "switches": log.switches,
        "migrations": log.migrations,
        "server": log.server,
        "device": log.device,
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = np.asarray(values)
    p50, p90, p99 = np.percentile(ordered, (50, 90, 99)).tolist()
    return {"mean": float(ordered.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(ordered.max())}
