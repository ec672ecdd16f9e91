"""Data of DiSCo's evaluation: server times, devices and prompt lengths, and the paper's tables as printed.

The paper published neither its traces nor its prompts. Their substitutes, and the evidence for them, are described in
place; nothing is fitted to its results (tables 2 and 3).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tandem.benchmarks.disco.costs import BLOOM_1B1, BLOOM_560M, PRICES, QWEN_500M, Transformer
from tandem.benchmarks.paths import DATA
from tandem.cluster.devices.profile import DeviceProfile, load_profile
from tandem.policies.cost import PerToken

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Draws a number of the server's times to first token, seconds."""
_cdf = NormalDist().cdf


@dataclass(frozen=True, slots=True)
class Service:
    """A service and its times to first token, log-normal.

    mean_s: of the TTFT, as the spec takes it from appendix C (table 5).
    mape: of the moving average there.
    price: dollars.
    """

    mean_s: float
    mape: float
    price: PerToken

    @property
    def sigma(self) -> float:
        """σ of the logarithm of a TTFT, see `sigma_of`."""
        return sigma_of(self.mape)

    @property
    def median_s(self) -> float:
        """Median TTFT, seconds."""
        return self.mean_s * math.exp(-(self.sigma**2) / 2)

    def ttft(self, tail: float = 1.0) -> Draw:
        """tail: what σ is multiplied by."""
        sigma = tail * self.sigma
        mu = math.log(self.mean_s) - sigma**2 / 2
        return lambda rng, n: rng.lognormal(mu, sigma, n)


def sigma_of(mape: float) -> float:
    """σ of the log-normal whose mean, taken as the prediction of independent draws, is off by `mape`, relative to
    the draw, on average.

    With m/x log-normal around x: E|m/x − 1| = 2(e^{σ²}Φ(3σ/2) − Φ(σ/2)) − e^{σ²} + 1. A trace whose neighbours are
    alike is easier to predict than that, so this σ is at the low end.
    """
    low, high = 0.0, 3.0
    for _ in range(50):
        sigma = (low + high) / 2
        grown = math.exp(sigma**2)
        error = 2 * (grown * _cdf(1.5 * sigma) - _cdf(sigma / 2)) - grown + 1
        low, high = (sigma, high) if error < mape else (low, sigma)
    return low


SERVICES = {
    "GPT": Service(0.41, 0.2455, PRICES["gpt-4o-mini"]),
    "LLaMA": Service(0.79, 0.4218, PRICES["llama-3.1-70b-hyperbolic"]),
    "DeepSeek": Service(1.4, 0.2780, PRICES["deepseek-v2.5"]),
    "Command": Service(0.23, 0.3940, PRICES["command"]),
}
ROUND_TRIP_S, ROUND_TRIP_SIGMA = 0.075, 0.643
"""Median and σ of the logarithm of a cellular network's round trip: its median and its P99, 0.335 s (the data's notes).
Beside a time to first token it has no queue and no prompt to take in."""


def resuming(step_s: float) -> Draw:
    """Draws times to the next token of a server that holds the prompt: a round trip and a step. Assumed: the paper's
    services hold none, a server of Tandem's does."""
    return lambda rng, n: rng.lognormal(math.log(ROUND_TRIP_S), ROUND_TRIP_SIGMA, n) + step_s


ENDPOINTS = {  # real samples: (file, endpoint in it, the paper's service that is nearest)
    "cohere/command-r, April 2024": ("thefastest_samples.csv", "cohere/command-r", "Command"),
    "together.ai/llama-3-70b-chat, April 2024": (
        "thefastest_samples.csv",
        "together.ai/llama-3-70b-chat",
        "LLaMA",
    ),
    "openai/gpt-3.5-turbo-0125, April 2024": ("thefastest_samples.csv", "openai/gpt-3.5-turbo-0125", "GPT"),
    "groq.com/llama-3-70b-chat, April 2024": ("thefastest_samples.csv", "groq.com/llama-3-70b-chat", ""),
    "replicate/llama-2-70b-chat, December 2023": (
        "llmperf_leaderboard_requests.csv",
        "replicate/llama-2-70b-chat",
        "",
    ),
}


def measured(endpoint: str) -> np.ndarray:
    """Every TTFT measured of one of ENDPOINTS, seconds; FileNotFoundError where the data is not at hand."""
    file, wanted, _ = ENDPOINTS[endpoint]
    with (DATA / "api_ttft" / file).open(newline="") as rows:
        return np.array(
            [
                float(row["ttft_s"])
                for row in csv.DictReader(rows)
                if wanted in (row["model"], f"{row.get('provider')}/{row['model']}") and row["ttft_s"]
            ]
        )


@dataclass(frozen=True, slots=True)
class Device:
    """A phone.

    profile: its speeds, as the paper gives them.
    model: what its energy follows from.
    """

    profile: DeviceProfile
    model: Transformer

    @property
    def prefill(self) -> float:
        """Tokens/s."""
        return self.profile.prefill_tokens_per_s or math.inf

    @property
    def decode(self) -> float:
        """Tokens/s."""
        return self.profile.decode_tokens_per_s or math.inf


DEVICES = {
    "Pixel 7 Pro B-1.1B": Device(load_profile("pixel7pro-bloom1b1"), BLOOM_1B1),
    "Pixel 7 Pro B-560M": Device(load_profile("pixel7pro-bloom560m"), BLOOM_560M),
    "Xiaomi 14 Q-0.5B": Device(load_profile("xiaomi14-qwen05b"), QWEN_500M),
}

TOKENS_A_WORD = 4 / 3
"""A rule of thumb for English; the prompts are counted in words."""
ALPACA_MEAN = 19.31
"""Tokens: mean prompt of Alpaca in vLLM's paper (Kwon et al. 2023, figure 11), quoted from memory: unchecked."""
DOCUMENTS = {"summarization", "rag"}
"""Groups of Spec-Bench that bring a document along."""
HEADLINE, SCALED = "instructions", "instructions scaled to Alpaca's mean"


def prompts() -> dict[str, np.ndarray]:
    """Prompt lengths in tokens, estimated, by set. The paper's Alpaca is not at hand: `instructions`, what people type
    (Vicuna, and Spec-Bench without its documents), stands for it; scaled to Alpaca's mean it is set beside.
    """
    spec = list(_lines("spec_bench.jsonl"))
    typed = [r["turns"][0] for r in [*_lines("vicuna_bench.jsonl"), *spec] if r["category"] not in DOCUMENTS]
    instructions = _tokens(typed)
    return {
        HEADLINE: instructions,
        SCALED: _whole(instructions * ALPACA_MEAN / instructions.mean()),
        "Vicuna": _tokens(r["turns"][0] for r in _lines("vicuna_bench.jsonl")),
        "Spec-Bench, documents included": _tokens(r["turns"][0] for r in spec),
        "GSM8K": _tokens(r["question"] for r in _lines("gsm8k_test.jsonl")),
        "HumanEval": _tokens(r["prompt"] for r in _lines("HumanEval.jsonl")),
    }


def _lines(name: str) -> Iterator[dict]:
    with (DATA / "prompts" / name).open() as lines:
        yield from map(json.loads, lines)


def _tokens(texts: Iterator[str] | list[str]) -> np.ndarray:
    return _whole(np.array([len(text.split()) * TOKENS_A_WORD for text in texts]))


def _whole(tokens: np.ndarray) -> np.ndarray:
    return np.maximum(1, np.rint(tokens)).astype(int)


TABLE_2 = {  # P99 TTFT reduction, %, in the order of DEVICES
    ("GPT", "server"): (23.85, 37.41, 44.04),
    ("GPT", "device"): (26.39, 21.48, 16.32),
    ("LLaMA", "server"): (11.08, 23.09, 26.29),
    ("LLaMA", "device"): (35.67, 29.30, 21.29),
    ("DeepSeek", "server"): (0.0, 3.88, 15.53),  # its P99 TTFT stays constant with Bloom-1.1B, the paper says
    ("DeepSeek", "device"): (30.91, 28.01, 25.08),
    ("Command", "server"): (47.93, 50.93, 52.23),
    ("Command", "device"): (34.78, 31.53, 24.42),
}
LEAST_CUT = 11.0
"""%: lower end of the range that the paper's abstract names."""
TABLE_3 = {  # delayed tokens per migrated request: mean, P99; P99 TBT, s
    ("GPT", "server"): (4.21, 9.40, 0.209),
    ("GPT", "device"): (6.59, 6.59, 0.217),
    ("LLaMA", "server"): (5.53, 11.00, 0.209),
    ("LLaMA", "device"): (10.01, 10.01, 0.217),
    ("DeepSeek", "server"): (8.13, 11.00, 0.209),
    ("DeepSeek", "device"): (17.17, 17.17, 0.217),
    ("Command", "server"): (3.25, 8.00, 0.209),
    ("Command", "device"): (8.54, 8.54, 0.217),
}
TABLE_6 = {  # GFLOPs a token: prefill at 32, 64, 128 tokens, then decode
    "Pixel 7 Pro B-1.1B": ((0.85, 0.93, 1.25), (0.82, 0.82, 0.82)),
    "Pixel 7 Pro B-560M": ((0.45, 0.50, 0.65), (0.42, 0.42, 0.42)),
    "Xiaomi 14 Q-0.5B": ((0.39, 0.45, 0.69), (0.37, 0.37, 0.37)),
}
