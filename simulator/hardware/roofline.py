"""Roofline: operator times as the longer of computing and of moving bytes.

Used if there is no profiled table, and to scale a table to another model on the same GPU. Labelled as an estimate
wherever it is shown.
"""

from __future__ import annotations

from tandem.simulator.hardware.gpus import Gpu
from tandem.simulator.hardware.models import HALF, ModelShape

COMPUTE_EFFICIENCY = 0.6  # share of the data sheet's peak that large matrix products reach
ATTENTION_EFFICIENCY = 0.4  # likewise attention over a prompt
MEMORY_EFFICIENCY = 0.8
LINK_EFFICIENCY = 0.6
LAUNCH_S = 4e-6  # of one kernel
ATTENTION_S = 10e-6  # of the least attention
LINK_S = 35e-6  # of the least collective over links
PCIE_S = 60e-6  # over PCIe
PCIE_BYTES_PER_S = 16e9  # reduced there, whatever the number of GPUs


def matmul_s(gpu: Gpu, parameters: float, tokens: int) -> float:
    """Return the seconds to multiply `tokens` rows by a matrix of `parameters` entries, on one GPU."""
    compute_s = 2 * parameters * tokens / (gpu.flops_per_s * COMPUTE_EFFICIENCY)
    memory_s = HALF * parameters / (gpu.memory_bytes_per_s * MEMORY_EFFICIENCY)
    return max(compute_s, memory_s)


def dense_s(gpu: Gpu, shape: ModelShape, ways: int, tokens: int) -> float:
    """Return the seconds of one layer but its attention, on one of `ways` tensor-parallel GPUs."""
    activations = HALF * tokens * (10 * shape.hidden + 4 * shape.ffn / ways)
    elementwise_s = activations / (gpu.memory_bytes_per_s * MEMORY_EFFICIENCY)
    return matmul_s(gpu, shape.layer_parameters / ways, tokens) + elementwise_s + 10 * LAUNCH_S


def head_s(gpu: Gpu, shape: ModelShape, ways: int, rows: int) -> float:
    """Return the seconds for logits of `rows` positions."""
    return matmul_s(gpu, shape.vocab * shape.hidden / ways, rows) + 3 * LAUNCH_S


def decode_attention_s(gpu: Gpu, shape: ModelShape, ways: int, batch: float, context: float) -> float:
    """Return the seconds of one layer for `batch` sequences that attend to `context` cached tokens each; memory
    bound."""
    kv_bytes = HALF * 2 * max(1, shape.kv_heads / ways) * shape.head_dim * batch * context
    return ATTENTION_S + kv_bytes / (gpu.memory_bytes_per_s * MEMORY_EFFICIENCY)


def prefill_attention_s(gpu: Gpu, shape: ModelShape, ways: int, chunk: float, context: float) -> float:
    """Return the seconds of one layer for a chunk after `context` tokens; compute bound, causal within the chunk."""
    flops = 4 * shape.heads / ways * shape.head_dim * chunk * (context + chunk / 2)
    return ATTENTION_S + flops / (gpu.flops_per_s * ATTENTION_EFFICIENCY)


def all_reduce_s(gpu: Gpu, ways: int, size_bytes: float) -> float:
    """Return the seconds of a ring all-reduce over `ways` GPUs; over PCIe if they have no links."""
    if ways == 1:
        return 0.0
    if not gpu.link_bytes_per_s:
        return PCIE_S + size_bytes / PCIE_BYTES_PER_S
    return LINK_S + 2 * (ways - 1) / ways * size_bytes / (gpu.link_bytes_per_s * LINK_EFFICIENCY)
