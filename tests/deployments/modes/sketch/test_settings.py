"""Suitability of a request in mode sketch: by its whole conversation."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tandem.deployments.modes.sketch.settings import SketchOptions, SketchSettings
from tandem.engine.sketch.base import Question

ASKED = "What are some ways to improve it?"
SETTINGS = SketchSettings()


def chat(*turns: tuple[str, str]) -> Question:
    return Question((), [{"role": role, "content": text} for role, text in turns], turns[-1][1])


def test_a_chat_is_judged_by_its_earlier_turns_and_its_system_prompt() -> None:
    code = ("user", "Write a Python function that sorts a list.")
    health = ("user", "What are the main effects of bad sleep?")
    answer = ("assistant", "Here it is.")
    assert SETTINGS.suitable(chat(health, answer, ("user", ASKED)))
    assert not SETTINGS.suitable(chat(code, answer, ("user", ASKED)))
    for role in ("system", "developer"):
        assert not SETTINGS.suitable(chat((role, "Always answer in one sentence."), health))
        assert SETTINGS.suitable(chat((role, "You are a helpful assistant."), health))


def test_a_prompt_is_judged_alone_and_no_text_not_at_all() -> None:
    assert SETTINGS.suitable(Question((), text="What are the main effects of bad sleep?"))
    assert not SETTINGS.suitable(Question((), text="Who was Bach?"))
    assert SETTINGS.suitable(Question((1, 2)))


def test_all_questions_suit_a_target_that_was_trained_for_its_own() -> None:
    assert SketchSettings(questions="all").suitable(Question((), text="Who was Bach?"))


def test_parts_that_are_no_text_are_passed_over() -> None:
    parts = [
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": "Why is the sky blue?"},
    ]
    SETTINGS.suitable(Question((), parts, "Why is the sky blue?"))


@pytest.mark.parametrize("quality", [0.0, 1.0])
def test_a_quality_is_a_share(quality: float) -> None:
    assert SketchOptions(min_quality=quality).min_quality == quality
    with pytest.raises(ValidationError):
        SketchOptions(min_quality=3 * quality - 1)
