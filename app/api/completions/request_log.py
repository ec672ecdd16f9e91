"""Record of a request from its arrival to its end, when it is counted and written to the log.

The log line has the account, the outcome and the times; never text of the request or the answer, nor a secret.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from tandem.app.api.completions.admission import Admitted
from tandem.app.api.completions.choice import Choice
from tandem.app.api.completions.gather import RunJob
from tandem.app.api.http.errors import DISCONNECTED
from tandem.app.api.tracing.root import RequestTrace
from tandem.deployments.control.observation import ABORT, ERROR, OPEN, Observation
from tandem.deployments.modes import MODES
from tandem.deployments.modes.speculative.mode import Speculation
from tandem.deployments.request.job import JobStats
from tandem.engine.distribution import TOKEN_S, Distribution

logger = logging.getLogger("ray.serve")

REQUEST_ID = "x-request-id"
"""Header with the request's id, by the client or else by Serve; it is in the response, too."""
LONGEST = 64
"""Characters of a client's request id that the log keeps."""


class Record:
    """Record of one request.

    key: account: the id of an API key, at a device that of the device's key, or "anonymous"; None before it is known.
    mode: mode that the client asked for.
    """

    def __init__(
        self,
        request_id: str | None,
        observe: Callable[[Observation], object],
        trace: RequestTrace | None = None,
    ) -> None:
        """trace: begun for it, to be ended with it."""
        self._request_id, self._observe, self._trace = request_id, observe, trace
        self._came_s = time.monotonic()
        self._answer: str | None = None
        self._admitted: Admitted | None = None
        self._begun_s: float | None = None
        self._queue_s: float | None = None
        self._ttft_s: float | None = None
        self.key: str | None = None
        self.mode: str | None = None

    def begin(self, answer: str, admitted: Admitted) -> None:
        """Note that the request is admitted. answer: id of the response."""
        self._answer, self._admitted, self._begun_s = answer, admitted, time.monotonic()
        if self._trace is not None:
            self._trace.admitted(
                answer,
                admitted.model,
                admitted.jobs[0].sampling,
                len(admitted.jobs),
                admitted.prompt_tokens,
            )

    def passed_gate(self) -> None:
        """Note that the admission controller let it in."""
        assert self._begun_s is not None
        self._queue_s = time.monotonic() - self._begun_s
        if self._trace is not None:
            self._trace.passed_gate()

    def traced(self, run: RunJob) -> RunJob:
        """Return `run` with the request's trace in its jobs."""
        trace = None if self._trace is None else self._trace.of_jobs
        return run if trace is None else lambda job: run(replace(job, trace=trace))

    def sent_text(self) -> None:
        """Note that text was sent; the first time counts."""
        self._ttft_s = self._ttft_s or time.monotonic() - self._came_s

    def end(self, status: int, error: str | None = None) -> None:
        """Count the request and log it. status: of HTTP; error: code of the failure, if any."""
        total_s = time.monotonic() - self._came_s
        jobs = [choice.so_far() for choice in self._admitted.choices] if self._admitted is not None else []
        seen = self._seen(status, jobs, total_s)
        self._observe(seen)
        if self._trace is not None:
            self._trace.end(seen, error)
        if logger.isEnabledFor(logging.INFO):
            self._log(seen, error, total_s)

    def _seen(self, status: int, jobs: list[JobStats], total_s: float) -> Observation:
        mode = (jobs[0].mode if jobs else self.mode) or ""
        mode = mode if mode in MODES else OPEN  # a client's invention is no label
        if self._admitted is None:
            return Observation(mode, status)
        origins, counted = Counter[str](), defaultdict[tuple[str, str], float](float)
        for job in jobs:
            origins.update({str(origin): tokens for origin, tokens in job.by_origin.items()})
            for figures in job.figures.values():
                for counter, reason, by in figures.counted():
                    counted[counter, reason] += by
        choices = self._admitted.choices
        cut_short = ABORT if status == DISCONNECTED else ERROR if status >= 500 else ""
        ends = [choice.finish or cut_short for choice in choices]
        whole = status == 200
        readings = [c.reading for c in choices if whole and c.reading is not None and c.reading.rate]
        speculation = [Speculation.of(job) for job in jobs]
        return Observation(
            mode=mode,
            status=status,
            prompt_tokens=self._admitted.prompt_tokens if origins else 0,
            origins=dict(origins),
            finished=tuple(end for end in ends if end),
            queue_s=self._queue_s,
            ttft_s=self._ttft_s,
            total_s=total_s if whole else None,
            tpot_s=tuple((j.total_s - j.ttft_s) / (j.tokens - 1) for j in jobs if whole and j.tokens > 1),
            stall_s=sum(reading.stall_s for reading in readings) if readings else None,
            read_tokens=sum(reading.tokens for reading in readings),
            effective_tokens=sum(reading.effective_tokens for reading in readings),
            rounds=sum(figures.rounds - figures.single_rounds for figures in speculation),
            drafted=sum(figures.drafted for figures in speculation),
            accepted=sum(figures.accepted for figures in speculation),
            replans=sum(job.replans for job in jobs),
            changes=tuple(change.forecast.mode for job in jobs for change in job.changes),
            usd=sum(job.usd for job in jobs),
            joules=sum(job.joules for job in jobs),
            counted=dict(counted),
            key=self._admitted.caller.account if self._admitted.caller.keyed else "",
            device=next((job.device for job in jobs if job.device), ""),
            device_tokens_in=sum(job.used.device_in for job in jobs),
            device_tokens_out=sum(job.used.device_out for job in jobs),
            answers=len(choices),
            most_tokens=self._admitted.jobs[0].sampling.max_tokens,
            answer_tokens=tuple(job.tokens for job in jobs) if whole else (),
            decode_s=tuple(job.total_s - job.ttft_s for job in jobs) if whole else (),
            gaps_s=_gaps_s(choices),
            model=self._admitted.jobs[0].sampling.adapter or self._admitted.jobs[0].model,
            forecasts=tuple(
                each
                for job in jobs
                if whole and job.forecast is not None and not (job.replans or job.changes)
                for each in job.forecast.compared(job.ttft_s, job.tpot_s, job.tokens)
            ),
        )

    def _log(self, seen: Observation, error: str | None, total_s: float) -> None:
        said = {
            "answer": self._answer,
            "key": self.key,
            "model": seen.model or None,
            "mode": seen.mode,
            "device": seen.device or None,
            "status": seen.status,
            "error": error,
            "prompt_tokens": self._admitted.prompt_tokens if self._admitted is not None else None,
            "output_tokens": sum(seen.origins.values()),
            "queue_s": _rounded(seen.queue_s),
            "ttft_s": _rounded(seen.ttft_s),
            "total_s": _rounded(total_s),
            "replans": seen.replans,
        }
        said = {name: value for name, value in said.items() if value is not None}
        extra: dict[str, object] = {**said}
        if self._request_id is not None:
            extra["request_id"] = self._request_id[:LONGEST]
        if self._trace is not None:
            extra |= self._trace.fields
        logger.info("request %s", " ".join(f"{name}={value}" for name, value in said.items()), extra=extra)


def _gaps_s(choices: Sequence[Choice]) -> Distribution | None:
    """Return the times between tokens of all choices; None if there are none."""
    found = Distribution.over(TOKEN_S)
    for choice in choices:
        found.merge(choice.arrivals.gaps_s)
    return found if any(found.counts) else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
