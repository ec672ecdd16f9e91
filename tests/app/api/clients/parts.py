"""The part of a mode in an answer, by what the executor has measured: a client's answer looks the same without it."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.deployments.modes.sketch.mode import INDIVISIBLE, UNSUITABLE, Sketched
from tandem.deployments.modes.speculative.mode import Speculation
from tandem.deployments.request.job import JobStats

MARKS = 10
"""Characters around the label of a list's item, which tokens are no more than: number, stars, colon and line break."""


def missing(mode: str, stats: JobStats) -> list[str]:
    """Return what the mode consists of and that answer came without; empty if the mode took its part."""
    tokens, used, speculation = stats.by_origin, stats.used, Speculation.of(stats)
    sketch = Sketched.of(stats)
    parts = {
        "cloud": {
            "tokens of the cloud": "cloud" in tokens,
            "a device left alone": not used.device_in,
        },
        "device": {
            "tokens of the device": "device" in tokens,
            "a server left alone": not used.server_in,
        },
        "speculative": {
            "drafts of the device": used.device_out >= speculation.drafted > 0,
            "drafts that were accepted": tokens.get("draft", 0) == speculation.accepted > 0,
        },
        "race": {
            "a start of the server": used.server_in > 0,
            "a start of the device": used.device_in > 0,
        },
        "sketch": {
            "a sketch": sketch.sketches > 0,
            # labels of a list's items are of the sketch, and no device writes them, nor the marks around them
            "sentences of the device": used.device_out + sketch.tokens + MARKS * sketch.notes
            >= tokens.get("expansion", 0)
            > 0,
        },
    }
    return [what for what, there in parts[mode].items() if not there]


def in_full(answers: Sequence[JobStats]) -> bool:
    """Return whether mode sketch had the large model write one of them in full, since it cannot be written in parts."""
    return any({INDIVISIBLE, UNSUITABLE} & Sketched.of(stats).in_full.keys() for stats in answers)
