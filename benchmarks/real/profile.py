"""Step times of real models on this machine, in tables that the simulator reads.

    tandem benchmark real_profile [--out profiles] [--models DIR] [--threads 2] [--fast]

Times llama.cpp's forward pass below Tandem's engine, medians of some steps of each kind: prompts by length, and windows
by sequences × positions, after few and after many cached tokens. Each model's table is a file of its own, with the
machine in it, kept as it grows: a second run goes on from there. The machine has to be quiet. The tables that Tandem
comes with are recorded by `--out simulator/hardware/measured`, once the old ones are deleted.

By default as `benchmarks real` has it: `reproducible: true`.

MODEL_step_ms, MODEL_prompt_ms: a step of one position, and a prompt's position in a chunk of 256. MODEL_error: mean
relative error of the simulator's reading of the table on the table itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from tandem.benchmarks import report
from tandem.benchmarks.paths import MODELS
from tandem.engine.gguf.header import read_header
from tandem.simulator.hardware import TableTimer, table
from tandem.simulator.hardware.measured import MeasuredStep

if TYPE_CHECKING:
    from tandem.engine.llamacpp.model import LlamaModel

FILES = ("qwen2.5-coder-1.5b.gguf", "qwen2.5-coder-0.5b.gguf", "smollm2-135m.gguf")
CHUNKS = (16, 32, 64, 128, 256)
SEQUENCES, POSITIONS = (1, 2, 4, 8), (1, 2, 3, 5, 9)
SHORT, LONG = 128, (512, 1024)
"""Cached tokens."""
ROUNDS, CHUNK_ROUNDS = 7, 3
TOKEN = 100  # what it is does not matter

Shape = tuple[int, int, int]
"""Sequences, positions of each, cached tokens of each."""


def shapes() -> list[Shape]:
    """Return what is timed: chunks of prompts before anything is cached, then windows, and a chunk, after fewer and
    fewer tokens, so that these are computed once."""
    long = [
        (1, positions, cached) for cached in sorted(LONG, reverse=True) for positions in (1, 5, CHUNKS[3])
    ]
    short = [(sequences, positions, SHORT) for sequences in SEQUENCES for positions in POSITIONS]
    return [(1, chunk, 0) for chunk in CHUNKS] + long + short


class Stopwatch:
    """Times steps of a model. It has at least as many rows as a shape has sequences."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._cached = [0] * max(SEQUENCES)

    def step_s(self, shape: Shape) -> float:
        """Return the seconds of a step; what it computed is dropped."""
        sequences, positions, cached = shape
        for row in range(sequences):
            self._fill(row, cached)
        began_s = time.perf_counter()
        self._forward(range(sequences), cached, positions)
        seconds = time.perf_counter() - began_s
        for row in range(sequences):
            self._model.remove(row, cached, -1)
        return seconds

    def _fill(self, row: int, cached: int) -> None:
        """Have the row hold so many tokens."""
        while self._cached[row] < cached:
            count = min(max(CHUNKS), cached - self._cached[row])
            self._forward([row], self._cached[row], count)
            self._cached[row] += count
        self._model.remove(row, cached, -1)
        self._cached[row] = cached

    def _forward(self, rows: Sequence[int], start: int, positions: int) -> None:
        from tandem.engine.llamacpp.model import BatchRow

        wanted = positions if positions <= max(POSITIONS) else 1  # a window's logits, a prompt's last ones
        self._model.forward([BatchRow(row, start, [TOKEN] * positions, wanted) for row in rows])


def measure(file: Path, threads: int, reproducible: bool, out: Path) -> TableTimer:
    """Return the table of a model on this machine, what the file `out` has not got of it measured. file: GGUF."""
    from tandem.engine.llamacpp.model import LlamaModel

    steps = list(table(str(out)).steps) if out.exists() else []
    known = {(step.sequences, step.positions, step.cached) for step in steps}
    cells = max(max(LONG) + max(CHUNKS), max(SEQUENCES) * (SHORT + max(POSITIONS)))
    model = LlamaModel(
        file,
        cells=cells,
        rows=max(SEQUENCES),
        batch_tokens=max(CHUNKS),
        threads=threads,
        reproducible=reproducible,
    )
    stopwatch = Stopwatch(model)
    stopwatch.step_s((1, CHUNKS[0], 0))  # warms up
    for shape in report.progress([shape for shape in shapes() if shape not in known], file.stem):
        count = ROUNDS if shape[1] <= max(POSITIONS) else CHUNK_ROUNDS
        seconds = median(stopwatch.step_s(shape) for _ in range(count))
        steps.append(MeasuredStep(*shape, round(seconds, 6)))
        timer = TableTimer(file.stem, machine(file, threads, reproducible), steps)
        out.write_bytes(msgspec.json.encode(timer).replace(b"],[", b"],\n[") + b"\n")
    model.close()
    return TableTimer(file.stem, machine(file, threads, reproducible), steps)


def machine(file: Path, threads: int, reproducible: bool) -> str:
    """Return what the model was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "a CPU")
    cores, weights = len(os.sched_getaffinity(0)), read_header(file).quantization
    layout = ", reproducible" if reproducible else ""
    return f"{name} (cores: {cores}, threads: {threads}), {weights} on llama.cpp{layout}"


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("real_profile", __doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the models")
    parser.add_argument("--files", nargs="+", default=list(FILES), help="models in it")
    parser.add_argument("--out", type=Path, default=Path("profiles"), help="folder of the tables")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--fast", action="store_true", help="as llama.cpp is fastest, not `reproducible`")
    options = parser.parse_args(arguments)
    options.out.mkdir(exist_ok=True, parents=True)
    figures: dict[str, float] = {}
    for name in options.files:
        file = options.models / name
        timer = measure(file, options.threads, not options.fast, options.out / f"{file.stem}.json")
        figures |= {
            f"{file.stem}_step_ms": round(1e3 * timer.step_s(1, 1, SHORT), 2),
            f"{file.stem}_prompt_ms": round(1e3 * timer.step_s(256, 0, 0, [(256, 0)]) / 256, 2),
            f"{file.stem}_error": round(timer.error(), 3),
        }
    report.figures("real_profile", figures)
