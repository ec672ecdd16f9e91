"""Rotary position embeddings as unit complex numbers, by the settings in config.json.

linear: frequencies divided by `factor` (Chen et al. 2023). dynamic: up to the model's own context, beyond which no
sequence goes here, the default. llama3: Llama 3.1's. yarn: Peng et al. 2023. longrope: Ding et al. 2024, the factors of
long contexts in all of a model whose context is longer than the one it was trained with first, as vLLM has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def rotation(settings: Mapping[str, Any], head_dim: int, context: int, longest: int) -> torch.Tensor:
    """Return the turns of positions 0 … longest − 1, complex64 [longest, head_dim / 2]: e^(i · position · frequency),
    times a magnitude in some kinds; 1 in the part of a head that is not turned.

    context: of the model, tokens.
    """
    turned = rotary_dim(settings, head_dim)
    exponent = torch.arange(0, turned, 2, dtype=torch.float64) / turned
    frequency, magnitude = 1.0 / settings["rope_theta"] ** exponent, 1.0
    match settings["rope_type"]:
        case "linear":
            frequency = frequency / settings["factor"]
        case "llama3":
            frequency = _llama3(frequency, settings)
        case "yarn":
            frequency, magnitude = _yarn(frequency, settings, context)
        case "longrope":
            frequency, magnitude = _longrope(frequency, settings, context, longest)
    # float32 products, as the models were trained with
    angle = torch.arange(longest, dtype=torch.float32)[:, None] * frequency.float()[None, :]
    turns = torch.polar(torch.full_like(angle, magnitude), angle)
    return torch.nn.functional.pad(turns, (0, (head_dim - turned) // 2), value=1.0)


def rotary_dim(settings: Mapping[str, Any], head_dim: int) -> int:
    """Return how many of a head's first elements are turned."""
    return int(head_dim * settings.get("partial_rotary_factor", 1.0))


def _llama3(frequency: torch.Tensor, settings: Mapping[str, Any]) -> torch.Tensor:
    """Low frequencies are divided by `factor`, high ones kept, those between interpolated."""
    old_context = settings["original_max_position_embeddings"]
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    turns = old_context * frequency / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * frequency / settings["factor"] + smooth * frequency


def _yarn(frequency: torch.Tensor, settings: Mapping[str, Any], context: int) -> tuple[torch.Tensor, float]:
    """Scale low frequencies as Llama 3 does, by a ramp over their numbers; magnitudes grow with log `factor`."""
    old_context = settings["original_max_position_embeddings"]
    factor = settings.get("factor") or context / old_context
    pairs, base = len(frequency), settings["rope_theta"]

    def pair(turns: float) -> float:
        """Return the number of the frequency that makes `turns` in the old context."""
        return pairs * math.log(old_context / (turns * 2 * math.pi)) / math.log(base)

    low, high = pair(settings.get("beta_fast") or 32), pair(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    ramp = ((torch.arange(pairs, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0.0, 1.0)

    def growth(scale: float = 1.0) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    magnitude = settings.get("attention_factor")
    if magnitude is None:
        scale, of_all = settings.get("mscale"), settings.get("mscale_all_dim")
        magnitude = growth(scale) / growth(of_all) if scale and of_all else growth()
    return ramp * frequency / factor + (1 - ramp) * frequency, magnitude


def _longrope(
    frequency: torch.Tensor, settings: Mapping[str, Any], context: int, longest: int
) -> tuple[torch.Tensor, float]:
    """Each frequency is divided by a factor of its own, for short or for long contexts."""
    old_context = settings["original_max_position_embeddings"]
    factors = torch.tensor(settings["long_factor" if longest > old_context else "short_factor"])
    magnitude = settings.get("attention_factor")
    if magnitude is None:
        factor = settings.get("factor") or context / old_context
        magnitude = math.sqrt(1 + math.log(factor) / math.log(old_context)) if factor > 1 else 1.0
    return frequency / factors.double(), magnitude
