"""Figures of sketches by real models, from answers that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.benchmarks.chats import Chat
from tandem.benchmarks.paths import DATA
from tandem.benchmarks.real.sketch import Pair, figures, questions, row, settings


def pair(reason: str, cloud_s: tuple[float, float], sketch_s: tuple[float, float], tokens: int = 40) -> Pair:
    told = {"in_full": {reason: 1} if reason else {}, "tokens": tokens, "notes": 4, "rewritten": 1}
    stats = {"modes": {"sketch": told}}
    return Pair("Why?", Chat(100, *cloud_s, "text", {}), Chat(100, *sketch_s, "text", stats))


def test_answers_in_full_are_beside_the_clouds_and_sketched_ones_too() -> None:
    found = figures(
        [
            pair("unsuitable", (1.0, 9.0), (1.02, 9.0)),
            pair("short", (1.0, 9.0), (1.3, 9.0)),
            pair("", (1.0, 10.0), (3.0, 5.0)),
            pair("unsuitable", (1.0, 9.0), (1.0, 9.0)),
        ]
    )
    assert found == {
        "sketched": 0.25,
        "sketched_of_suitable": 0.5,
        "ttft_extra_ms": pytest.approx(20.0),
        "ttft_extra_worst_ms": pytest.approx(300.0),
        "ttft_sketched_x": 3.0,
        "speed_sketched_x": 2.0,
        "target_share": 0.4,
    }
    assert row(pair("", (1.0, 10.0), (3.0, 5.0)))[1] == "sketched"
    assert row(pair("short", (1.0, 10.0), (3.0, 5.0)))[-1] == ""


def test_no_sketched_answer_has_no_figures_of_its_own() -> None:
    assert figures([pair("unsuitable", (1.0, 9.0), (1.0, 9.0))]) == {
        "sketched": 0.0,
        "sketched_of_suitable": 0.0,
        "ttft_extra_ms": 0.0,
        "ttft_extra_worst_ms": 0.0,
    }


def test_both_devices_may_expand() -> None:
    said = settings(Path("t.gguf"), Path("s.gguf"), Path("o.gguf"), 2)
    assert {Path(host["engine"]["model"]).stem for host in said["hosts"]} == said["sketch"]["models"].keys()


@pytest.mark.skipif(not (DATA / "prompts").is_dir(), reason="the public prompts are not on this machine")
def test_questions_are_of_both_sets() -> None:
    asked = questions(6)
    assert len(set(asked)) == 12
