"""An application of the newest release becomes this tree's under load: no request fails, and no stream breaks."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import httpx
import pytest

from tandem.benchmarks.application import application, change, configured
from tandem.benchmarks.paths import ROOT
from tandem.benchmarks.robustness.load import asking, processes, under_load
from tandem.benchmarks.robustness.redeploy import settings

pytestmark = [pytest.mark.nightly, pytest.mark.alone, pytest.mark.timeout(900)]

STREAMS = 8


def git(*arguments: str) -> bytes:
    """Return what git says of this tree; skips where there is none."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed, so that no release can be had")
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
    if ran.returncode:
        pytest.skip(f"this tree is no clone of the repository: {ran.stderr.decode().strip()}")
    return ran.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the newest release that this tree descends from."""
    tags = git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname").decode().split()
    if not tags:
        pytest.skip(
            "no release is tagged here (v0.1.0, …); a shallow clone has no tags: git fetch --unshallow --tags"
        )
    folder = tmp_path_factory.mktemp(tags[0])
    with tarfile.open(fileobj=io.BytesIO(git("archive", tags[0]))) as tree:
        tree.extractall(folder, filter="fully_trusted")
    return folder


async def test_nothing_fails_while_a_release_becomes_this_tree(release: Path, tmp_path: Path) -> None:
    """Follow the upgrade guide: deployed from the new tree, whose folder is in the replicas' path."""
    # With other links, as device hosts of the same version and settings would stay.
    config = configured(settings(tmp_path, rtt_ms=6.0))
    config["applications"][0]["runtime_env"] = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    with application(settings(tmp_path), tmp_path, release) as address:
        assert trees() == {str(release)}
        async with asking(address) as (http, right):
            outcome = await under_load(http, STREAMS, right, lambda: change(config, tmp_path))
            await only_new(http)
    assert outcome.failures == outcome.breaks == []
    assert len(outcome.gaps_s) >= STREAMS


def trees() -> set[str]:
    """Return the trees whose code the application's processes run."""
    parts = [
        process for title in ("ray::ServeReplica:tandem", "ray::DeviceHost") for process in processes(title)
    ]
    paths = [Path(f"/proc/{part.pid}/environ").read_bytes().decode().split("\0") for part in parts]
    return {
        value.removeprefix("PYTHONPATH=")
        for path in paths
        for value in path
        if value.startswith("PYTHONPATH=")
    }


async def only_new(http: httpx.AsyncClient) -> None:
    """Return when nothing of the release runs any more."""
    async with asyncio.timeout(120):
        while trees() != {str(ROOT)}:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.5)
    (await http.get("/readyz")).raise_for_status()
