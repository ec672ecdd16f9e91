"""Cost of traces to an answer: CPU time of the executor over null engines, with traces, without, and at another commit.

Each side runs in a process of its own, in turns; an answer has 64 tokens, in mode cloud (each a call of its own) or
speculative (rounds of four drafts). With traces, spans are batched and encoded for OTLP as they are when they are
exported, and then dropped.

off_ratio: CPU time of this tree without traces over that of the other commit; the median pair of the slower mode.
on_ratio: CPU time with traces over that without; likewise.
on_us: microseconds that traces add to an answer, of the mode in which that is more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tandem.benchmarks import baseline, report
from tandem.benchmarks.baseline import Side
from tandem.benchmarks.executor import local_executor
from tandem.benchmarks.paths import ROOT
from tandem.deployments.request.job import Job
from tandem.engine.base import Sampling
from tandem.engine.null.engine import NullEngine
from tandem.policies.speculation.window import StaticWindow

MODES = ("cloud", "speculative")
TOKENS = 64
WARM = 50
CODE = "import runpy; it = runpy.run_path({file!r}); it['measure']({answers}, {traced})"


def measure(answers: int, traced: Callable[[Job], Any] | None = None) -> None:
    """Print the CPU seconds of an answer by mode. traced: begins a trace of a job, and ends it when it is called."""
    print(json.dumps(asyncio.run(_measured(answers, traced))))


async def _measured(answers: int, traced: Callable[[Job], Any] | None) -> dict[str, float]:
    engine = NullEngine()
    executor = local_executor(lambda _: engine, lambda: StaticWindow(4), drafter=True)
    seconds = {}
    for mode in MODES:
        job = Job(1, (5, 17, 400), Sampling(max_tokens=TOKENS), mode=mode)
        for number in range(WARM + answers):
            if number == WARM:
                began_s = time.process_time()
            this, end = (job, None) if traced is None else traced(job)
            async for _ in executor.run(this):
                pass
            if end is not None:
                end()
        seconds[mode] = (time.process_time() - began_s) / answers
    await executor.settled()
    return seconds


def traced(job: Job) -> tuple[Job, Callable[[], None]]:
    """Return the job below a request's span, and what ends that."""
    from tandem.deployments.tracing.trace import Trace

    root = Trace(_tracer(), "chat null")
    gate = root.child("gate")
    gate.end()
    return replace(job, trace=root), root.end


_tracers: list[Any] = []


def _tracer() -> Any:
    if not _tracers:
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

        class Encoding(SpanExporter):
            def export(self, spans: Any) -> SpanExportResult:
                encode_spans(spans).SerializeToString()
                return SpanExportResult.SUCCESS

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(Encoding()))
        _tracers.append(provider.get_tracer("benchmark"))
    return _tracers[0]


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("tracing", __doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--answers", type=int, default=400)
    baseline.add_option(parser, default="")
    options = parser.parse_args(arguments)

    def side(traced: str, tree: Path = ROOT) -> Side:
        return Side(CODE.format(file=__file__, answers=options.answers, traced=traced), tree)

    with baseline.worktree(options.base) as tree:
        sides = {"without": side("None"), "with": side("it['traced']")}
        if tree is not None:
            sides["before"] = side("None", tree)
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for turn in report.progress(range(options.rounds), "sides"):
            for name in (list(sides), list(reversed(sides)))[turn % 2]:
                runs[name].append(sides[name].run().said)
    report.table(
        f"CPU microseconds of an answer of {TOKENS} tokens (median [min … max])",
        ["mode", *(f"{name} traces" if name != "before" else options.base for name in runs)],
        [
            [mode, *(report.spread([1e6 * run[mode] for run in found]) for found in runs.values())]
            for mode in MODES
        ],
    )
    beside = list(zip(runs["with"], runs["without"], strict=True))
    added_s = max(median([on[mode] - off[mode] for on, off in beside]) for mode in MODES)
    figures = {"on_ratio": _ratio(runs, "with", "without"), "on_us": round(1e6 * added_s, 1)}
    if "before" in runs:
        figures["off_ratio"] = _ratio(runs, "without", "before")
    report.figures("tracing", figures)


def _ratio(runs: Mapping[str, Sequence[Mapping[str, float]]], new: str, old: str) -> float:
    """Return the median ratio of runs that stood beside each other, of the mode in which it is greater."""
    pairs = list(zip(runs[new], runs[old], strict=True))
    return round(max(median([a[mode] / b[mode] for a, b in pairs]) for mode in MODES), 3)
