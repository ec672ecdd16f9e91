"""One team of OpenMP threads in a process: that of the engine's thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = Path("/proc/self/task")

COUNT = """
import asyncio
from pathlib import Path
import torch
from tandem.engine import family
from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.torch.engine import load

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

async def main():
    torch.set_num_threads(2)
    before = threads()
    engine = load(family.path("target"), EngineConfig(kv_blocks=512), threads=2)
    session = await engine.open(list(range(3, 300)), Sampling(max_tokens=4))
    async for _ in session.generate():
        pass
    own = threads() - before
    assert own == 2, f"{own} threads: the engine's, its helper, and others that make it sleep at barriers"
    torch.ones(10_000_000).sum()  # what must not be done here
    assert threads() - before == own + 1, "there is no OpenMP to be counted"
    await engine.close()

asyncio.run(main())
"""


@pytest.mark.slow  # a process of its own, which loads torch
@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
def test_loading_leaves_no_threads_behind() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    subprocess.run([sys.executable, "-c", COUNT], check=True, timeout=60, env=environment)
