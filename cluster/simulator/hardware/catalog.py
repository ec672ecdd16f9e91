"""Which profile serves which hardware and model, and what takes its place where there is none.

In this order: a table of this very GPU, model and tensor parallelism; a table of the same GPU (or of one with the
same chip) for another model, carried over by the roofline's ratio of the two; the roofline alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cluster.simulator.hardware import roofline, tables
from cluster.simulator.hardware.gpus import GPUS, Gpu
from cluster.simulator.hardware.interpolate import Curve, Grid
from cluster.simulator.hardware.models import MODELS, ModelShape
from cluster.simulator.hardware.timer import OperatorTimer

MEMORY_FOR_ENGINE = 0.9  # share of a GPU's memory that an engine takes, as vLLM does by default
ACTIVATION_BYTES = 1.5e9  # of that, for activations and graphs, on each GPU
HOST_S = 2.0e-3  # around a step where no table says more: scheduling, sampling, preparing inputs


class UnknownHardware(ValueError):
    """A name of hardware or model that is not known; the message says which are."""


class Profile(NamedTuple):
    """A profiled combination; files relative to the data folder. gpu and model as in GPUS and MODELS."""

    gpu: str
    model: str
    ways: int
    file: str


VIDUR_DENSE_PROFILES = [
    Profile(gpu.upper(), model, ways, f"vidur_profiles/mlp/{gpu}_{file}_mlp.csv")
    for gpu, model, file in (
        ("a100", "Llama-2-7B", "Llama-2-7b-hf"),
        ("a100", "Llama-2-70B", "Llama-2-70b-hf"),
        ("a100", "Llama-3-8B", "Meta-Llama-3-8B"),
        ("a100", "Llama-3-70B", "Meta-Llama-3-70B"),
        ("a100", "Qwen-72B", "Qwen-72B"),
        ("a100", "CodeLlama-34B", "CodeLlama-34b-Instruct-hf"),
        ("a40", "Llama-2-7B", "Llama-2-7b-hf"),
        ("a40", "Llama-2-70B", "Llama-2-70b-hf"),
        ("a40", "Qwen-72B", "Qwen-72B"),
        ("a40", "CodeLlama-34B", "CodeLlama-34b-Instruct-hf"),
        ("h100", "Llama-2-7B", "Llama-2-7b-hf"),
        ("h100", "Llama-2-70B", "Llama-2-70b-hf"),
        ("h100", "Qwen-72B", "Qwen-72B"),
        ("h100", "CodeLlama-34B", "CodeLlama-34b-Instruct-hf"),
    )
    for ways in (1, 2, 4, 8)
] + [Profile("A40", "Qwen-7B", 1, "vidur_profiles/mlp/a40_Qwen-7B_mlp.csv")]
SERVINGSIM_DENSE_PROFILES = [  # layers.csv, or a folder with dense.csv and per_sequence.csv
    Profile("RTX4090", "Llama-3.1-8B", 1, "llmservingsim_profiles/RTX4090_Llama-3.1-8B"),
    Profile("RTXPRO6000", "Qwen3-32B", 1, "llmservingsim_profiles/RTXPRO6000_Qwen3-32B"),
    Profile("A6000", "Llama-3.1-8B", 1, "llmservingsim_profiles/A6000_Llama-3.1-8B_tp1/layers.csv"),
    Profile("H100", "Llama-3.1-8B", 1, "llmservingsim_profiles/H100_Llama-3.1-8B_tp1/layers.csv"),
    Profile("RTX3090", "Llama-3.1-8B", 1, "llmservingsim_profiles/RTX3090_Llama-3.1-8B_tp1/layers.csv"),
    Profile("H100", "Llama-3.1-70B", 4, "llmservingsim_profiles/H100_Llama-3.1-70B_tp4/layers.csv"),
]
ATTENTION_PROFILES = [
    Profile("A100", "Llama-2-70B", 2, "vidur_profiles/attention/a100_gqa64x8_tp2_attention.csv"),
    Profile("A6000", "Llama-3.1-8B", 1, "llmservingsim_profiles/A6000_Llama-3.1-8B_tp1/attention.csv"),
    Profile("H100", "Llama-3.1-70B", 4, "llmservingsim_profiles/H100_Llama-3.1-70B_tp4/attention.csv"),
    Profile("RTX4090", "Llama-3.1-8B", 1, "llmservingsim_profiles/RTX4090_Llama-3.1-8B/attention.csv"),
    Profile("RTXPRO6000", "Qwen3-32B", 1, "llmservingsim_profiles/RTXPRO6000_Qwen3-32B/attention.csv"),
]
_ALL_REDUCE = {
    "A100": "vidur_profiles/network/a100_dgx_all_reduce.csv",
    "H100": "vidur_profiles/network/h100_dgx_all_reduce.csv",
}
_HOST = {"A100": "a100", "A40": "a40"}  # vidur_profiles/cpu_overheads/NAME_cpu_overheads.csv
_HOST_MODELS = {"Llama-2-7B": "Llama-2-7b-hf", "Llama-2-70B": "Llama-2-70b-hf", "Qwen-72B": "Qwen-72B"}
_SAME_CHIP = {"A40": "A6000"}  # GA102


def data_folder(data: Path | None = None) -> Path | None:
    """Where the public profiles lie: the argument, $TANDEM_DATA, or ../shared/data; None if there is none."""
    here = Path(__file__).resolve().parents[3]
    for folder in (data, os.environ.get("TANDEM_DATA"), here.parent / "shared" / "data"):
        if folder is not None and (Path(folder) / "vidur_profiles").is_dir():
            return Path(folder)
    return None


@lru_cache(maxsize=64)
def timer(hardware: str, model: str, data: Path | None = None) -> OperatorTimer:
    """The step timer of a model on hardware like "A40" or "4xA100" (tensor parallel). Raises UnknownHardware."""
    gpu, ways = parse(hardware)
    shape = _shape(model)
    folder = data_folder(data)
    sources: dict[str, str] = {}
    layer, head = _dense(folder, gpu, shape, ways, sources)
    decode, prefill = _attention(folder, gpu, shape, ways, sources)
    reduce = _all_reduce(folder, gpu, ways, sources)
    row_bytes = 2 * shape.hidden
    return OperatorTimer(
        dense=lambda tokens: shape.layers * (layer(tokens) + 2 * reduce(tokens * row_bytes)),
        head=head,
        host=_host(folder, gpu, shape, ways, sources),
        decode=lambda batch, context: shape.layers * decode(batch, context),
        prefill=lambda chunk, context: shape.layers * prefill(chunk, context),
        sources=sources,
    )


def kv_bytes(model: str) -> int:
    """Bytes of KV cache a token takes. Raises UnknownHardware."""
    return int(_shape(model).kv_bytes)


def kv_tokens(hardware: str, model: str) -> int:
    """Tokens of KV cache that the memory holds beside the weights. Raises UnknownHardware where even those do
    not fit."""
    gpu, ways = parse(hardware)
    shape = _shape(model)
    left = ways * (gpu.memory_bytes * MEMORY_FOR_ENGINE - ACTIVATION_BYTES) - shape.weight_bytes
    if left <= 0:
        raise UnknownHardware(f"{model} ({shape.weight_bytes / 1e9:.0f} GB) does not fit into {hardware}")
    return int(left / shape.kv_bytes)


def parse(hardware: str) -> tuple[Gpu, int]:
    """ "4xA100" → (the GPU, 4). Raises UnknownHardware."""
    count, times, name = hardware.partition("x")
    if not times or not count.isdigit():
        count, name = "1", hardware
    if name not in GPUS or int(count) < 1:
        raise UnknownHardware(
            f"no hardware {hardware!r}; there are (also as 4xNAME): {', '.join(sorted(GPUS))}"
        )
    return GPUS[name], int(count)


def _shape(model: str) -> ModelShape:
    if model not in MODELS:
        raise UnknownHardware(f"no model {model!r}; there are: {', '.join(sorted(MODELS))}")
    return MODELS[model]


Over = Callable[[float], float]
Over2 = Callable[[float, float], float]


def _best(profiles: list[Profile], gpu: Gpu, shape: ModelShape, ways: int) -> Profile | None:
    """The same GPU's, nearest in model and parallelism; a like model counts as the same."""
    for name in (gpu.name, _SAME_CHIP.get(gpu.name)):
        mine = [p for p in profiles if p.gpu == name]
        if mine:
            return min(
                mine, key=lambda p: (_unlike(MODELS[p.model], shape), p.ways != ways, p.model != shape.name)
            )
    return None


def _unlike(a: ModelShape, b: ModelShape) -> tuple[bool, float]:
    same = (a.hidden, a.heads, a.kv_heads, a.ffn) == (b.hidden, b.heads, b.kv_heads, b.ffn)
    return not same, abs(a.layer_parameters - b.layer_parameters)


def _exact(profile: Profile, gpu: Gpu, shape: ModelShape, ways: int) -> bool:
    return profile.gpu == gpu.name and profile.ways == ways and not _unlike(MODELS[profile.model], shape)[0]


def _dense(
    folder: Path | None, gpu: Gpu, shape: ModelShape, ways: int, sources: dict[str, str]
) -> tuple[Over, Over]:
    def estimate(tokens: float) -> float:
        return roofline.dense_s(gpu, shape, ways, int(tokens))

    def head_estimate(rows: float) -> float:
        return roofline.head_s(gpu, shape, ways, int(rows))

    head: Over = head_estimate

    sources["head"] = "roofline estimate"
    profile = _best([*VIDUR_DENSE_PROFILES, *SERVINGSIM_DENSE_PROFILES], gpu, shape, ways) if folder else None
    if profile is None or folder is None:
        sources["dense"] = "roofline estimate"
        return estimate, head
    path = folder / profile.file
    head_curve: Curve | None = None
    if profile in VIDUR_DENSE_PROFILES:
        curve = tables.vidur_dense(path, profile.ways)
    elif path.is_dir():
        curve, head_curve = tables.servingsim_dense(path)
    else:
        curve, head_curve = tables.servingsim_layers(path)
    if head_curve is not None and _exact(profile, gpu, shape, ways):
        sources["head"] = f"table {profile.file}"
        head = head_curve.at
    if _exact(profile, gpu, shape, ways):
        sources["dense"] = f"table {profile.file}"
        return curve.at, head
    sources["dense"] = f"scaled from {profile.file}"
    theirs, of = GPUS[profile.gpu], MODELS[profile.model]

    def scaled(tokens: float) -> float:
        other = roofline.dense_s(theirs, of, profile.ways, max(1, int(tokens)))
        return curve.at(tokens) * estimate(max(1, int(tokens))) / other

    return scaled, head


def _attention(
    folder: Path | None, gpu: Gpu, shape: ModelShape, ways: int, sources: dict[str, str]
) -> tuple[Over2, Over2]:
    def decode_estimate(batch: float, context: float) -> float:
        return roofline.decode_attention_s(gpu, shape, ways, int(batch), context)

    def prefill_estimate(chunk: float, context: float) -> float:
        return roofline.prefill_attention_s(gpu, shape, ways, int(chunk), context)

    profile = _best(ATTENTION_PROFILES, gpu, shape, ways) if folder else None
    if profile is None or folder is None:
        sources["attention"] = "roofline estimate"
        return decode_estimate, prefill_estimate
    decode, prefill = attention_grids(folder / profile.file)
    if _exact(profile, gpu, shape, ways):
        sources["attention"] = f"table {profile.file}"
        return decode.at, prefill.at
    sources["attention"] = f"scaled from {profile.file}"
    theirs, of = GPUS[profile.gpu], MODELS[profile.model]
    # decoding reads the KV heads of this GPU's share, prefill multiplies its query heads
    kv = (max(1.0, shape.kv_heads / ways) * shape.head_dim) / (
        max(1.0, of.kv_heads / profile.ways) * of.head_dim
    )
    query = (shape.heads / ways * shape.head_dim) / (of.heads / profile.ways * of.head_dim)
    decode_scale = kv * theirs.memory_bytes_per_s / gpu.memory_bytes_per_s
    prefill_scale = query * theirs.flops_per_s / gpu.flops_per_s
    return (
        lambda batch, context: decode_scale * decode.at(batch, context),
        lambda chunk, context: prefill_scale * prefill.at(chunk, context),
    )


def attention_grids(path: Path, keep: tables.Keep = lambda _: True) -> tuple[Grid, Grid]:
    """(decode, prefill) of an attention table in either format."""
    if path.parent.name.startswith("RTX"):
        return tables.mixed_attention(path, keep)
    return tables.attention(path, context_includes_chunk="llmservingsim" in str(path), keep=keep)


def _all_reduce(folder: Path | None, gpu: Gpu, ways: int, sources: dict[str, str]) -> Over:
    if ways == 1:
        return lambda _: 0.0
    file = _ALL_REDUCE.get(gpu.name)
    if folder is not None and file is not None and ways in (2, 4, 8):
        sources["all-reduce"] = f"table {file}"
        return tables.all_reduce(folder / file, ways).at
    sources["all-reduce"] = "roofline estimate"
    return lambda size: roofline.all_reduce_s(gpu, ways, size)


def _host(folder: Path | None, gpu: Gpu, shape: ModelShape, ways: int, sources: dict[str, str]) -> Over:
    name, model = _HOST.get(gpu.name), _HOST_MODELS.get(shape.name)
    if folder is not None and name is not None and model is not None:
        file = f"vidur_profiles/cpu_overheads/{name}_cpu_overheads.csv"
        try:
            curve = tables.cpu_overhead(folder / file, model, ways).at
        except tables.TableError:
            pass
        else:
            sources["host"] = f"table {file}"
            return curve
    sources["host"] = f"{HOST_S * 1e3:g} ms a step, an estimate"
    return lambda _: HOST_S
