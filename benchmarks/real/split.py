"""Mode split with a real model: asked at a device's own API, beside the whole model in the cloud on the same engine.

The device's program holds a bundle's two ends, the cloud the middle and the whole model. Hidden states travel over this
machine's loopback interface, without an emulated link.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import httpx
import msgspec
import yaml

from tandem.app.cli.server.local_ray import free_port
from tandem.benchmarks.application import READY_WITHIN_S, TANDEM, application
from tandem.benchmarks.chats import Server
from tandem.benchmarks.real.figures import Compared, same_tokens
from tandem.benchmarks.real.results import Answer
from tandem.engine.split.base import misfit
from tandem.engine.torch.split.bundle import describe, read

SPLIT, WHOLE = "split", "cloud, torch"
KV_BLOCKS = 128
COLUMNS = ("set", "answers", "kB up", "kB down", "rounds", "drafted", "accepted")


def settings(bundle: Path, whole: Path, threads: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the application and of the device's program, without ports and keys.

    bundle, whole: folders of the two ends, and of the model that they were cut from. Raises ValueError or OSError if
    they do not belong together.
    """
    ends = read(bundle).split
    if (why := misfit(ends, describe(whole, ends.first))) is not None:
        raise ValueError(why)
    memory = {"kv_blocks": KV_BLOCKS, "max_sessions": 4, "prefix_caching": False}
    model = memory | {"model": str(whole.absolute()), "threads": threads}
    cloud = {
        "model": "model",
        "verifier": {"engine": model | {"kind": "torch"}},
        "drafter": {"replicas": 0},
        "middle": {"replicas": 1, "engine": model | {"first": ends.first}},
    }
    device = {
        "model": "model",
        "bundle": str(bundle.absolute()),
        "threads": threads,
        "outer": memory,
        "engine": {
            "kind": "null",
            "context": 16 * KV_BLOCKS,
        },  # no model of its own: it is asked for split alone
        "split": {"wire": "bfloat16"},  # in which hidden states of models in bfloat16 lose nothing
    }
    return cloud, device


@contextmanager
def serving(cloud: dict[str, Any], device: dict[str, Any], folder: Path) -> Iterator[dict[str, Server]]:
    """Run cloud and device until the context is left; yield whom to ask, by mode. folder: for their files.

    Raises RuntimeError if one does not come up.
    """
    ledger, key, gateway, port = folder / "ledger.sqlite", folder / "device.key", free_port(), free_port()
    more = {"gateway": {"port": gateway}, "ledger": {"path": str(ledger)}}
    with application(cloud | more, folder) as (host, cloud_port):
        url = f"http://{host}:{cloud_port}"
        made = httpx.post(f"{url}/v1/keys", json={"name": "device", "role": "device"}).raise_for_status()
        key.write_text(made.json()["secret"])
        where = {"connect": f"127.0.0.1:{gateway}", "key": str(key), "listen": f"127.0.0.1:{port}"}
        (folder / "device.yaml").write_text(yaml.safe_dump(device | where))
        command = [*TANDEM, "device", "--config", str(folder / "device.yaml")]
        process = subprocess.Popen(command, stdout=sys.stderr)
        try:
            _wait(f"http://127.0.0.1:{port}", process)
            yield {
                WHOLE: Server(url, {"tandem": {"mode": "cloud"}}),
                SPLIT: Server(f"http://127.0.0.1:{port}", {"tandem": {"mode": "split"}}),
            }
        finally:
            process.terminate()
            process.wait(60)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when the device is connected to the cloud. Raises RuntimeError."""
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/readyz", timeout=2.0).json().get("cloud"):
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the device's program did not come up")


class Traffic(msgspec.Struct):
    """Figures of one answer in mode split, see `deployments.modes.split.Splitting`."""

    up_bytes: int
    down_bytes: int
    rounds: int
    drafted: int
    accepted: int


class _Modes(msgspec.Struct):
    split: Traffic


class _Stats(msgspec.Struct):
    modes: _Modes


def traffic(answer: Answer) -> Traffic:
    """Return what an answer in mode split reports."""
    return msgspec.json.decode(answer.stats, type=_Stats).modes.split


def compared(found: Iterable[Answer]) -> Compared:
    """Return the answers beside the whole model's."""
    return Compared(sorted(found, key=lambda answer: (answer.set, answer.mode)), WHOLE)


def rows(found: Iterable[Answer]) -> list[list[str]]:
    """Return the rows of a table of traffic: means of an answer, by set; in the order of COLUMNS."""
    by_set: dict[str, list[Traffic]] = {}
    for answer in found:
        if answer.mode == SPLIT:
            by_set.setdefault(answer.set, []).append(traffic(answer))
    return [[of_set, str(len(seen)), *_means(seen)] for of_set, seen in sorted(by_set.items())]


def _means(seen: Sequence[Traffic]) -> list[str]:
    kilobytes = [
        f"{mean(getattr(one, name) for one in seen) / 1e3:.1f}" for name in ("up_bytes", "down_bytes")
    ]
    counts = [f"{mean(getattr(one, name) for one in seen):.1f}" for name in ("rounds", "drafted", "accepted")]
    return kilobytes + counts


def figures(found: Sequence[Answer]) -> dict[str, float]:
    """Return the figures of mode split.

    split_same_tokens: share of the whole model's tokens, in their places.
    split_x: speed over the whole model's, median of the prompts.
    split_up_kb, split_down_kb: kilobytes of hidden states of an answer, prompt included, mean.
    """
    beside = compared(found)
    cases = [(of_set, SPLIT) for of_set in {answer.set for answer in found}]
    pairs = [pair for case in cases for pair in beside.pairs(*case)]
    ratios = [ratio for case in cases for ratio in beside.ratios(*case)]
    moved = [traffic(answer) for answer in found if answer.mode == SPLIT]
    if not pairs:
        return {}
    return {
        "split_same_tokens": round(same_tokens(pairs), 4),
        "split_x": round(median(ratios), 3),
        "split_up_kb": round(mean(one.up_bytes for one in moved) / 1e3, 1),
        "split_down_kb": round(mean(one.down_bytes for one in moved) / 1e3, 1),
    }
