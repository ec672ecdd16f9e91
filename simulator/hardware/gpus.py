"""GPUs: peak rates from the makers' data sheets (dense 16-bit matrix rate, memory, links between GPUs).

Jetsons' rates are of their 32 GB versions in the highest power mode. AGX Orin's 56 tensor cores at 930 MHz do a
quarter of what its data sheet has for sparse 8-bit numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    flops_per_s: dense fp16/bf16 tensor peak.
    memory_bytes_per_s, memory_bytes: of its memory.
    link_bytes_per_s: direct to every other GPU of the node, one way; 0 if they are only on PCIe, or linked in pairs.
    """

    name: str
    flops_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A30", 165e12, 933e9, 24 * GIB, 0.0),
        Gpu("A40", 149.7e12, 696e9, 48 * GIB, 0.0),
        Gpu("A6000", 154.8e12, 768e9, 48 * GIB, 0.0),
        Gpu("A100", 312e12, 2039e9, 80 * GIB, 300e9),
        Gpu("H100", 989e12, 3350e9, 80 * GIB, 450e9),
        Gpu("V100", 125e12, 900e9, 32 * GIB, 150e9),
        Gpu("RTX3090", 71e12, 936e9, 24 * GIB, 0.0),
        Gpu("RTX4090", 165e12, 1008e9, 24 * GIB, 0.0),
        Gpu("RTXPRO6000", 503.8e12, 1792e9, 96 * GIB, 0.0),
        Gpu("AGXOrin", 26.7e12, 204.8e9, 32 * GIB, 0.0),
        Gpu("AGXXavier", 11e12, 136.5e9, 32 * GIB, 0.0),
    )
}
