"""Settings of vLLM, checked before it starts."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from tandem.app.preflight import check
from tandem.app.settings import Settings
from tandem.deployments.pools.engines import VllmSettings, context_of
from tandem.engine import family
from tandem.engine.packages import VLLM, PackageMissing
from tandem.engine.vllm.config import VllmConfig, arguments, check_options


@pytest.mark.parametrize(
    ("found", "told"), [(None, "it is not installed"), ("0.33.1", "0.33.1 is installed")]
)
def test_another_version_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, found: str | None, told: str
) -> None:
    def version(package: str) -> str:
        if found is None or package != "vllm":
            raise metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(PackageMissing, match=f"needs vLLM {VLLM.version}, and {told}.*make vllm"):
        VLLM.require()
    with pytest.raises(ValueError, match=r"^verifier\.engine: engine kind vllm needs"):
        check(Settings.model_validate({"verifier": {"engine": {"kind": "vllm", "model": "target"}}}))


def test_its_build_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: f"{VLLM.version}+cpu")
    VLLM.require()


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_paralel_size": 2}, r"options\.tensor_paralel_size: .*did you mean tensor_parallel_size\?"),
        ({"qqqq": 2}, r"options\.qqqq: vLLM has no such argument$"),
        ({"max_num_seqs": 2}, r"options\.max_num_seqs: that is set by engine\.max_sessions"),
    ],
)
def test_options_that_vllm_has_not(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_options(options)
    engine = {"kind": "vllm", "model": "target", "options": options}
    with pytest.raises(ValueError, match=r"^verifier\.engine: options\."):
        check(Settings.model_validate({"verifier": {"engine": engine}}))


@pytest.mark.vllm
def test_options_reach_vllm() -> None:
    config = VllmConfig(
        kv_blocks=100, window=3, speculation={"method": "ngram"}, options={"max_model_len": 300}
    )
    given = arguments(family.path("target"), config)
    assert (given.max_model_len, given.num_gpu_blocks_override, given.block_size) == (300, 100, 32)
    assert given.speculative_config == {"num_speculative_tokens": 3, "method": "ngram"}
    assert "uniproc" in given.distributed_executor_backend
    parallel = arguments(family.path("target"), VllmConfig(options={"tensor_parallel_size": 2}))
    assert parallel.distributed_executor_backend is None


@pytest.mark.vllm
def test_lookup_takes_room_beside_the_window() -> None:
    given = arguments(family.path("target"), VllmConfig(window=3, lookup=16))
    assert given.speculative_config["num_speculative_tokens"] == 16
    assert given.additional_config["lookup"] == 16


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("config", "speculates"), [({"window": 0}, False), ({}, True), ({"window": 0, "lookup": 4}, True)]
)
def test_without_drafts_vllm_has_no_speculator(config: dict[str, int], speculates: bool) -> None:
    given = arguments(family.path("target"), VllmConfig(**config))
    assert (given.speculative_config is not None) == speculates
    assert (given.async_scheduling is None) != speculates
    assert given.scheduler_cls.endswith("AsyncTandemScheduler") != speculates


VLLM_POOL = {"engine": {"kind": "vllm", "model": "target"}}
NO_DRAFTER = {"drafter": {"replicas": 0}}


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({"drafter": VLLM_POOL}, {"verifier": None, "drafter": 0}),
        (NO_DRAFTER, {"verifier": 0}),
        ({**NO_DRAFTER, "gateway": {}}, {"verifier": None}),
        ({**NO_DRAFTER, "hosts": [{"name": "edge", "devices": [{"name": "laptop"}]}]}, {"verifier": None}),
        ({**NO_DRAFTER, "verifier": {"engine": {**VLLM_POOL["engine"], "window": 3}}}, {"verifier": 3}),
    ],
)
def test_a_pool_for_which_nothing_drafts_verifies_nothing(
    settings: dict[str, Any], windows: dict[str, int | None]
) -> None:
    made = Settings.model_validate({"verifier": VLLM_POOL, **settings})
    engines = {pool: made.engine(pool, made) for pool in made.pools}
    assert {pool: e.window for pool, e in engines.items() if isinstance(e, VllmSettings)} == windows


def test_lookup_takes_no_second_drafter() -> None:
    with pytest.raises(ValueError, match="leave one of both out"):
        VllmConfig(lookup=4, speculation={"method": "ngram"})


@pytest.mark.parametrize(
    ("settings", "context"),
    [({}, 1024), ({"kv_blocks": 9}, 256), ({"options": {"max_model_len": 100}}, 100)],
)
def test_the_context_is_known_beforehand(settings: dict[str, int], context: int) -> None:
    assert context_of(VllmSettings(kind="vllm", model="target", **settings)) == context
