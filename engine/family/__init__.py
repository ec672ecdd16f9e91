"""The embedded model family: target (the cloud's), small, and other (small, another tokenizer).

All three know the invented encyclopedia of `training.family.world`; how good they are is in MODEL_CARD.md.
"""

from __future__ import annotations

from pathlib import Path

NAMES = ("target", "small", "other")
WEIGHTS = Path(__file__).parent / "weights"


def path(name: str) -> Path:
    """The Hugging Face folder of a model of the family."""
    if name not in NAMES:
        raise ValueError(f"no model {name!r} in the family; there are: {', '.join(NAMES)}")
    folder = WEIGHTS / name
    if not (folder / "config.json").exists():
        raise FileNotFoundError(
            f"{folder} has no weights; make them with: python -m training.family.train {name}"
        )
    return folder
