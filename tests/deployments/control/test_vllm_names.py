"""Metrics under vLLM's names: which of vLLM 0.32's there are, and why the others are not."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tandem.deployments.control.metrics import Metrics
from tandem.deployments.routing.directory import Snapshot

SERVED = {
    "cache_config_info",
    "e2e_request_latency_seconds",
    "generation_tokens",
    "inter_token_latency_seconds",
    "iteration_tokens_total",
    "kv_cache_usage_perc",
    "num_preemptions",
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "prefix_cache_hits",
    "prefix_cache_queries",
    "prompt_tokens",
    "request_decode_time_seconds",
    "request_generation_tokens",
    "request_inference_time_seconds",
    "request_max_num_generation_tokens",
    "request_num_preemptions",
    "request_params_max_tokens",
    "request_params_n",
    "request_prefill_kv_computed_tokens",
    "request_prefill_time_seconds",
    "request_prompt_tokens",
    "request_queue_time_seconds",
    "request_success",
    "request_time_per_output_token_seconds",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_drafts",
    "time_to_first_token_seconds",
}
PROMPTS = "a prompt is counted once, at the API, however many engines take it in"
ABSENT = "there is no such thing here"
NOT_SERVED = {
    "prompt_tokens_by_source": PROMPTS,
    "prompt_tokens_cached": PROMPTS,
    "prompt_tokens_cached_by_source": PROMPTS,
    "admission_rejections": "the gate's refusals are tandem_requests by status",
    "corrupted_requests": ABSENT,
    "engine_sleep_state": ABSENT,
    "external_prefix_cache_hits": ABSENT,
    "external_prefix_cache_queries": ABSENT,
    "kv_block_idle_before_evict_seconds": "sampled by vLLM, and only if asked for",
    "kv_block_lifetime_seconds": "sampled by vLLM, and only if asked for",
    "kv_block_reuse_gap_seconds": "sampled by vLLM, and only if asked for",
    "lora_requests_info": ABSENT,
    "mm_cache_hits": ABSENT,
    "mm_cache_queries": ABSENT,
    "num_requests_kv_fetch_by_stage": ABSENT,
    "spec_decode_num_accepted_tokens_per_pos": "windows change from round to round",
    "watermark_requests": ABSENT,
}
"""vLLM's other metrics, and why they are not served."""


def test_the_exposition_has_exactly_these_of_vllms_names() -> None:
    text = Metrics({"tandem": Snapshot}).exposition()[0].decode()
    shown = re.findall(r"^# TYPE vllm:(\w+) (\w+)", text, re.MULTILINE)
    names = {name.removesuffix("_total") if kind == "counter" else name for name, kind in shown}
    assert names == SERVED


def test_the_operators_guide_names_them() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    explained = {name.removesuffix("_total") for name in re.findall(r"`vllm:(\w+)`", guide)}
    assert explained == {name.removesuffix("_total") for name in SERVED}


@pytest.mark.vllm
def test_the_two_lists_are_all_of_vllms_names() -> None:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "v1"
    sources = (folder / "metrics" / "loggers.py", folder / "spec_decode" / "metrics.py")
    named = {
        name for source in sources for name in re.findall(r'"vllm:(\w+)"', source.read_text(encoding="utf-8"))
    }
    assert {name for name in named if not name.startswith("diffusion_")} == SERVED | NOT_SERVED.keys()
    assert not SERVED & NOT_SERVED.keys()
