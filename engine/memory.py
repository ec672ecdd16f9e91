"""Memory of this machine."""

from __future__ import annotations

import ctypes


def free_bytes() -> float:
    """Return the memory that a new process can take without swapping, bytes."""
    with open("/proc/meminfo") as file:
        available = next(line for line in file if line.startswith("MemAvailable"))
    return 1024.0 * int(available.split()[1])


def give_back() -> None:
    """Give memory that was freed back to the system, as after a model or a tokenizer was read: glibc keeps most of it.

    Takes milliseconds. It does nothing where the C library has no such call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
