"""Memory of this machine."""

from __future__ import annotations


def free_bytes() -> float:
    """Return the memory that a new process can take without swapping, bytes."""
    with open("/proc/meminfo") as file:
        available = next(line for line in file if line.startswith("MemAvailable"))
    return 1024.0 * int(available.split()[1])
