"""Faults by the thousand, in virtual time: every seed draws a system, its requests and what happens to it.

    tandem benchmark chaos [--seeds 10000] [--seed N] [--sabotages]

The live code runs (see `simulator.chaos`, which says what is promised), on as many cores as there are. Results are
written line by line in a folder (--work), so that an interrupted run goes on where it stopped; changed code begins
anew. --seed replays one, and says what happened and what was broken. --sabotages puts one fault after the other into
the code itself, and plays seeds until one of them is seen to break a promise.

failed: seeds that broke a promise.
longest_gap_s: virtual seconds that any reader waited between two deliveries, for the first one or for the end.
sabotages, sabotages_found: faults put into the code, and those that were seen within 200 seeds.
most_seeds: that it took to see one of these.
"""

from __future__ import annotations

import hashlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from tandem.benchmarks import report
from tandem.benchmarks.paths import ROOT
from tandem.benchmarks.robustness.sabotages import SABOTAGES
from tandem.simulator.chaos import ChaosOutcome, play
from tandem.simulator.runs.tasks import ray_map, resumable_map

PACKAGES = ("policies", "engine", "cluster", "deployments", "simulator")
SOURCES = {".py", ".npz", ".yaml"}
STUCK_S = 120  # of CPU time; a seed takes a fraction of a second
SHOWN = 20  # failing seeds
SABOTAGE_SEEDS = range(200)


class Played(msgspec.Struct, frozen=True):
    """ChaosOutcome of a seed; see `simulator.chaos.ChaosOutcome`."""

    seed: int
    broken: list[str]
    longest_gap_s: float


class Stuck(KeyboardInterrupt):
    """A seed computes on and on. (What is no KeyboardInterrupt would end a task, not the event loop.)"""


def attempt(seed: int) -> ChaosOutcome:
    """Play a seed; one that never ends has broken a promise, too."""

    def give_up(*_: object) -> NoReturn:
        raise Stuck

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_S)
    logging.disable(logging.CRITICAL)  # every fault is logged
    try:
        return play(seed)
    except Stuck:
        return ChaosOutcome(seed, broken=[f"still computing after {STUCK_S} s"])
    finally:
        logging.disable(logging.NOTSET)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def code_version(root: Path = ROOT / "tandem") -> str:
    """A hash of all that decides what a seed does."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in SOURCES and path.is_file():
                digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def play_all(
    seeds: Sequence[int], done: Path, attempt: Callable[[int], ChaosOutcome] = attempt
) -> Iterator[Played]:
    """Yield the seeds found in the file first, then the others as they are played and added to it.

    attempt: plays a seed, in other processes.
    """

    def played(seed: int) -> Played:
        outcome = attempt(seed)
        return Played(outcome.seed, outcome.broken, outcome.longest_gap_s)

    return resumable_map(played, {seed: seed for seed in seeds}, lambda one: one.seed, Played, done)


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("chaos", __doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="from 0 on (default 10000)")
    parser.add_argument("--seed", type=int, help="only this one, told in full")
    parser.add_argument(
        "--sabotages", action="store_true", help="put faults into the code, one after the other"
    )
    parser.add_argument(
        "--work", type=Path, default=Path(".tandem") / "chaos", help="where what is done is kept"
    )
    options = parser.parse_args(arguments)
    if options.seed is not None:
        _replay(options.seed)
        return
    if options.sabotages:
        _sabotage()
        return
    seeds = range(options.seeds)
    results = play_all(seeds, options.work / f"{code_version()}.jsonl")
    played = [next(results) for _ in report.progress(seeds, "seeds")]
    failed = sorted((one for one in played if one.broken), key=lambda one: one.seed)
    if failed:
        report.table(
            f"{len(failed)} seeds broke promises" + (f", the first {SHOWN}" if len(failed) > SHOWN else ""),
            ["what was broken", "how to replay it"],
            [
                ["\n".join(one.broken[:3]), f"tandem benchmark chaos --seed {one.seed}"]
                for one in failed[:SHOWN]
            ],
        )
    longest_s = max((one.longest_gap_s for one in played), default=0.0)
    figures = {"seeds": len(played), "failed": len(failed), "longest_gap_s": round(longest_s, 2)}
    report.figures("chaos", figures)
    if failed:
        sys.exit(1)


def _replay(seed: int) -> None:
    outcome = attempt(seed)
    report.table(
        f"Seed {seed}: {len(outcome.answers)} requests, {outcome.refused} refused, nobody waited longer than "
        f"{outcome.longest_gap_s:.1f} s",
        ["at s", "fault", "whom", "for s"],
        [[f"{f.at_s:.2f}", f.kind, str(f.target), f"{f.seconds:.2f}"] for f in outcome.faults],
    )
    print("\n".join(outcome.broken) or "All promises were kept.")
    if outcome.broken:
        sys.exit(1)


def seen(number: int) -> tuple[int, int | None]:
    """Return a sabotage's number and the first seed that shows it; None if none does."""
    logging.disable(logging.CRITICAL)  # every fault is logged
    try:
        return number, SABOTAGES[number].found_by(SABOTAGE_SEEDS)
    finally:
        logging.disable(logging.NOTSET)


def _sabotage() -> None:
    numbers = range(len(SABOTAGES))
    results = ray_map(seen, numbers, chunk=1)
    found = dict(next(results) for _ in report.progress(numbers, "sabotages"))
    report.table(
        f"What is seen of faults in the code, within {len(SABOTAGE_SEEDS)} seeds",
        ["fault", "broken promise", "shown by seed"],
        [
            [each.what, f"… {each.promise} …", "none" if found[n] is None else str(found[n])]
            for n, each in enumerate(SABOTAGES)
        ],
    )
    shown = [seed for seed in found.values() if seed is not None]
    figures = {
        "sabotages": len(SABOTAGES),
        "sabotages_found": len(shown),
        "most_seeds": 1 + max(shown, default=-1),
    }
    report.figures("chaos", figures)
    if len(shown) < len(SABOTAGES):
        sys.exit(1)
