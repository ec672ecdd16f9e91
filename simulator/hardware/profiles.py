"""Public profiles, and which of them is nearest to a GPU, a model and a tensor parallelism."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from math import log2
from pathlib import Path
from typing import NamedTuple

from tandem.engine import cache
from tandem.simulator.hardware import tables
from tandem.simulator.hardware.gpus import Gpu
from tandem.simulator.hardware.interpolate import Chunks, Curve, Grid
from tandem.simulator.hardware.models import MODELS, ModelShape


class UnknownHardware(ValueError):
    """Unknown name of hardware or model; the message lists the known ones."""


class Profile(NamedTuple):
    """A profiled combination.

    gpu, model: as in GPUS and MODELS.
    ways: tensor-parallel GPUs.
    file: in the data folder.
    """

    gpu: str
    model: str
    ways: int
    file: str


VIDUR_DENSE = [
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
SERVINGSIM_DENSE = [  # layers.csv, or a folder with dense.csv and per_sequence.csv
    Profile("RTX4090", "Llama-3.1-8B", 1, "llmservingsim_profiles/RTX4090_Llama-3.1-8B"),
    Profile("RTXPRO6000", "Qwen3-32B", 1, "llmservingsim_profiles/RTXPRO6000_Qwen3-32B"),
    Profile("A6000", "Llama-3.1-8B", 1, "llmservingsim_profiles/A6000_Llama-3.1-8B_tp1/layers.csv"),
    Profile("H100", "Llama-3.1-8B", 1, "llmservingsim_profiles/H100_Llama-3.1-8B_tp1/layers.csv"),
    Profile("RTX3090", "Llama-3.1-8B", 1, "llmservingsim_profiles/RTX3090_Llama-3.1-8B_tp1/layers.csv"),
    Profile("H100", "Llama-3.1-70B", 4, "llmservingsim_profiles/H100_Llama-3.1-70B_tp4/layers.csv"),
]
DENSE = [*VIDUR_DENSE, *SERVINGSIM_DENSE]
ATTENTION = [
    Profile("A100", "Llama-2-70B", 2, "vidur_profiles/attention/a100_gqa64x8_tp2_attention.csv"),
    Profile("A30", "Qwen2-7B", 1, "vidur_profiles/attention/a30_Qwen2-7B_tp1_attention.csv"),
    Profile("RTX4090", "Llama-3.1-8B", 1, "llmservingsim_profiles/RTX4090_Llama-3.1-8B/attention.csv"),
    Profile("RTXPRO6000", "Qwen3-32B", 1, "llmservingsim_profiles/RTXPRO6000_Qwen3-32B/attention.csv"),
]
PREFILL_ATTENTION = [
    *ATTENTION,
    Profile("A6000", "Llama-3.1-8B", 1, "llmservingsim_profiles/A6000_Llama-3.1-8B_tp1/attention.csv"),
    Profile("H100", "Llama-3.1-70B", 4, "llmservingsim_profiles/H100_Llama-3.1-70B_tp4/attention.csv"),
]
"""Tables of prefill attention. The last two are of a prefill kernel, which reads the cache once per query head and
leaves most of the GPU idle: decoding with it takes 3 to 7 times the memory-bound time, with the other tables' kernels
1.0 to 1.2 times."""
ALL_REDUCE = {
    "A100": "vidur_profiles/network/a100_dgx_all_reduce.csv",
    "H100": "vidur_profiles/network/h100_dgx_all_reduce.csv",
}
PCIE_ALL_REDUCE = "vidur_profiles/network/a100_pairwise_nvlink_all_reduce.csv"
"""All-reduce of four GPUs linked in pairs, so that the ring crosses PCIe. It is the only such table, and stands for
all GPUs without links, whatever their number. Of six readings of the tables this one came nearest to a measured run on
two RTX PRO 6000 and was chosen for that (TPOT 2 % too high; 10 % too low with the ring's traffic scaled to two, 59 %
too high with the A40s' exchange), so that run checks nothing; expect errors of at least 10 % on other machines. (Two
A40, said to be linked, exchange 4 GB/s in these data: such machines are up to six times slower.)"""
CPU_OVERHEADS = {"A100": "a100", "A40": "a40"}  # vidur_profiles/cpu_overheads/NAME_cpu_overheads.csv
CPU_OVERHEAD_MODELS = {"Llama-2-7B": "Llama-2-7b-hf", "Llama-2-70B": "Llama-2-70b-hf", "Qwen-72B": "Qwen-72B"}
_SAME_CHIP = {"A40": "A6000", "RTX3090": "A6000"}  # GA102


def public_folder() -> Path:
    """Return the folder for public data, whether or not it is there: $TANDEM_DATA, else `../shared/data` beside a
    checkout that has it, else `data` in Tandem's cache folder."""
    if named := os.environ.get("TANDEM_DATA"):
        return Path(named)
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return beside if beside.is_dir() else cache.folder() / "data"


def data_folder(data: Path | None = None) -> Path | None:
    """Return the folder of public profiles: the argument or `public_folder`; None if there are no profiles.

    Raises UnknownHardware if the argument or variable names a folder without profiles.
    """
    named = data or os.environ.get("TANDEM_DATA")
    folder = data or public_folder()
    if (folder / "vidur_profiles").is_dir():
        return folder
    if named:
        raise UnknownHardware(f"{folder}: there are no profiled tables (no folder vidur_profiles)")
    return None


def nearest(profiles: Iterable[Profile], gpu: Gpu, shape: ModelShape, ways: int) -> Profile | None:
    """Return the profile of the same GPU, else of one with the same chip, nearest in model, then in parallelism; None
    if there is none."""
    for name in (gpu.name, _SAME_CHIP.get(gpu.name)):
        mine = [profile for profile in profiles if profile.gpu == name]
        if mine:
            return min(mine, key=lambda profile: _distance(profile, shape, ways))
    return None


def same(profile: Profile, gpu: Gpu, shape: ModelShape, ways: int) -> bool:
    """Return whether a profile is of this very combination; models with equal layers count as one."""
    return profile.gpu == gpu.name and profile.ways == ways and _alike(MODELS[profile.model], shape)


@lru_cache(maxsize=64)
def dense_tables(
    folder: Path, profile: Profile, keep: tables.Keep = tables.every_row
) -> tuple[Curve, Curve | None]:
    """Return curves of a layer without attention over tokens, and of the head over rows; None if the table lacks
    it."""
    path = folder / profile.file
    if profile in VIDUR_DENSE:
        return tables.vidur_dense(path, profile.ways, keep), None
    if path.is_dir():
        return tables.servingsim_dense(path, keep)
    return tables.servingsim_layers(path, keep)


@lru_cache(maxsize=64)
def attention_tables(
    folder: Path, profile: Profile, keep: tables.Keep = tables.every_row
) -> tuple[Grid, Chunks]:
    """Return decode and prefill attention of a layer."""
    path = folder / profile.file
    if path.parent.name.startswith("RTX"):
        return tables.mixed_attention(path, keep)
    if profile in ATTENTION:
        return tables.vidur_attention(path, keep)
    return tables.servingsim_attention(path, keep)


def _distance(profile: Profile, shape: ModelShape, ways: int) -> tuple[bool, float, float, bool]:
    other = MODELS[profile.model]
    return (
        not _alike(other, shape),
        abs(log2(other.layer_parameters / shape.layer_parameters)),
        abs(log2(profile.ways / ways)),
        other.name != shape.name,
    )


def _alike(a: ModelShape, b: ModelShape) -> bool:
    return (a.hidden, a.heads, a.kv_heads, a.ffn) == (b.hidden, b.heads, b.kv_heads, b.ffn)
