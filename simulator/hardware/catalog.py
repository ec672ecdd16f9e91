"""Step timers of hardware and models by name.

Each operator comes, in this order, from a table of this very GPU, model and tensor parallelism; from a table of the
same GPU (or one with the same chip) for another model, scaled by the roofline's ratio of the two; or from the roofline
alone. A timer's `sources` say which, and the mean error of that source.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tandem.simulator.hardware import roofline, tables
from tandem.simulator.hardware.gpus import GPUS, Gpu
from tandem.simulator.hardware.models import MODELS, ModelShape
from tandem.simulator.hardware.profiles import (
    ALL_REDUCE,
    ATTENTION,
    CPU_OVERHEAD_MODELS,
    CPU_OVERHEADS,
    DENSE,
    PCIE_ALL_REDUCE,
    PREFILL_ATTENTION,
    Profile,
    UnknownHardware,
    attention_tables,
    data_folder,
    dense_tables,
    nearest,
    same,
)
from tandem.simulator.hardware.timer import OperatorTimer

MEMORY_FOR_ENGINE = 0.9  # share of a GPU's memory that an engine takes, as vLLM does by default
ACTIVATION_BYTES = 1.5e9  # share of that for activations and graphs, on each GPU
HOST_S = 2.0e-3  # around a step where no table says more: scheduling, sampling, preparing inputs
ERRORS = {"dense": 0.11, "decode attention": 0.16, "prefill attention": 0.40, "all-reduce": 0.30}
"""Mean relative error of the roofline on tables that it has not seen, measured by `tandem benchmark hardware`.
Tables scaled from another of the same GPU count as no better, except the dense operators: there is only one table to
try."""
SCALED_DENSE_ERROR = 0.05

Over = Callable[[float], float]
Over2 = Callable[[float, float], float]


class Operators(NamedTuple):
    """Operators of a model on hardware, in seconds.

    layer: one layer but its attention, over tokens, all-reduce included.
    head: logits, over rows.
    decode, prefill: attention of one layer, over sequences or a chunk, and context.
    host: around a step, over sequences.
    sources: source of each.
    """

    gpu: Gpu
    ways: int
    shape: ModelShape
    layer: Over
    head: Over
    decode: Over2
    prefill: Over2
    host: Over
    sources: dict[str, str]


def operators(hardware: str, model: str, data: Path | None = None) -> Operators:
    """Return the operators of a model on hardware such as "A40" or "4xA100" (tensor parallel). Raises
    UnknownHardware."""
    gpu, ways = parse(hardware)
    shape = shape_of(model)
    folder = data_folder(data)
    sources: dict[str, str] = {}
    dense, head = _dense(folder, gpu, shape, ways, sources)
    decode = _decode(folder, gpu, shape, ways, sources)
    prefill = _prefill(folder, gpu, shape, ways, sources)
    reduce = _all_reduce(folder, gpu, ways, sources)
    row_bytes = 2 * shape.hidden
    return Operators(
        gpu,
        ways,
        shape,
        layer=lambda tokens: dense(tokens) + 2 * reduce(tokens * row_bytes),
        head=head,
        decode=decode,
        prefill=prefill,
        host=_host(folder, gpu, shape, ways, sources),
        sources=sources,
    )


@lru_cache(maxsize=64)
def timer(hardware: str, model: str, data: Path | None = None) -> OperatorTimer:
    """Return the step timer of a whole model. Raises UnknownHardware."""
    of = operators(hardware, model, data)
    layers = of.shape.layers
    return OperatorTimer(
        dense=lambda tokens: layers * of.layer(tokens),
        head=of.head,
        host=of.host,
        decode=lambda batch, context: layers * of.decode(batch, context),
        prefill=lambda chunk, context: layers * of.prefill(chunk, context),
        sources=of.sources,
    )


def check(hardware: str, model: str) -> None:
    """Raises UnknownHardware unless both names are known."""
    parse(hardware)
    shape_of(model)


def kv_bytes(model: str) -> int:
    """Return the bytes of KV cache per token. Raises UnknownHardware."""
    return int(shape_of(model).kv_bytes)


def kv_tokens(hardware: str, model: str) -> int:
    """Return the tokens of KV cache that fit beside the weights. Raises UnknownHardware if not even those fit."""
    gpu, ways = parse(hardware)
    shape = shape_of(model)
    left = ways * (gpu.memory_bytes * MEMORY_FOR_ENGINE - ACTIVATION_BYTES) - shape.weight_bytes
    if left <= 0:
        raise UnknownHardware(f"{model} ({shape.weight_bytes / 1e9:.0f} GB) does not fit into {hardware}")
    return int(left / shape.kv_bytes)


def parse(hardware: str) -> tuple[Gpu, int]:
    """Parse "4xA100" into the GPU and 4. Raises UnknownHardware."""
    count, times, name = hardware.partition("x")
    if not times or not count.isdigit():
        count, name = "1", hardware
    if name not in GPUS or int(count) < 1:
        raise UnknownHardware(
            f"no hardware {hardware!r}; there are (also as 4xNAME): {', '.join(sorted(GPUS))}"
        )
    return GPUS[name], int(count)


def shape_of(model: str) -> ModelShape:
    """Return a model's shape. Raises UnknownHardware."""
    if model not in MODELS:
        raise UnknownHardware(f"no model {model!r}; there are: {', '.join(sorted(MODELS))}")
    return MODELS[model]


def dense(folder: Path, profile: Profile, gpu: Gpu, shape: ModelShape, ways: int) -> Over:
    """Return seconds of a layer without attention over tokens, scaled from a profile of another combination."""
    curve, _ = dense_tables(folder, profile)
    if same(profile, gpu, shape, ways):
        return curve.at
    theirs, of = GPUS[profile.gpu], MODELS[profile.model]

    def scaled(tokens: float) -> float:
        whole = max(1, int(tokens))
        ratio = roofline.dense_s(gpu, shape, ways, whole) / roofline.dense_s(theirs, of, profile.ways, whole)
        return curve.at(tokens) * ratio

    return scaled


def decode_attention(folder: Path, profile: Profile, gpu: Gpu, shape: ModelShape, ways: int) -> Over2:
    """Return seconds of decode attention over sequences and context, scaled by KV heads per GPU and memory
    bandwidth."""
    table, _ = attention_tables(folder, profile)
    theirs, of = GPUS[profile.gpu], MODELS[profile.model]
    heads = max(1.0, shape.kv_heads / ways) * shape.head_dim
    their_heads = max(1.0, of.kv_heads / profile.ways) * of.head_dim
    scale = heads / their_heads * theirs.memory_bytes_per_s / gpu.memory_bytes_per_s
    return lambda batch, context: scale * table.at(batch, context)


def prefill_attention(folder: Path, profile: Profile, gpu: Gpu, shape: ModelShape, ways: int) -> Over2:
    """Return seconds of prefill attention over chunk and context, scaled by query heads per GPU and FLOPs."""
    _, table = attention_tables(folder, profile)
    theirs, of = GPUS[profile.gpu], MODELS[profile.model]
    heads, their_heads = shape.heads / ways * shape.head_dim, of.heads / profile.ways * of.head_dim
    scale = heads / their_heads * theirs.flops_per_s / gpu.flops_per_s
    return lambda chunk, context: scale * table.at(chunk, context)


def _dense(
    folder: Path | None, gpu: Gpu, shape: ModelShape, ways: int, sources: dict[str, str]
) -> tuple[Over, Over]:
    profile = nearest(DENSE, gpu, shape, ways)
    head: Over = lambda rows: roofline.head_s(gpu, shape, ways, int(rows))  # noqa: E731
    sources["head"] = _estimated("dense")
    if folder is None or profile is None:
        sources["dense"] = _estimated("dense")
        return lambda tokens: roofline.dense_s(gpu, shape, ways, int(tokens)), head
    sources["dense"] = _from(profile, "dense", gpu, shape, ways)
    _, table = dense_tables(folder, profile)
    if table is not None and same(profile, gpu, shape, ways):
        sources["head"] = sources["dense"]
        head = table.at
    return dense(folder, profile, gpu, shape, ways), head


def _decode(folder: Path | None, gpu: Gpu, shape: ModelShape, ways: int, sources: dict[str, str]) -> Over2:
    profile = nearest(ATTENTION, gpu, shape, ways)
    if folder is None or profile is None:
        sources["decode attention"] = _estimated("decode attention")
        return lambda batch, context: roofline.decode_attention_s(gpu, shape, ways, batch, context)
    sources["decode attention"] = _from(profile, "decode attention", gpu, shape, ways)
    return decode_attention(folder, profile, gpu, shape, ways)


def _prefill(folder: Path | None, gpu: Gpu, shape: ModelShape, ways: int, sources: dict[str, str]) -> Over2:
    profile = nearest(PREFILL_ATTENTION, gpu, shape, ways)
    if folder is None or profile is None:
        sources["prefill attention"] = _estimated("prefill attention")
        return lambda chunk, context: roofline.prefill_attention_s(gpu, shape, ways, chunk, context)
    sources["prefill attention"] = _from(profile, "prefill attention", gpu, shape, ways)
    return prefill_attention(folder, profile, gpu, shape, ways)


def _all_reduce(folder: Path | None, gpu: Gpu, ways: int, sources: dict[str, str]) -> Over:
    if ways == 1:
        return lambda _: 0.0
    file = ALL_REDUCE.get(gpu.name)
    if folder is not None and file is not None and ways in (2, 4, 8):
        sources["all-reduce"] = f"table {file}"
        return tables.all_reduce(folder / file, ways).at
    if folder is not None and not gpu.link_bytes_per_s:
        sources["all-reduce"] = f"scaled from {PCIE_ALL_REDUCE} (± {ERRORS['all-reduce']:.0%})"
        return tables.all_reduce(folder / PCIE_ALL_REDUCE, 4).at
    sources["all-reduce"] = _estimated("all-reduce")
    return lambda size: roofline.all_reduce_s(gpu, ways, size)


def _host(folder: Path | None, gpu: Gpu, shape: ModelShape, ways: int, sources: dict[str, str]) -> Over:
    name, model = CPU_OVERHEADS.get(gpu.name), CPU_OVERHEAD_MODELS.get(shape.name)
    if folder is not None and name is not None and model is not None:
        file = f"vidur_profiles/cpu_overheads/{name}_cpu_overheads.csv"
        try:
            curve = tables.cpu_overhead(folder / file, model, ways).at
        except tables.TableError:
            pass
        else:
            sources["host"] = f"table {file}"
            return curve
    sources["host"] = f"assumed: {HOST_S * 1e3:g} ms a step"
    return lambda _: HOST_S


def _from(profile: Profile, operator: str, gpu: Gpu, shape: ModelShape, ways: int) -> str:
    if same(profile, gpu, shape, ways):
        return f"table {profile.file}"
    what = f"{profile.file}, {profile.model} on {profile.ways}x{profile.gpu}"
    error = SCALED_DENSE_ERROR if operator == "dense" else ERRORS[operator]
    return f"scaled from {what} (± {error:.0%})"


def _estimated(operator: str) -> str:
    return f"roofline (± {ERRORS[operator]:.0%})"
