"""Questions that the programs ask the API, and a line for what came of each; run by the clients' own Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Literal

from pydantic import BaseModel

MODEL, KEY = "null", "none"
TIMEOUT_S = 300.0
QUESTION = "How is the weather in Paris?"
TIPS = "Give me three short tips for a walk in the rain."
ABOUT_TOWN = "Tell me about the town of Marworth."
RAIN = "It rains."


class Mayor(BaseModel):
    """A mayor."""

    name: str


class Town(BaseModel):
    """A town."""

    name: str
    size: Literal["small", "large"]
    bridges: int
    mayor: Mayor


def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: the city's name.
    """
    asked.append(city)
    return RAIN


asked: list[str] = []
"""Cities that a model has asked the tool about."""


def check_agent(answer: object) -> None:
    """Raise AssertionError unless the model has called the tool and then said something."""
    assert asked, "the tool was not called"
    asked.clear()
    assert answer, "no answer after the tool's"


def tell(package: str, features: Mapping[str, Callable[[str], object]]) -> None:
    """Try each feature at each address that the command line names as MODE=URL, and print a line of JSON for each."""
    told, sys.stdout = sys.stdout, sys.stderr  # some packages print
    print(json.dumps({"package": package, "version": version(package)}), file=told)
    for place in sys.argv[1:]:
        mode, _, url = place.partition("=")
        for feature, use in features.items():
            asked.clear()
            line: dict[str, object] = {"mode": mode, "feature": feature, "outcome": "works"}
            try:
                use(f"{url}/v1")
            except Exception as error:
                cause: BaseException | None = error
                while cause is not None and getattr(cause, "status_code", None) != 400:
                    cause = cause.__cause__ or cause.__context__
                said = f"{type(error).__name__}: {error}"
                line |= {"outcome": "fails" if cause is None else "refused", "error": said[-2000:]}
            print(json.dumps(line), file=told, flush=True)
