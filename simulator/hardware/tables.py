"""Readers of published profiles: Vidur's and LLMServingSim's. They return seconds, for one layer.

The tables are read in place and are not part of Tandem. `keep` drops rows, for held-out validation.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path

from tandem.simulator.hardware.interpolate import Chunks, Curve, Grid

Keep = Callable[[int], bool]  # by row number
Contexts = Callable[[int, int, int], tuple[int, int]]
"""Function of a row's batch, chunk and cached tokens: context of each decoding sequence, context before the chunk."""

_VIDUR_DENSE = (
    "input_layernorm_ms",
    "attn_pre_proj_ms",
    "attn_rope_ms",
    "attn_post_proj_ms",
    "post_attention_layernorm_ms",
    "mlp_up_proj_ms",
    "mlp_act_ms",
    "mlp_down_proj_ms",
    "add_ms",
    "add_ms",  # one after attention, one after the MLP
)
_SERVINGSIM_ONCE = {"embedding", "final_layernorm", "lm_head", "attn", "sampler"}  # not part of a layer
_CPU = ("schedule_median", "sampler_e2e_median", "prepare_inputs_e2e_median", "process_model_outputs_median")


class TableError(ValueError):
    """A table that lacks expected columns or rows; the message names the file."""


def every_row(_: int) -> bool:
    """Keep all rows."""
    return True


def _rows(path: Path, *columns: str) -> Iterator[tuple[str, ...]]:
    """Iterate over these columns of every row, in this order."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        names = next(reader, [])
        missing = set(columns) - set(names)
        if missing:
            raise TableError(f"{path}, row 1: lacks the columns {', '.join(sorted(missing))}")
        yield from map(itemgetter(*map(names.index, columns)), reader)


def vidur_dense(path: Path, ways: int, keep: Keep = every_row) -> Curve:
    """Read seconds of a layer but its attention over tokens, from `mlp/*.csv`."""
    points = [
        (float(tokens), sum(float(ms or 0.0) for ms in operators_ms) / 1e3)
        for number, (workers, tokens, *operators_ms) in enumerate(
            _rows(path, "num_tensor_parallel_workers", "num_tokens", *_VIDUR_DENSE)
        )
        if int(workers) == ways and keep(number)
    ]
    if not points:
        raise TableError(f"{path}: has no rows for {ways} tensor-parallel workers")
    return Curve(points)


def servingsim_layers(path: Path, keep: Keep = every_row) -> tuple[Curve, Curve]:
    """Read a layer without attention over tokens, and the head over rows, from `layers.csv`."""
    layer: dict[float, float] = {}
    head: dict[float, float] = {}
    for name, size, ns in _rows(path, "layer_name", "input", "latency(ns)"):
        tokens = float(size)
        if not keep(int(tokens)):
            continue
        into = layer if name not in _SERVINGSIM_ONCE else head
        if name != "attn":
            into[tokens] = into.get(tokens, 0.0) + float(ns) / 1e9
    return Curve(layer.items()), Curve(head.items())


def servingsim_dense(folder: Path, keep: Keep = every_row) -> tuple[Curve, Curve]:
    """Read the curves of `servingsim_layers` from `dense.csv` and `per_sequence.csv`, which include vLLM's fused
    kernels."""
    layer: dict[float, float] = {}
    for name, size, us in _rows(folder / "dense.csv", "layer", "tokens", "time_us"):
        tokens = float(size)
        if name not in _SERVINGSIM_ONCE and keep(int(tokens)):
            times = 2 if name == "layernorm" else 1  # before attention, and before the MLP
            layer[tokens] = layer.get(tokens, 0.0) + times * float(us) / 1e6
    head: dict[float, float] = {}
    for rows, us in _rows(folder / "per_sequence.csv", "sequences", "time_us"):
        sequences = float(rows)
        head[sequences] = head.get(sequences, 0.0) + float(us) / 1e6
    return Curve(layer.items()), Curve(head.items())


def vidur_attention(path: Path, keep: Keep = every_row) -> tuple[Grid, Chunks]:
    """Read decode over batch and context of each sequence, and prefill over chunk and context before it."""
    return _attention(path, keep, lambda batch, chunk, cached: (cached, cached))


def servingsim_attention(path: Path, keep: Keep = every_row) -> tuple[Grid, Chunks]:
    """Read attention from LLMServingSim's first profiler. Its kv_cache_size is the sum over all sequences of a decode
    batch, which share it evenly (fewer tokens than sequences were never computed), and includes the chunk of a
    prefill."""
    return _attention(path, keep, lambda batch, chunk, cached: (cached // max(1, batch), cached - chunk))


def _attention(path: Path, keep: Keep, contexts: Contexts) -> tuple[Grid, Chunks]:
    decode: dict[int, list[tuple[float, float]]] = {}
    prefill: dict[int, list[tuple[float, float]]] = {}
    shape = ("is_prefill", "batch_size", "prefill_chunk_size", "kv_cache_size")
    rows = _rows(path, *shape, "attn_decode_ms", "attn_prefill_ms")
    for number, (is_prefill, size, length, kv, decode_ms, prefill_ms) in enumerate(rows):
        if not keep(number):
            continue
        batch, chunk, cached = int(size), int(length), int(kv)
        each, before = contexts(batch, chunk, cached)
        if is_prefill == "True":
            prefill.setdefault(chunk, []).append((before, float(prefill_ms) / 1e3))
        elif each:
            decode.setdefault(batch, []).append((each, float(decode_ms) / 1e3))
    return Grid(decode), Chunks(prefill)


def mixed_attention(path: Path, keep: Keep = every_row) -> tuple[Grid, Chunks]:
    """Read attention from a table of mixed batches: the rows with only decode or only prefill."""
    decode: dict[int, list[tuple[float, float]]] = {}
    prefill: dict[int, list[tuple[float, float]]] = {}
    rows = _rows(path, "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    for number, (length, before, size, each, us) in enumerate(rows):
        if not keep(number):
            continue
        chunk, batch, time_s = int(length), int(size), float(us) / 1e6
        if chunk == 0:
            decode.setdefault(batch, []).append((float(each), time_s))
        elif batch == 0:
            prefill.setdefault(chunk, []).append((float(before), time_s))
    return Grid(decode), Chunks(prefill)


def all_reduce(path: Path, ways: int) -> Curve:
    """Read seconds over bytes, for `ways` GPUs of one node."""
    points = [
        (float(size), float(ms) / 1e3)
        for workers, of_node, size, ms in _rows(
            path, "num_workers", "devices_per_node", "size", "all_reduce_ms"
        )
        if int(workers) == ways and int(of_node) == ways
    ]
    if not points:
        raise TableError(f"{path}: has no rows for {ways} GPUs of one node")
    return Curve(points)


def cpu_overhead(path: Path, model: str, ways: int) -> Curve:
    """Read the host's seconds around a step, over sequences."""
    points = [
        (float(sequences), sum(float(ms) for ms in parts_ms) / 1e3)
        for name, degree, sequences, *parts_ms in _rows(
            path, "model_name", "tensor_parallel_degree", "batch_size", *_CPU
        )
        if name.endswith(model) and int(degree) == ways
    ]
    if not points:
        raise TableError(f"{path}: has no rows for {model} on {ways} GPUs")
    return Curve(points)
