"""The embedded model family: target (the cloud's); tiny, small and medium for devices, and other (small, another
tokenizer); and an adapter with which the target's first layers draft for it.

All of them know the invented encyclopedia of `training.family.encyclopedia`; how good they are is in MODEL_CARD.md.
"""

from __future__ import annotations

from pathlib import Path

NAMES = ("target", "tiny", "small", "medium", "other")
EXPANDERS = ("tiny", "small", "medium")
"""Models with the target's tokenizer that expand its sketches; from fast to good."""
WEIGHTS = Path(__file__).parent / "weights"


def path(name: str) -> Path:
    """The Hugging Face folder of a model of the family."""
    if name not in NAMES:
        raise ValueError(f"no model {name!r} in the family; there are: {', '.join(NAMES)}")
    folder = WEIGHTS / name
    if not (folder / "config.json").exists():
        raise FileNotFoundError(
            f"{folder} has no weights; make them with: python -m tandem.training.family.train {name}"
        )
    return folder


def adapter_file(name: str = "target", layers: int = 2) -> Path:
    """Return the path of the adapter for a model of the family after its first `layers` layers."""
    return WEIGHTS / "adapters" / f"{name}-{layers}.safetensors"


def adapter(name: str = "target", layers: int = 2) -> Path:
    """Return that file, for the outer part of the model: `engine.torch.split.bundle`."""
    file = adapter_file(name, layers)
    if not file.exists():
        raise FileNotFoundError(
            f"{file} is not there; make it with: tandem adapter {name} --layers {layers} --out {file}"
        )
    return file


def sketch_delta_file(name: str = "target") -> Path:
    """Return the path of the low-rank delta with which a model of the family writes shorter sketches."""
    return WEIGHTS / "sketches" / f"{name}.safetensors"
