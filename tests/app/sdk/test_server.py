"""A server of a program's own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import tandem
from tandem.app.cli.server.local_ray import LocalRay

PROGRAM = """
import json, tandem
with tandem.start() as server:
    with server.client() as client:
        answer = client.ask("Tell me about the town of Marworth.", mode="speculative", max_tokens=12)
    print(json.dumps([answer.text, sorted({piece.origin for piece in answer.pieces})]))
"""


def test_a_process_has_one_ray(cluster: LocalRay) -> None:
    with pytest.raises(tandem.UpError, match="this process has a Ray already"):
        tandem.start()


@pytest.mark.nightly  # a second Ray beside that of the other tests
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("ray")
def test_a_program_starts_asks_and_stops() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=280
    )
    text, origins = json.loads(done.stdout.splitlines()[-1])
    assert text.startswith("The town of Marworth")
    assert "draft" in origins
