"""llama.cpp below the core: GGUF models as they are, on CPUs and what llama.cpp runs on.

Nothing here imports llama.cpp before an engine is started: not every machine has it.
"""

from __future__ import annotations

from importlib import metadata

VERSION = "0.3.36"
"""The version of llama-cpp-python, whose binding follows llama.cpp's C interface of that day."""


class LlamacppMissing(ValueError):
    """llama-cpp-python is not there, or not the version that it has to be."""


def installed() -> str | None:
    """Return the version of llama-cpp-python; None without it."""
    try:
        return metadata.version("llama-cpp-python").partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def require() -> None:
    """Raises LlamacppMissing saying what to install."""
    found = installed()
    if found != VERSION:
        there = "it is not installed" if found is None else f"{found} is installed"
        raise LlamacppMissing(
            f"engine kind llamacpp needs llama-cpp-python {VERSION}, and {there}: make llamacpp in a checkout of "
            f"Tandem, or pip install llama-cpp-python=={VERSION}, which takes a C++ compiler and some minutes"
        )
