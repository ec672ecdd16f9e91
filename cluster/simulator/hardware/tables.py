"""Readers of published profiles: Vidur's and LLMServingSim's. Times come out in seconds, for one layer.

The tables are read where they lie and are not part of Tandem. `keep` drops rows, for held-out validation.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.simulator.hardware.interpolate import Curve, Grid

Row = dict[str, str]
Keep = Callable[[int], bool]  # of a row's number

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
    """A table that lacks what is expected; the message names the file."""


def _all(_: int) -> bool:
    return True


def _rows(path: Path, *columns: str) -> Iterator[tuple[int, Row]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = set(columns) - set(reader.fieldnames or ())
        if missing:
            raise TableError(f"{path}, row 1: lacks the columns {', '.join(sorted(missing))}")
        yield from enumerate(reader)


def vidur_dense(path: Path, ways: int, keep: Keep = _all) -> Curve:
    """Everything of a layer but attention over tokens, from `mlp/*.csv`."""
    points = []
    for number, row in _rows(path, *_VIDUR_DENSE, "num_tokens", "num_tensor_parallel_workers"):
        if int(row["num_tensor_parallel_workers"]) == ways and keep(number):
            points.append((float(row["num_tokens"]), sum(float(row[c] or 0.0) for c in _VIDUR_DENSE) / 1e3))
    if not points:
        raise TableError(f"{path}: has no rows for {ways} tensor-parallel workers")
    return Curve(points)


def servingsim_layers(path: Path, keep: Keep = _all) -> tuple[Curve, Curve]:
    """(a layer without attention over tokens, the head over rows), from `layers.csv`."""
    layer: dict[float, float] = {}
    head: dict[float, float] = {}
    for _, row in _rows(path, "layer_name", "input", "latency(ns)"):
        tokens = float(row["input"])
        if not keep(int(tokens)):
            continue
        into = layer if row["layer_name"] not in _SERVINGSIM_ONCE else head
        if row["layer_name"] != "attn":
            into[tokens] = into.get(tokens, 0.0) + float(row["latency(ns)"]) / 1e9
    return Curve(layer.items()), Curve(head.items())


def servingsim_dense(folder: Path, keep: Keep = _all) -> tuple[Curve, Curve]:
    """The same from `dense.csv` and `per_sequence.csv`, which know the fused kernels of vLLM."""
    layer: dict[float, float] = {}
    for _, row in _rows(folder / "dense.csv", "layer", "tokens", "time_us"):
        tokens = float(row["tokens"])
        if row["layer"] not in _SERVINGSIM_ONCE and keep(int(tokens)):
            times = 2 if row["layer"] == "layernorm" else 1  # before attention, and before the MLP
            layer[tokens] = layer.get(tokens, 0.0) + times * float(row["time_us"]) / 1e6
    head: dict[float, float] = {}
    for _, row in _rows(folder / "per_sequence.csv", "layer", "sequences", "time_us"):
        sequences = float(row["sequences"])
        head[sequences] = head.get(sequences, 0.0) + float(row["time_us"]) / 1e6
    return Curve(layer.items()), Curve(head.items())


def attention(path: Path, context_includes_chunk: bool, keep: Keep = _all) -> tuple[Grid, Grid]:
    """(decode over batch and context, prefill over chunk and context before it), from `attention.csv`.

    context_includes_chunk: LLMServingSim counts the chunk itself into kv_cache_size, Vidur does not.
    """
    decode: dict[int, list[tuple[float, float]]] = {}
    prefill: dict[int, list[tuple[float, float]]] = {}
    columns = ("batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill")
    for number, row in _rows(path, *columns, "attn_decode_ms", "attn_prefill_ms"):
        if not keep(number):
            continue
        context = float(row["kv_cache_size"])
        if row["is_prefill"] == "True":
            chunk = int(row["prefill_chunk_size"])
            before = context - chunk if context_includes_chunk else context
            prefill.setdefault(chunk, []).append((before, float(row["attn_prefill_ms"]) / 1e3))
        else:
            decode.setdefault(int(row["batch_size"]), []).append(
                (context, float(row["attn_decode_ms"]) / 1e3)
            )
    return Grid({batch: plausible(points) for batch, points in decode.items()}), Grid(prefill)


def plausible(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points without failed measurements: attention to half as many tokens takes at least half as long, so
    what takes less than half of that, seen from the next longer context, was never computed. (The A6000 table
    has 2 µs at 32 tokens and 35 µs at 64 in a dozen rows.)"""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(points, reverse=True):
        if not kept or y >= 0.5 * kept[-1][1] * x / kept[-1][0]:
            kept.append((x, y))
    return kept


def mixed_attention(path: Path, keep: Keep = _all) -> tuple[Grid, Grid]:
    """The same from a table of mixed batches: those rows in which only one of the two happens."""
    decode: dict[int, list[tuple[float, float]]] = {}
    prefill: dict[int, list[tuple[float, float]]] = {}
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    for number, row in _rows(path, *columns):
        chunk, batch, time_s = int(row["prefill_chunk"]), int(row["n_decode"]), float(row["time_us"]) / 1e6
        if not keep(number):
            continue
        if chunk == 0:
            decode.setdefault(batch, []).append((float(row["kv_decode"]), time_s))
        elif batch == 0:
            prefill.setdefault(chunk, []).append((float(row["kv_prefill"]), time_s))
    return Grid(decode), Grid(prefill)


def all_reduce(path: Path, ways: int) -> Curve:
    """Seconds over bytes, `ways` GPUs of one node."""
    columns = ("all_reduce_ms", "num_workers", "size", "devices_per_node")
    points = [
        (float(row["size"]), float(row["all_reduce_ms"]) / 1e3)
        for _, row in _rows(path, *columns)
        if int(row["num_workers"]) == ways and int(row["devices_per_node"]) == ways
    ]
    if not points:
        raise TableError(f"{path}: has no rows for {ways} GPUs of one node")
    return Curve(points)


def cpu_overhead(path: Path, model: str, ways: int) -> Curve:
    """Seconds of the host around a step, over sequences."""
    points = [
        (float(row["batch_size"]), sum(float(row[c]) for c in _CPU) / 1e3)
        for _, row in _rows(path, *_CPU, "model_name", "batch_size", "tensor_parallel_degree")
        if row["model_name"].endswith(model) and int(row["tensor_parallel_degree"]) == ways
    ]
    if not points:
        raise TableError(f"{path}: has no rows for {model} on {ways} GPUs")
    return Curve(points)
