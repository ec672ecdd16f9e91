"""The torch engine against a bare transformers loop; the gap a long prompt tears; the event loop beside it.

    tandem benchmark engine [--threads 2] [--rounds 5] [--steps 48] [--device cpu] [--shape 5m] [--context 128]
                                [--engine vllm [--grow 1]]

With --engine vllm, the vLLM engine against plain AsyncLLM instead: see `benchmarks.speed.vllm_engine`.

ms per step: the whole engine (thread, scheduler, sampling, delivery to asyncio) decoding B sessions, and
transformers' forward with its DynamicCache and an argmax, in alternation. Weights are random, of the
shape of the embedded target (5m), Llama 3.2 1B or Llama 3.1 8B: their values do not matter for time. On a GPU both
sides compute in bfloat16, and the table says how long reading the weights once takes at the speed of a copy.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tandem.benchmarks import report
from tandem.engine.base import EngineInfo, Sampling, Session
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine
from tandem.engine.torch import weights
from tandem.engine.torch.engine import start
from tandem.engine.torch.layers.linear import choices
from tandem.engine.torch.model import Model

T = TypeVar("T")

BATCHES = (1, 8, 32)
SHAPES = {
    "5m": LlamaConfig(
        vocab_size=2048,
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=6,
        num_key_value_heads=3,
        intermediate_size=512,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    ),
    "1b": LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    ),
    "8b": LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14_336,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    ),
}


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("engine", __doc__)
    parser.add_argument("--threads", type=int, default=2, help="torch threads for both sides (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="alternations (default 5)")
    parser.add_argument("--steps", type=int, default=48, help="decode steps a round (default 48)")
    parser.add_argument("--device", default="cpu", help="of torch, for both sides: cpu, cuda … (default cpu)")
    parser.add_argument("--shape", choices=SHAPES, default="5m", help="the model's (default 5m)")
    parser.add_argument("--context", type=int, default=128, help="tokens of each prompt (default 128)")
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch", help="(default torch)")
    parser.add_argument("--grow", type=int, default=1, help="of vLLM's model: times its layers (default 1)")
    options = parser.parse_args(arguments)
    if options.engine == "vllm":
        from tandem.benchmarks.speed import vllm_engine  # it needs vLLM, which not everybody has

        vllm_engine.run(options.rounds, options.steps, options.grow)
        return
    torch.set_num_threads(options.threads)
    reference, loaded = alone(partial(models, SHAPES[options.shape], torch.device(options.device)))
    info = random_info(options.shape)
    figures: dict[str, float] = {}
    rows: list[list[str]] = []
    for batch in BATCHES:
        ours: list[float] = []
        theirs: list[float] = []
        prompts = [_prompt(number, options.context) for number in range(batch)]
        for _ in report.progress(range(options.rounds), f"batch {batch}"):
            ours.append(asyncio.run(_engine_step_s(loaded, info, prompts, options.steps, options.threads)))
            theirs.append(alone(partial(_transformers_step_s, reference, prompts, options.steps)))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        figures[f"ratio_b{batch}"] = round(median(ratios), 3)
        rows.append(
            [
                f"step, batch {batch}",
                report.milliseconds(ours),
                report.milliseconds(theirs),
                report.spread(ratios),
            ]
        )
    gaps = asyncio.run(_gap_ratio(loaded, info, options.threads))
    figures["gap_ratio"] = round(gaps[1] / gaps[0], 2)
    lag_s = asyncio.run(_loop_lag_s(loaded, info, options.threads))
    figures["loop_lag_ms"] = round(lag_s * 1e3, 2)
    report.table(
        f"Torch engine, {options.shape} on {_place(loaded, options.threads)} "
        f"(median [min … max] of {options.rounds} rounds)",
        ["", "engine", "transformers", "ratio"],
        rows,
    )
    report.table(
        "Beside others",
        ["", "value"],
        [
            ["8 streams' gap, undisturbed, median", f"{gaps[0] * 1e3:.2f} ms"],
            ["… while a 2,000-token prompt is prefilled, p99", f"{gaps[1] * 1e3:.2f} ms"],
            ["event loop lag with 32 sessions decoding, p99", f"{lag_s * 1e3:.2f} ms"],
            *([] if loaded.device.type == "cpu" else [_floor(loaded)]),
        ],
    )
    for choice in choices:
        print(choice)
    report.figures("engine", figures)


def alone(work: Callable[[], T]) -> T:
    """Return the result, from a thread that ends with it, and with it its OpenMP team: so that neither side slows the
    other (see `engine.torch.engine`)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def _place(loaded: weights.Weights, threads: int) -> str:
    """Return what computes, in words."""
    return f"{threads} threads" if loaded.device.type == "cpu" else torch.cuda.get_device_name(loaded.device)


def _floor(loaded: weights.Weights) -> list[str]:
    """Return the table's row of how long a GPU reads the weights, at the speed at which it copies."""
    source = torch.empty(2**30, dtype=torch.uint8, device=loaded.device)
    target = torch.empty_like(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for copies in (3, 10):  # the first ones warm up
        begin.record()
        for _ in range(copies):
            target.copy_(source)
        end.record()
        end.synchronize()
    bytes_per_s = 10 * 2 * 2**30 / (begin.elapsed_time(end) / 1e3)  # read and written
    floor_s = loaded.parameters * loaded.dtype.itemsize / bytes_per_s
    return [f"weights read once, at {bytes_per_s / 1e12:.1f} TB/s", f"{floor_s * 1e3:.2f} ms"]


def random_info(shape: str) -> EngineInfo:
    """Return what engines of a model with random weights say of it."""
    return EngineInfo(f"random-{shape}", "none", 2048, 4096, eos=-1)


def models(shape: LlamaConfig, device: torch.device) -> tuple[LlamaForCausalLM, weights.Weights]:
    """Return the model for either side, with equal weights."""
    torch.manual_seed(0)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    with device:
        reference = LlamaForCausalLM(shape).eval().to(dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        return reference, weights.load(Path(folder), device, dtype)


def _engine(loaded: weights.Weights, info: EngineInfo, threads: int) -> CoreEngine:
    config = EngineConfig(kv_blocks=4096, token_budget=4096)
    return start(Model(loaded), info, config, threads=threads)


def _prompt(index: int, length: int) -> list[int]:
    return np.random.default_rng(index).integers(3, 2048, length).tolist()


async def _stream(engine: CoreEngine, prompt: list[int], steps: int) -> list[float]:
    """Arrival times of a session's tokens, seconds."""
    session = await engine.open(prompt, Sampling(max_tokens=steps, ignore_eos=True))
    times = await _token_times(session)
    await session.cancel()
    return times


async def _token_times(session: Session) -> list[float]:
    return [time.perf_counter() async for _ in session.generate()]


async def _engine_step_s(
    loaded: weights.Weights, info: EngineInfo, prompts: Sequence[list[int]], steps: int, threads: int
) -> float:
    """Median time between a session's tokens while the prompts' sessions decode in step, seconds."""
    engine = _engine(loaded, info, threads)
    sampling = Sampling(max_tokens=steps + 1, ignore_eos=True)
    sessions = [await engine.open(prompt, sampling) for prompt in prompts]
    while (await engine.stats()).tokens_prefilled < sum(len(prompt) - 1 for prompt in prompts):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    streams = await asyncio.gather(*map(_token_times, sessions))
    await engine.close()
    return median(b - a for times in streams for a, b in pairwise(times))


@torch.inference_mode()
def _transformers_step_s(model: LlamaForCausalLM, prompts: Sequence[list[int]], steps: int) -> float:
    ids = torch.tensor(prompts, device=model.device)
    cache = DynamicCache(config=model.config)
    token = model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)
    times = [time.perf_counter()]
    for _ in range(steps):
        token = model(input_ids=token, past_key_values=cache).logits[:, -1:].argmax(-1)
        token.tolist()
        times.append(time.perf_counter())
    return median(b - a for a, b in pairwise(times))


async def _gap_ratio(loaded: weights.Weights, info: EngineInfo, threads: int) -> tuple[float, float]:
    """(median gap of 8 decoding streams left alone, p99 of their gaps while a 2,000-token prompt is
    prefilled), seconds."""
    engine = _engine(loaded, info, threads)
    calm: list[float] = []
    disturbed: list[float] = []
    for repeat in range(5):
        streams = [asyncio.create_task(_stream(engine, _prompt(i, 128), 400)) for i in range(8)]
        await _stream(engine, _prompt(50, 16), 100)  # time for the streams to run alone
        arrival = time.perf_counter()
        first_token = (await _stream(engine, _prompt(60 + repeat, 2000), 1))[0]
        for times in await asyncio.gather(*streams):
            for a, b in pairwise(times):
                if b < arrival:
                    calm.append(b - a)
                elif b <= first_token:
                    disturbed.append(b - a)
    await engine.close()
    return median(calm), float(np.percentile(disturbed, 99))


async def _loop_lag_s(loaded: weights.Weights, info: EngineInfo, threads: int) -> float:
    """p99 of how late a 2 ms timer of the event loop fires while 32 sessions decode, seconds."""
    engine = _engine(loaded, info, threads)
    streams = asyncio.gather(*(_stream(engine, _prompt(i, 128), 200) for i in range(32)))
    loop = asyncio.get_running_loop()
    lags: list[float] = []
    while not streams.done():
        due = loop.time() + 0.002
        fired: asyncio.Future[float] = loop.create_future()
        loop.call_at(due, lambda f=fired: f.set_result(loop.time()))  # type: ignore[misc]
        lags.append(await fired - due)
    await streams
    await engine.close()
    return float(np.percentile(lags, 99))
