"""WC-DNN (DSD, section 4.2): a residual MLP with two blocks, SiLU, one output. Inference in numpy.

The output is a correction to the closed form's cost of one candidate window, see `policies.speculation.awc.features`;
the window with the least corrected cost is the prediction.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path

import numpy as np

from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.policies.speculation.awc.features import CANDIDATE, STATE, WINDOWS, features
from tandem.policies.speculation.window import WindowState

WEIGHTS = "weights.npz"
LAYERS = ("input", "first_a", "first_b", "second_a", "second_b", "output")


class BadWeights(ValueError):
    """Parameters, or a file, that do not hold a network of the expected shape."""


class Network:
    """The network, ready for inference; raises BadWeights.

    parameters: `NAME.weight` [out, in] and `NAME.bias` [out] of each of LAYERS.
    """

    def __init__(self, parameters: dict[str, np.ndarray]) -> None:
        try:
            self._layers = [_layer(parameters, name) for name in LAYERS]
        except KeyError as error:
            raise BadWeights(f"the weights lack {error}") from None
        inputs = self._layers[0][0].shape[0]
        if inputs != len(STATE) + len(CANDIDATE):
            raise BadWeights(f"the weights are for {inputs} features, not {len(STATE) + len(CANDIDATE)}")
        # The first layer is split by its inputs: the windows never change, and all share one state.
        weights, bias = self._layers.pop(0)
        self._state, windows, self._expected = np.split(weights, [len(STATE), -1])
        self._windows = _CANDIDATES @ windows + bias

    def costs(self, state: WindowState) -> np.ndarray:
        """Return [12]: the predicted cost of each window, as a logarithm and up to a constant."""
        seen, expected = features(state)
        closed_form = np.array(expected, dtype=np.float32)
        (w1, b1), (w2, b2), (w3, b3), (w4, b4), (out, bias) = self._layers
        half = closed_form[:, None] * self._expected
        half += self._windows
        half += np.array(seen, np.float32) @ self._state
        half += _silu(_silu(half) @ w1 + b1) @ w2 + b2
        half += _silu(_silu(half) @ w3 + b3) @ w4 + b4
        costs: np.ndarray = closed_form + (_silu(half) @ out + bias)[:, 0]
        return costs


_CANDIDATES = np.array([[w / MAX_WINDOW, float(w == 1)] for w in WINDOWS], dtype=np.float32)


def _layer(parameters: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return weights [in, out] and bias, halved if a SiLU follows, since `_silu` takes half of its argument."""
    scale = 1.0 if name == LAYERS[-1] else 0.5
    weights, bias = parameters[f"{name}.weight"].T, parameters[f"{name}.bias"]
    return np.ascontiguousarray(scale * weights, np.float32), np.ascontiguousarray(scale * bias, np.float32)


def _silu(half: np.ndarray) -> np.ndarray:
    """Return x · σ(x), given x / 2: σ(x) = (1 + tanh(x / 2)) / 2."""
    silu: np.ndarray = np.tanh(half)
    silu *= half
    silu += half
    return silu


@lru_cache(maxsize=8)
def load(path: str | None = None) -> Network:
    """Load a network from a file, or, for None, the one that comes with Tandem. Raises BadWeights, OSError."""
    data = (files("tandem.policies.speculation.awc") / WEIGHTS if path is None else Path(path)).read_bytes()
    try:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            return Network(dict(archive))
    except BadWeights:
        raise
    except (ValueError, OSError) as error:
        raise BadWeights(f"{path or WEIGHTS}: {error}") from None
