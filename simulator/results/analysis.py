"""Result of a simulation: a row per request and figures of the whole system, as JSON and as a pandas frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tandem.deployments.modes.figures import FIGURES
from tandem.deployments.request.job import figures_by_mode
from tandem.policies.reader.quality import ReaderStream, assess, effective_tokens, stall_s
from tandem.simulator.config.config import Config
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.world.world import ReplicaLoad

if TYPE_CHECKING:
    import pandas as pd


class Service(NamedTuple):
    """Statistics of a server.

    busy_s: seconds in which its hardware computed.
    steps: forward passes.
    step_s, step_deviation_s: mean and standard deviation of what they take alone; of a pipeline, those of its first
        stage.
    preempted: number of preemptions.
    open_sessions: left at the end.
    """

    busy_s: float
    steps: int
    step_s: float
    step_deviation_s: float
    preempted: int
    open_sessions: int


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one simulation; it keeps no reference to the world.

    answers: one per request, in order of arrival.
    servers: of the verifiers' pool.
    loads: open sessions over time, by pool (or "device").
    budgets: by constrained side, the prompt tokens of the latest races, and those that it took in.
    events: callbacks that the loop has run.
    link_waits_s: total time that frames waited for bandwidth or each other.
    sent_bytes: total bytes sent over links.
    replica_s: total seconds of servers' lives.
    estimates: sources of the hardware model's times.
    setup_s, run_s: real seconds that it took.
    """

    config: Config
    answers: Sequence[SimulatedAnswer]
    servers: Sequence[Service]
    loads: Mapping[str, Sequence[ReplicaLoad]]
    budgets: Mapping[str, tuple[float, float]]
    events: int
    link_waits_s: float
    sent_bytes: int
    replica_s: float
    estimates: Mapping[str, Mapping[str, str]]
    setup_s: float
    run_s: float

    def frame(self) -> pd.DataFrame:
        """Return one row per request, see `row`; a mode's figures in columns such as `modes.speculative.rounds`."""
        import pandas as pd

        return pd.json_normalize([row(answer) for answer in self.answers])

    def summary(self) -> dict[str, Any]:
        """Return figures of the whole system; seconds, tokens/s, requests/s. Equal for equal configurations.

        failures: by the code of the error.
        cut: answers that ended at a limit before their trace does.
        replans: how often requests went on elsewhere.
        usd: cost of all tokens.
        device_joules: energy of devices.
        budgets: of races, see `Result`.
        """
        answers = self.answers
        begun = [answer for answer in answers if answer.tokens]
        span_s = max(max((a.last_s for a in begun), default=0.0) - answers[0].arrival_s, 1e-12)
        origins, failures = Counter[str](), Counter[str]()
        for answer in answers:
            origins.update(answer.origins)
            if answer.failure is not None:
                failures[answer.failure] += 1
        return {
            "requests": len(answers),
            "finished": sum(answer.finished for answer in answers),
            "failed": failures.total(),
            "failures": dict(sorted(failures.items())),
            "cut": sum(answer.cut for answer in answers),
            "replans": sum(a.stats.replans for a in answers if a.stats is not None),
            "span_s": span_s,
            "requests_per_s": sum(answer.finished for answer in answers) / span_s,
            "tokens_per_s": sum(answer.tokens for answer in answers) / span_s,
            "ttft_s": _spread([a.ttft_s for a in begun]),
            "tpot_s": _spread([a.tpot_s for a in begun if a.tokens > 1]),
            "e2e_s": _spread([a.e2e_s for a in begun]),
            "modes": FIGURES.dump_python(figures_by_mode(a.stats for a in answers if a.stats is not None)),
            "tokens_by_origin": dict(sorted(origins.items())),
            "reading": self.reading(),
            "usd": sum(a.stats.usd for a in answers if a.stats is not None),
            "device_joules": sum(a.stats.joules for a in answers if a.stats is not None),
            "budgets": {
                str(side): {"prompt_tokens": tokens, "taken_in": spent, "share": spent / tokens}
                for side, (tokens, spent) in sorted(self.budgets.items())
                if tokens
            },
            "network_wait_s": self.link_waits_s / len(answers),
            "sent_bytes": self.sent_bytes,
            "replica_s": self.replica_s,
            "utilisation": [round(server.busy_s / span_s, 6) for server in self.servers],
            "steps": sum(server.steps for server in self.servers),
            "preempted": sum(server.preempted for server in self.servers),
            "events": self.events,
        }

    def reading(self) -> dict[str, Any] | None:
        """Return the readers' quality (`policies.reader.quality.Quality`); None without readers."""
        streams = [
            ReaderStream(answer.arrival_s, answer.times_s, answer.rate)
            for answer in self.answers
            if answer.rate and answer.times_s is not None
        ]
        return asdict(assess(streams)) if streams else None

    def json(self, requests: bool = True) -> bytes:
        """Return configuration, summary, sources of times, and (with `requests`) a row per request and the pools'
        loads; equal bytes for equal configurations in any process."""
        document: dict[str, Any] = {
            "config": self.config.model_dump(mode="json"),
            "times": "simulated",
            "sources": self.estimates,
            "summary": self.summary(),
        }
        if requests:
            document["requests"] = [row(answer) for answer in self.answers]
            document["loads"] = self.loads
        return msgspec.json.format(msgspec.json.encode(document), indent=1)

    def write(self, path: str | Path) -> None:
        """Write `json()` to a file."""
        Path(path).write_bytes(self.json())


def row(answer: SimulatedAnswer) -> dict[str, Any]:
    """Return a request's figures. Times in seconds; None if a figure does not apply.

    modes: figures of each mode that served it.
    stall_s, effective_tokens: of a reader, see `policies.reader.quality`.
    usd, joules: total cost, and energy of devices.
    finish: "stop", "length", or None with a failure, the code of the error that ended it.
    """
    stats = answer.stats
    read = answer.times_s if answer.rate and answer.times_s else None
    return {
        "arrival_s": answer.arrival_s,
        "mode": answer.mode,
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.tokens,
        "ttft_s": answer.ttft_s if answer.tokens else None,
        "tpot_s": answer.tpot_s if answer.tokens > 1 else None,
        "e2e_s": answer.e2e_s if answer.tokens else None,
        "modes": {} if stats is None else FIGURES.dump_python(stats.figures),
        "stall_s": None if read is None else stall_s(read, answer.rate),
        "effective_tokens": None if read is None else effective_tokens(read, answer.rate),
        "usd": 0.0 if stats is None else stats.usd,
        "joules": 0.0 if stats is None else stats.joules,
        "replans": 0 if stats is None else stats.replans,
        "finish": answer.finish,
        "failure": answer.failure,
        "server": answer.server,
        "device": answer.device,
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = np.asarray(values)
    p50, p90, p99 = np.percentile(ordered, (50, 90, 99)).tolist()
    return {"mean": float(ordered.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(ordered.max())}
